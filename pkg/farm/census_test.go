package farm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// clusterIs waits until the metrics of the whole cluster have these lines.
func clusterIs(t *testing.T, reg *prometheus.Registry, want ...string) {
	t.Helper()
	consultest.Eventually(t, soon, func() error {
		families, err := reg.Gather()
		if err != nil {
			return err
		}
		var lines []string
		for _, family := range families {
			for _, m := range family.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
				lines = append(lines, fmt.Sprintf("%s{%s} %v", strings.TrimPrefix(family.GetName(), "rcfarm_farm_"),
					strings.Join(labels, ","), m.GetGauge().GetValue()))
			}
		}
		for _, line := range want {
			if !slices.Contains(lines, line) {
				return fmt.Errorf("no %s in %q", line, lines)
			}
		}
		return nil
	})
}

// The leader counts all controllers and nodes, and the remains of controllers without a record. No other farm does.
func TestTheLeaderCountsTheCluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.node("n2", nil, nil)
	var alerts recorder
	first, stop := c.watchedFarm("f1", &alerts)
	metric(t, first, "rcfarm_farm_leads", "", is(1))
	second, _ := c.watchedFarm("f2", &alerts)
	c.apply("web", testManifest("web", 8080), replicas(2))
	c.converged("web", 2)
	c.drain("n2", true)
	all := []string{
		`replicas{group="none",state="desired"} 2`, `replicas{group="none",state="ready"} 2`,
		`replicas{group="none",state="lost"} 0`,
		`nodes{state="open"} 1`, `nodes{state="drained"} 1`, `nodes{state="lost"} 0`,
		`orphaned_records{kind="intent"} 0`,
	}
	clusterIs(t, first, all...)
	clusterIs(t, second, `replicas{group="none",state="desired"} 0`, `nodes{state="open"} 0`)

	id := pod.Identity{RCID: "lost", Role: "main"}
	key := c.store.Keys().Intents.Key("n1", id.String())
	c.put(key,
		mustJSON(t, pod.Intent{
			Identity: id, PodID: "lost", Digest: strings.Repeat("d", 64), State: pod.Running,
			Revision: 1,
		}))
	clusterIs(t, first, `orphaned_records{kind="intent"} 1`)
	alerted := func(prefix string) {
		t.Helper()
		consultest.Eventually(t, soon, func() error {
			if got := alerts.about("Unreadable"); !slices.ContainsFunc(got,
				func(line string) bool { return strings.HasPrefix(line, prefix+" orphaned/lost/") }) {
				return fmt.Errorf("alerts: %v", got)
			}
			return nil
		})
	}
	alerted("raise")
	stop()
	metric(t, second, "rcfarm_farm_leads", "", is(1))
	clusterIs(t, second, `replicas{group="none",state="desired"} 2`, `orphaned_records{kind="intent"} 1`)
	clusterIs(t, first, `replicas{group="none",state="desired"} 0`, `nodes{state="open"} 0`,
		`orphaned_records{kind="intent"} 0`)
	if _, err := c.client.Commit(t.Context(),
		[]consul.Op{consul.Delete(key), consul.DeleteTree(c.store.Keys().Realities.Key("n1", "lost"))}); err != nil {
		t.Fatal(err)
	}
	alerted("resolve")
	// the first leader may have ended before it stored its alert
	if got := slices.Compact(alerts.about("Unreadable")); len(got) != 2 {
		t.Errorf("alerts: %v", got)
	}
}

// The leader alerts to an intent of a controller that has a record and no placement for it. When the intent is removed,
// the owner adopts what the node runs.
func TestAnIntentWithoutAPlacementIsAlerted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	alerts := &recorder{}
	metrics, _ := c.watchedFarm("f1", alerts)
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	id := pod.Identity{RCID: "web", Role: "main", Index: 7}
	key := c.store.Keys().Intents.Key("n1", id.String())
	c.put(key,
		mustJSON(t, pod.Intent{
			Identity: id, PodID: "web", Digest: strings.Repeat("d", 64), State: pod.Running,
			Revision: 1,
		}))
	clusterIs(t, metrics, `orphaned_records{kind="unplaced"} 1`, `orphaned_records{kind="intent"} 0`)
	alerted := func(prefix string) {
		t.Helper()
		consultest.Eventually(t, soon, func() error {
			if got := alerts.about("Unreadable"); !slices.ContainsFunc(got,
				func(line string) bool { return strings.HasPrefix(line, prefix+" orphaned/web/") }) {
				return fmt.Errorf("alerts: %v", got)
			}
			return nil
		})
	}
	alerted("raise")
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(key)}); err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, soon, func() error {
		_, err := c.store.Pods.Get(t.Context(), store.Consistent, "web", "main.7")
		return err
	})
	alerted("resolve")
}
