package farm_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// claim adds shares to a node's reservation, beside the shares that farms write.
func (c *cluster) claim(name string, claims map[string]node.Claim) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		found, _, err := c.store.ReservationsOf(c.t.Context(), []string{name})
		if err != nil {
			return err
		}
		res := found[name].Value.Clone()
		maps.Copy(res.Claims, claims)
		_, err = c.client.Commit(c.t.Context(),
			[]consul.Op{consul.CAS(c.store.Keys().Reservations.Key(name), mustJSON(c.t, res), found[name].Index)})
		return err
	})
}

// Shares without a pod are released without an operator, no matter whether their controller exists or was removed. The
// other shares are kept: the shares of placed pods, of pods that have only an intent, of local services, and of unknown
// owners.
func TestLeakedSharesAreReleased(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), replicas(1))
	c.converged("web", 1)
	placed := pod.Identity{RCID: "web", Role: "main"}
	leaked := []pod.Identity{{RCID: "web", Role: "main", Index: 7}, {RCID: "gone", Role: "main"}}
	local := pod.Identity{RCID: "local-agent", Role: "default"}
	intended := []pod.Identity{{RCID: "web", Role: "main", Index: 8}, {RCID: "gone", Role: "main", Index: 8}}

	claims := map[string]node.Claim{"of/nobody.0": {CPU: 1}}
	for i, id := range slices.Concat(leaked, intended, []pod.Identity{local}) {
		claims[id.String()] = node.NewClaim(id, map[string]int{"http": 9000 + i}, 100, 0)
	}
	for _, id := range intended {
		c.put(c.store.Keys().Intents.Key("n1", id.String()),
			mustJSON(t, pod.Intent{
				Identity: id, PodID: "web", Digest: c.record("web").ManifestDigest,
				State: pod.Running, Revision: 5,
			}))
	}
	c.claim("n1", claims)
	want := []string{local.String(), "of/nobody.0", placed.String(), intended[0].String(), intended[1].String()}
	slices.Sort(want)
	consultest.Eventually(t, soon, func() error {
		found, _, err := c.store.ReservationsOf(t.Context(), []string{"n1"})
		if err != nil {
			return err
		}
		if got := slices.Sorted(maps.Keys(found["n1"].Value.Claims)); !slices.Equal(got, want) {
			return fmt.Errorf("n1 holds shares of %v, want %v", got, want)
		}
		for _, id := range leaked {
			left, err := c.client.Keys(t.Context(), c.store.Keys().Requests.Below(id.RCID))
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("requests of %s are left: %v", id.RCID, left)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if on := c.running("web"); len(on) != 2 { // one of the pods has no placement
		t.Errorf("running: %v", on)
	}
	lines, _, err := c.store.ListAudit(t.Context(), store.AuditFilter{Node: "n1"})
	if err != nil || !slices.ContainsFunc(lines, func(a store.Audit) bool {
		return slices.Contains(a.Changes, "release gone/main.0 on n1: no pod is there")
	}) {
		t.Errorf("the audit records are %+v, %v", lines, err)
	}
}
