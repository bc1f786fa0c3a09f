package farm_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A node that reports the highest possible revision does not end its pods: the farm can still write higher revisions
// for them, on this node or elsewhere.
func TestAReportCannotUseUpTheRevisions(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, func(in pod.Intent) pod.Reality {
		r := simnode.Obey(in)
		r.Revision = math.MaxInt64 - 1
		return r
	})
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(1))
	c.statusOf("web", func(st *rc.Status) bool { return strings.Contains(string(mustJSON(c.t, st)), "allowed: up to") })
	digest := ""
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) { digest = r.ManifestDigest })
	consultest.Eventually(t, soon, func() error {
		p, err := c.store.Pods.Get(t.Context(), store.Consistent, "web", "main.0")
		switch {
		case err != nil:
			return err
		case p.Value.Revision > pod.MaxReported:
			t.Fatalf("%s", mustJSON(t, p))
		case p.Value.Digest != digest:
			return fmt.Errorf("placement %s", mustJSON(t, p))
		}
		return nil
	})
}
