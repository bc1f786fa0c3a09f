package farm_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// An unreadable record of a controller, or an unreadable placement, is raised once, no matter which farm owns the
// controller. It is resolved once when the record is mended.
func TestAnUnreadableControllerIsAnIncident(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"record", "placement"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.node("n1", nil, nil)
			var alerts recorder
			_, stop := c.watchedFarm("f1", &alerts)
			c.apply("web", testManifest("web", 0), replicas(1))
			c.converged("web", 1)
			key := c.store.Keys().RCs.Key("web")
			if what == "placement" {
				key = c.store.Keys().Pods.Key(pod.Identity{RCID: "web", Role: "main"}.String())
			}
			good := c.spoil(key)
			c.ring("web")
			c.condition("web", rc.Unreadable, true, key)
			c.alerted("web", rc.Unreadable)
			stop()
			reg, _ := c.watchedFarm("f2", &alerts)
			metric(t, reg, "rcfarm_farm_alerts_active", "Unreadable", is(1))
			if n := len(c.running("web")); n != 1 {
				t.Errorf("%d pods run", n)
			}
			c.put(key, good)
			c.ring("web")
			c.condition("web", rc.Unreadable, false, "")
			alerts.once(t, "Unreadable")
			c.apply("web", testManifest("web", 0), replicas(2))
			c.converged("web", 2)
		})
	}
}

// The incident is also over if the record is removed instead of mended.
func TestARemovedControllerHasNoIncidents(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var alerts recorder
	c.watchedFarm("f1", &alerts)
	c.apply("web", testManifest("web", 0), replicas(0))
	c.converged("web", 0)
	c.spoil(c.store.Keys().RCs.Key("web"))
	c.ring("web")
	c.alerted("web", rc.Unreadable)
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(c.store.Keys().RCs.Key("web"))}); err != nil {
		t.Fatal(err)
	}
	c.ring("web")
	alerts.once(t, "Unreadable")
	consultest.Eventually(t, soon, func() error {
		if _, err := c.store.Statuses.Get(t.Context(), store.Default, "web"); !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("its status is left: %w", err)
		}
		return nil
	})
}

// The leader alerts once to unreadable records that belong to no controller, even if another farm leads by then. It
// resolves each incident once.
func TestUnreadableNodesAreAnIncident(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	var alerts recorder
	reg, stop := c.watchedFarm("f1", &alerts)
	metric(t, reg, "rcfarm_farm_settled", "", is(1))
	other, _ := c.watchedFarm("f2", &alerts)
	k := c.store.Keys()
	c.put(k.Nodes.Key("n9"), []byte("{"))
	alerted := func(n int) {
		t.Helper()
		consultest.Eventually(t, soon, func() error {
			rec, err := c.store.ReadIncidents(t.Context())
			if err != nil || len(rec.Value.Records) != n {
				return fmt.Errorf("incidents %+v, %w", rec.Value, err)
			}
			for key, incidents := range rec.Value.Records {
				if len(incidents) != 1 || incidents[0].AlertedAt == nil || !strings.Contains(incidents[0].Reason, key) {
					return fmt.Errorf("%s: %+v", key, incidents)
				}
			}
			return nil
		})
	}
	alerted(1)
	metric(t, reg, "rcfarm_farm_alerts_active", "Unreadable", is(1))
	c.put(k.NodeOps.Key("n8"), []byte("{"))
	alerted(2)
	if got := alerts.about("Unreadable"); len(got) != 2 {
		t.Errorf("alerts: %v", got)
	}
	stop()
	metric(t, other, "rcfarm_farm_alerts_active", "Unreadable", is(2))
	for _, key := range []string{k.Nodes.Key("n9"), k.NodeOps.Key("n8")} {
		if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(key)}); err != nil {
			t.Fatal(err)
		}
	}
	alerted(0)
	metric(t, other, "rcfarm_farm_alerts_active", "Unreadable", is(0))
	got := alerts.about("Unreadable")
	if len(got) != 4 {
		t.Fatalf("alerts: %v", got)
	}
	for _, line := range got[:2] {
		if want := "resolve " + strings.TrimPrefix(line, "raise "); want != got[2] && want != got[3] {
			t.Errorf("alerts: %v; %s is missing", got, want)
		}
	}
}

// once waits until an incident was raised and resolved, and fails the test unless each happened once.
func (r *recorder) once(t *testing.T, incident string) {
	t.Helper()
	consultest.Eventually(t, soon, func() error {
		if n := len(r.about(incident)); n < 2 {
			return fmt.Errorf("alerts: %v", r.about(incident))
		}
		return nil
	})
	if got := r.about(incident); len(got) != 2 || got[1] != "resolve "+strings.TrimPrefix(got[0], "raise ") {
		t.Errorf("alerts: %v", got)
	}
}

// put writes a key by hand.
func (c *cluster) put(key string, value []byte) {
	c.t.Helper()
	if _, err := c.client.Commit(c.t.Context(), []consul.Op{consul.Set(key, value)}); err != nil {
		c.t.Fatal(err)
	}
}

// spoil makes a record unreadable and returns its former value.
func (c *cluster) spoil(key string) []byte {
	c.t.Helper()
	pair, err := c.client.Get(c.t.Context(), key, consul.Consistent)
	if err != nil {
		c.t.Fatal(err)
	}
	c.put(key, []byte("{"))
	return pair.Value
}

// Even if thousands of records are unreadable, the leader alerts: to the first records by key, to all others together.
// Otherwise the record of incidents would be larger than Consul takes, and there would be no alert at all.
func TestThousandsOfUnreadableRecordsAreAlerted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var alerts recorder
	reg, _ := c.watchedFarm("f1", &alerts)
	metric(t, reg, "rcfarm_farm_settled", "", is(1))
	write := func(op func(key string) consul.Op) {
		t.Helper()
		var ops []consul.Op
		for i := range 3000 {
			ops = append(ops, op(c.store.Keys().Nodes.Key(fmt.Sprintf("%s-%04d", strings.Repeat("n", 200), i))))
		}
		if err := simnode.CommitAll(t.Context(), c.client,
			slices.Collect(slices.Chunk(ops, consul.MaxTxnOps))); err != nil {
			t.Fatal(err)
		}
	}
	write(func(key string) consul.Op { return consul.Set(key, []byte("{")) })
	raised := func() (n int, rest bool) {
		for _, line := range alerts.about("Unreadable") {
			n += strings.Count(line, "raise ")
			rest = rest || strings.HasPrefix(line, "raise more records/")
		}
		return n, rest
	}
	consultest.Eventually(t, soon, func() error {
		if n, rest := raised(); n != 101 || !rest {
			return fmt.Errorf("%d raised, the rest among them: %t", n, rest)
		}
		return nil
	})
	metric(t, reg, "rcfarm_farm_alerts_active", "Unreadable", is(101))
	write(consul.Delete)
	metric(t, reg, "rcfarm_farm_alerts_active", "Unreadable", is(0))
	consultest.Eventually(t, soon, func() error {
		n, _ := raised()
		if all := len(alerts.about("Unreadable")); all != 2*n {
			return fmt.Errorf("%d raised, %d alerts", n, all)
		}
		return nil
	})
}
