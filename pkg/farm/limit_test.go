package farm_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// If more pods than one look places find no node, they do not delay other pods. The farm searches for their nodes no
// more often than for the nodes of a few pods.
func TestManyPodsWithoutANodeDelayNoOthers(t *testing.T) {
	t.Parallel()
	c := newService(t)
	c.racks(map[string]int{"a": 1})
	registry := prometheus.NewRegistry()
	c.rollingFarm("f1", c.addr, func(cfg *farm.Config) { cfg.Metrics = farm.NewMetrics(registry) })
	one, many := 1, 1500
	c.apply("web", testManifest("web", 0), func(r *rc.RC) {
		r.ReplicaGroups = []rc.ReplicaGroup{
			{Role: "held", Count: &many, Spread: rc.Spread{Label: "zone", When: rc.Require}}, // no node has that label
			{Role: "one", Count: &one},
		}
	})
	c.condition("web", rc.InsufficientNodes, true, "1500 of 1501 replicas have no node")
	c.run("web", 1)
	before := passesOf(t, registry)
	<-time.After(2 * time.Second)
	if n := passesOf(t, registry) - before; n > 20 {
		t.Errorf("%d looks in two seconds", n)
	}
}

func passesOf(t *testing.T, registry *prometheus.Registry) (n uint64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "rcfarm_farm_pass_duration_seconds" {
			for _, m := range f.GetMetric() {
				n += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return n
}
