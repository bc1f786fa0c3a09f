package farm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// recorder is an alerter that remembers.
type recorder struct {
	mu     sync.Mutex
	alerts []string
}

func (r *recorder) Raise(_ context.Context, in alert.Incident) bool { return r.add("raise " + in.Key) }
func (r *recorder) Resolve(_ context.Context, in alert.Incident) bool {
	return r.add("resolve " + in.Key)
}

func (r *recorder) add(line string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.alerts = append(r.alerts, line)
	return true
}

// about returns the alerts of one incident type. On a busy machine a node may also be lost for a moment.
func (r *recorder) about(incident string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.alerts),
		func(line string) bool { return !strings.Contains(line, "/"+incident+"/") })
}

// watchedFarm is a farm with metrics and alerts.
func (c *cluster) watchedFarm(id string, alerter alert.Alerter) (reg *prometheus.Registry, stop func()) {
	return c.farmWith(id, alerter, func(s farm.Session) farm.Session { return s })
}

func (c *cluster) farmWith(id string, alerter alert.Alerter,
	wrap func(farm.Session) farm.Session,
) (reg *prometheus.Registry, stop func()) {
	log, err := obs.NewLogger(testWriter{c.t}, "info", "text")
	if err != nil {
		c.t.Fatal(err)
	}
	client, st := c.connect()
	reg = prometheus.NewRegistry()
	metrics := farm.NewMetrics(reg)
	cfg := c.session("farm", id)
	stop = c.background(func(ctx context.Context) error {
		return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
			f := farm.NewFarm(farm.Config{
				ID: id, Store: wrap(st.FarmSession(s, id)), Log: log, TTL: 500 * time.Millisecond,
				SweepEvery: time.Second,
				Metrics:    metrics, Alerter: alerter, Address: "127.0.0.1:7460",
			})
			if f.Ready() == nil {
				c.t.Error("the farm is ready before it has seen anything")
			}
			return startAndLead(ctx, client, st, s, id, f)
		})
	})
	return reg, stop
}

// metric waits until a metric, with one label value if it has labels, satisfies the condition.
func metric(t *testing.T, reg *prometheus.Registry, name, label string, good func(float64) bool) {
	t.Helper()
	consultest.Eventually(t, soon, func() error {
		value, found := valueOf(t, reg, name, label)
		if !found || !good(value) {
			return fmt.Errorf("%s{%s} is %v (%v)", name, label, value, found)
		}
		return nil
	})
}

func valueOf(t *testing.T, reg *prometheus.Registry, name, label string) (float64, bool) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name || label != "" && m.GetLabel()[0].GetValue() != label {
				continue
			}
			switch {
			case m.GetGauge() != nil:
				return m.GetGauge().GetValue(), true
			case m.GetCounter() != nil:
				return m.GetCounter().GetValue(), true
			default:
				return float64(m.GetHistogram().GetSampleCount()), true
			}
		}
	}
	return 0, false
}

func is(want float64) func(float64) bool { return func(v float64) bool { return v == want } }

func positive(v float64) bool { return v > 0 }

func TestAFarmCountsWhatItDoes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	reg, stop := c.watchedFarm("f1", &recorder{})
	c.apply("web", testManifest("web", 8080), replicas(3))
	metric(t, reg, "rcfarm_farm_owned_rcs", "", is(1))
	metric(t, reg, "rcfarm_farm_pod_changes_total", "place", is(1))
	metric(t, reg, "rcfarm_farm_missing_replicas", "", is(2))
	metric(t, reg, "rcfarm_farm_missing_replicas_by_reason", "ports", is(2))
	metric(t, reg, "rcfarm_farm_missing_replicas_by_reason", "drained", is(0))
	metric(t, reg, "rcfarm_farm_settled", "", is(1))
	metric(t, reg, "rcfarm_farm_breaker_tripped", "", is(0))
	for _, name := range []string{"rcfarm_farm_pass_duration_seconds", "rcfarm_farm_queue_wait_seconds"} {
		metric(t, reg, name, "", positive)
	}
	metric(t, reg, "rcfarm_farm_passes_total", "ok", positive)
	metric(t, reg, "rcfarm_farm_batches_total", "committed", positive)

	// An unreadable record is counted while it is there, and delays nothing else.
	broken := c.store.Keys().NodeOps.Key("n9")
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Set(broken, []byte("{"))}); err != nil {
		t.Fatal(err)
	}
	metric(t, reg, "rcfarm_farm_corrupt_records", "", is(1))
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(broken)}); err != nil {
		t.Fatal(err)
	}
	metric(t, reg, "rcfarm_farm_corrupt_records", "", is(0))

	recs, _, err := c.store.Farms.List(t.Context(), store.Default)
	if err != nil || len(recs) != 1 || recs[0].Value.Address != "127.0.0.1:7460" {
		t.Errorf("members %+v, %v", recs, err)
	}
	stop()
	for _, name := range []string{"rcfarm_farm_owned_rcs", "rcfarm_farm_missing_replicas", "rcfarm_farm_settled"} {
		metric(t, reg, name, "", is(0))
	}
}

// An incident is raised once and resolved once, even if different farms do it.
func TestAlertsSurviveTheFarm(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var alerts recorder
	c.node("n1", nil, nil)
	_, stop := c.watchedFarm("f1", &alerts)
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) { r.NodeSelector = "rack=none"; replicas(2)(r) })
	consultest.Eventually(t, soon, func() error {
		if len(alerts.about("InsufficientNodes")) == 0 {
			return errors.New("nothing was raised")
		}
		st, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(st.Value.Incidents, func(i rc.Incident) bool {
			return i.Type == rc.InsufficientNodes && i.AlertedAt != nil
		}) {
			return fmt.Errorf("incidents %+v", st.Value.Incidents)
		}
		return nil
	})
	stop()
	reg, _ := c.watchedFarm("f2", &alerts)
	metric(t, reg, "rcfarm_farm_alerts_active", "InsufficientNodes", is(1))
	c.apply("web", testManifest("web", 8080), replicas(0))
	consultest.Eventually(t, soon, func() error {
		if n := len(alerts.about("InsufficientNodes")); n < 2 {
			return fmt.Errorf("%d lines", n)
		}
		return nil
	})
	metric(t, reg, "rcfarm_farm_alerts_active", "InsufficientNodes", is(0))
	if got := alerts.about("InsufficientNodes"); len(got) != 2 || got[1] != "resolve "+got[0][len("raise "):] {
		t.Errorf("alerts: %v", got)
	}
}

func TestMetricNames(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	farm.NewMetrics(reg)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// shy is a store under which no claim works, as if another farm should own every controller.
type shy struct{ farm.Session }

func (shy) Claim(context.Context, string) (store.Claimed, error) {
	return store.Claimed{}, errors.New("not mine")
}

// The leader counts a controller without an owner, and writes this into its status. The next owner removes this from
// the status.
func TestUnclaimedControllersAreReported(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.apply("web", testManifest("web", 8080), replicas(1))
	var alerts recorder
	began := time.Now()
	reg, _ := c.farmWith("f1", &alerts, func(s farm.Session) farm.Session { return shy{s} })
	metric(t, reg, "rcfarm_farm_unclaimed_rcs", "", is(1))
	reported := func(want bool) {
		t.Helper()
		consultest.Eventually(t, soon, func() error {
			st, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
			if err != nil || st.Value.Is(rc.Unclaimed) != want || want == (len(st.Value.Incidents) == 0) {
				return fmt.Errorf("%+v, %w", st.Value, err)
			}
			return nil
		})
	}
	reported(true)
	c.farm("f2")
	c.converged("web", 1)
	reported(false)
	metric(t, reg, "rcfarm_farm_unclaimed_rcs", "", is(0))
	if got := alerts.about("Unclaimed"); len(got) != 0 && time.Since(began) < soon/2 {
		t.Errorf("alerts although an owner came in time: %v", got)
	}
}

// A manifest that cannot be read is reported in the status, and raises an incident.
func TestAnUnreadableManifestIsAnIncident(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	m := testManifest("web", 8080)
	c.apply("web", m, replicas(1))
	canonical, err := m.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.Commit(t.Context(),
		[]consul.Op{consul.Set(c.store.Keys().Manifests.Key(digestOf(canonical)), []byte("{"))}); err != nil {
		t.Fatal(err)
	}
	var alerts recorder
	c.watchedFarm("f1", &alerts)
	consultest.Eventually(t, soon, func() error {
		if got := alerts.about("Unreadable"); len(got) != 1 {
			return fmt.Errorf("alerts: %v", got)
		}
		return nil
	})
	c.apply("web", m, replicas(1))
	c.converged("web", 1)
	consultest.Eventually(t, soon, func() error {
		st, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
		if err != nil || st.Value.Is(rc.Unreadable) || len(st.Value.Incidents) != 0 ||
			len(alerts.about("Unreadable")) != 2 {
			return fmt.Errorf("%+v, alerts %v, %w", st.Value, alerts.about("Unreadable"), err)
		}
		return nil
	})
}

// Failures of merged requests are counted by kind. The metrics exist from the start.
func TestMergedFailuresAreCounted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var spoiled func(kind string, parts int)
	reg, _ := c.farmWith("f1", &recorder{}, func(s farm.Session) farm.Session {
		return &spied{Session: s, seen: func(f func(string, int)) { spoiled = f }}
	})
	metric(t, reg, "rcfarm_farm_settled", "", is(1))
	spoiled(store.FailedReads, 7)
	spoiled(store.FailedWrites, 3)
	metric(t, reg, "rcfarm_farm_merged_failures_total", store.FailedReads, is(7))
	metric(t, reg, "rcfarm_farm_merged_failures_total", store.FailedWrites, is(3))
}

// spied gives the test the function that gets failures of merged requests.
type spied struct {
	farm.Session
	seen func(func(kind string, parts int))
}

func (s *spied) OnMergedFailure(f func(kind string, parts int)) {
	s.seen(f)
	s.Session.OnMergedFailure(f)
}
