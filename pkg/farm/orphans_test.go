package farm_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// If a node has echoed the epoch, a farm takes the node to have spoken only after the farm has read the node's pages of
// orphans. Until a farm can read them, it places no pod.
func TestNothingIsPlacedBeforeTheOrphansAreRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	var fault atomic.Value // how the pages cannot be used; empty: they can
	var tries atomic.Int32
	fault.Store("")
	c.faultyFarm("f1", &faulty{orphans: func(complete bool, err error) (bool, error) {
		tries.Add(1)
		switch fault.Load() {
		case "cannot be read":
			return false, errors.New("not now")
		case "not whole":
			return false, err
		}
		return complete, err
	}}, nil)
	c.apply("web", testManifest("web", 0), replicas(3))
	c.converged("web", 3)
	before := c.running("web")
	c.node("n2", nil, nil)
	saved, err := c.client.List(t.Context(), c.store.Keys().Prefix(), consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"cannot be read", "not whole"} {
		fault.Store(how)
		if _, err := c.client.Commit(t.Context(), []consul.Op{consul.DeleteTree(c.store.Keys().Prefix())}); err != nil {
			t.Fatal(err)
		}
		for _, p := range saved {
			for _, part := range []string{"rcs/", "names/", "manifests/"} {
				if strings.HasPrefix(p.Key, c.store.Keys().Prefix()+part) {
					c.put(p.Key, p.Value)
				}
			}
		}
		tries.Store(0)
		consultest.Eventually(t, soon, func() error {
			if n := tries.Load(); n < 3 {
				return fmt.Errorf("the pages were read %d times", n)
			}
			return nil
		})
		c.condition("web", rc.Holding, true, "waiting for nodes to report what they run: n1")
		fault.Store("")
		c.converged("web", 3)
		if got := c.running("web"); fmt.Sprint(got) != fmt.Sprint(before) {
			t.Fatalf("%s: ran %v, now %v", how, before, got)
		}
	}
}
