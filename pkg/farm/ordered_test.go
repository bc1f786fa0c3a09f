package farm_test

import (
	"fmt"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// An ordered pod whose placement vanished runs on as its intent says. It gets its placement back where that is, also if its machine is lost by
// then, and never a second copy.
func TestAnOrderedPodWhosePlacementVanishedIsAdopted(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost %t", lost), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			stopNode := c.node("n0", nil, nil)
			stopFarm := c.farm("f1")
			c.apply("db", testManifest("db", 0), func(r *rc.RC) { r.ReplicaGroups[0].Ordered = true })
			c.converged("db", 1)
			stopFarm()
			for i := range 3 {
				c.node(fmt.Sprintf("n%d", i+1), nil, nil)
			}
			if lost {
				stopNode()
			}
			before, err := c.store.Pods.Get(t.Context(), store.Consistent, "db", "main.0")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(c.store.Keys().Pods.Key("db", "main.0"))}); err != nil {
				t.Fatal(err)
			}
			c.farm("f2")
			consultest.Eventually(t, soon, func() error {
				recs, _, err := c.store.Pods.List(t.Context(), store.Consistent, "db")
				if err == nil && len(recs) != 1 {
					return fmt.Errorf("%d placements", len(recs))
				} else if err == nil && (recs[0].Value.Node != "n0" || recs[0].Value.Revision <= before.Value.Revision) {
					t.Fatalf("%s", mustJSON(t, recs))
				}
				return err
			})
		})
	}
}
