package farm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/scheduler/remote"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// keeper is an outside scheduler: it keeps books, and fails on demand. One replica takes a whole node.
type keeper struct {
	mu          sync.Mutex
	allocations map[scheduler.Allocation]bool
	term        string
	calls       map[string]int
	failing     map[string]error
	// answer, if set, replaces what AllocateNodes found.
	answer   func(found []scheduler.Allocation) []scheduler.Allocation
	eligible []string         // if set, the answer of EligibleNodes
	cpuAsked map[string]int64 // by role, the CPU in the last call of AllocateNodes
}

func newKeeper() *keeper {
	return &keeper{
		allocations: map[scheduler.Allocation]bool{}, calls: map[string]int{}, failing: map[string]error{},
		cpuAsked: map[string]int64{},
	}
}

// called counts a call, and returns the failure that the test has set.
func (k *keeper) called(what string) error {
	k.calls[what]++
	return k.failing[what]
}

func (k *keeper) in(o scheduler.Owner) error {
	if o.Term < k.term {
		return fmt.Errorf("the term %s is over, it is %s now", o.Term, k.term)
	}
	k.term = o.Term
	return nil
}

func (k *keeper) EligibleNodes(ctx context.Context, v *scheduler.View) ([]string, scheduler.Reasons, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.called("eligible"); err != nil || k.eligible != nil {
		return k.eligible, nil, err
	}
	return new(scheduler.ByLabel).EligibleNodes(ctx, v)
}

func (k *keeper) AllocatedNodes(_ context.Context, o scheduler.Owner) ([]scheduler.Allocation, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := errors.Join(k.called("books"), k.in(o)); err != nil {
		return nil, err
	}
	return k.of(o.RCID), nil
}

func (k *keeper) of(rcID string) []scheduler.Allocation {
	var all []scheduler.Allocation
	for a := range k.allocations {
		if a.Pod.RCID == rcID {
			all = append(all, a)
		}
	}
	return all
}

func (k *keeper) AllocateNodes(_ context.Context, o scheduler.Owner, v *scheduler.View,
	wants []scheduler.Want,
) ([]scheduler.Allocation, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := errors.Join(k.called("allocate"), k.in(o)); err != nil {
		return nil, err
	}
	var given []scheduler.Allocation
	for _, w := range wants {
		k.cpuAsked[w.Pod.Role] = v.Ask().CPU
		if name := k.find(v, w); name != "" {
			a := scheduler.Allocation{Pod: w.Pod, Node: name}
			k.allocations[a] = true
			given = append(given, a)
		}
	}
	if k.answer != nil {
		given = k.answer(given)
		for _, a := range given {
			k.allocations[a] = true
		}
	}
	return given, nil
}

func (k *keeper) find(v *scheduler.View, w scheduler.Want) string {
	if w.Node != "" {
		return w.Node
	}
	full := map[string]bool{}
	for a := range k.allocations {
		if a.Pod == w.Pod && !slices.Contains(w.Avoid, a.Node) {
			return a.Node
		}
		full[a.Node] = true
	}
	eligible, _ := v.Eligible()
	for _, n := range eligible {
		if !full[n.Name()] && !slices.Contains(w.Avoid, n.Name()) {
			return n.Name()
		}
	}
	return ""
}

func (k *keeper) DeallocateNodes(_ context.Context, o scheduler.Owner, allocations []scheduler.Allocation) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := errors.Join(k.called("deallocate"), k.in(o)); err != nil {
		return err
	}
	for _, a := range allocations {
		delete(k.allocations, a)
	}
	return nil
}

// set changes the keeper's behaviour.
func (k *keeper) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func (k *keeper) count(call string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls[call]
}

// reasonRecorder is a recorder of reasons.
type reasonRecorder struct{ recorder }

func (t *reasonRecorder) Raise(_ context.Context, in alert.Incident) bool {
	return t.add("raise " + in.Key + ": " + in.Reason)
}

// bookedFarm runs a farm with the keeper as scheduler.
func (c *cluster) bookedFarm(id string, k scheduler.Scheduler, alerter alert.Alerter,
	faults *faulty,
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
			faults.Session = st.FarmSession(s, id)
			return farm.NewFarm(farm.Config{
				ID: id, Store: faults, Log: log, TTL: 500 * time.Millisecond, SweepEvery: time.Second, Scheduler: k,
				Metrics: metrics, Alerter: alerter, StableAfter: time.Hour, Workers: 8,
			}).Start(ctx)
		})
	})
	return reg, stop
}

// inBooks waits until the keeper's books have exactly the controller's placements.
func (c *cluster) inBooks(k *keeper, id string) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		placements, _, err := c.store.Pods.List(c.t.Context(), store.Consistent, id)
		if err != nil {
			return err
		}
		want := map[scheduler.Allocation]bool{}
		for _, p := range placements {
			want[scheduler.Allocation{Pod: p.Value.Identity, Node: p.Value.Node}] = true
			for _, g := range p.Value.Ghosts {
				want[scheduler.Allocation{Pod: p.Value.Identity, Node: g.Node}] = true
			}
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if !maps.Equal(k.allocations, want) {
			return fmt.Errorf("the books show %v, the placements %v", k.allocations, want)
		}
		return nil
	})
}

// condition waits for a condition of the controller with a reason that contains the text.
func (c *cluster) condition(id string, t rc.ConditionType, isTrue bool, text string) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		st, err := c.store.Statuses.Get(c.t.Context(), store.Default, id)
		if err != nil {
			return err
		}
		for _, cond := range st.Value.Conditions {
			if cond.Type == t && cond.True == isTrue && strings.Contains(cond.Reason, text) {
				return nil
			}
		}
		return fmt.Errorf("status %+v", st.Value)
	})
}

func (c *cluster) ring(id string) {
	c.t.Helper()
	if err := c.store.Ring(c.t.Context(), id); err != nil {
		c.t.Fatal(err)
	}
}

// Books and placements agree through scaling, a move and the deletion. While nothing happens, the scheduler is not
// asked.
func TestAnOutsideSchedulersBooksFollow(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 4 {
		c.node(fmt.Sprintf("n%d", i), map[string]string{"rack": "a"}, nil)
	}
	k := newKeeper()
	reg, _ := c.bookedFarm("f1", k, &recorder{}, &faulty{})
	c.apply("web", testManifest("web", 8080), replicas(3))
	c.converged("web", 3)
	c.inBooks(k, "web")
	c.apply("web", testManifest("web", 8080), replicas(2))
	c.converged("web", 2)
	c.inBooks(k, "web")
	c.relabel("n0", "rack", "b")
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) { r.NodeSelector = "rack=a" })
	c.converged("web", 2)
	c.inBooks(k, "web")
	if on := c.running("web"); strings.Contains(fmt.Sprint(on), "n0") {
		t.Errorf("the pods run on %v; n0 is in another rack", on)
	}
	// The nodes may still send reports of the removed pods, so one pass may ask. A farm that asks in each pass fails.
	asked := func() int { return k.count("books") + k.count("allocate") + k.count("deallocate") }
	consultest.Eventually(t, soon, func() error {
		before := asked()
		passes, _ := valueOf(t, reg, "rcfarm_farm_passes_total", "ok")
		c.ring("web")
		metric(t, reg, "rcfarm_farm_passes_total", "ok", func(v float64) bool { return v > passes })
		if now := asked(); now != before {
			return fmt.Errorf("a pass that changed nothing asked the scheduler %d times", now-before)
		}
		return nil
	})
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) { now := time.Now(); r.DeletedAt = &now })
	c.nothingLeft("web")
	c.inBooks(k, "web")
}

// An allocation that fails changes nothing. The status has the reason, and the farm tries again. The same holds if the
// choice of nodes fails.
func TestAFailingAllocationChangesNothing(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"allocate", "eligible"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.node("n1", nil, nil)
			k := newKeeper()
			k.failing[call] = errors.New("out of order")
			reg, _ := c.bookedFarm("f1", k, &recorder{}, &faulty{})
			c.apply("web", testManifest("web", 0), replicas(1))
			c.condition("web", rc.SchedulerFailing, true, "1 of 1 replicas have no node: the scheduler: out of order")
			if n := k.count(call); n < 3 || n > 30 {
				t.Errorf("the scheduler was asked %d times, want three tries in each of a few passes", n)
			}
			metric(t, reg, "rcfarm_farm_scheduler_errors_total", call, positive)
			placements, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
			if err != nil || len(placements) != 0 || len(c.running("web")) != 0 {
				t.Errorf("placements %v, %v", placements, err)
			}
			k.set(func() { k.failing[call] = nil })
			c.ring("web")
			c.converged("web", 1)
			c.inBooks(k, "web")
			c.condition("web", rc.SchedulerFailing, false, "")
		})
	}
}

// After a transfer each deallocation fails. The placement stays as it is. One alert names both nodes. A new farm goes
// on, and deallocates when the scheduler works again.
func TestAHalfDoneTransferIsAlertedOnceAndDoneLater(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", map[string]string{"rack": "a"}, nil)
	k := newKeeper()
	var alerts reasonRecorder
	reg, stop := c.bookedFarm("f1", k, &alerts, &faulty{})
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) { r.NodeSelector = "rack=a"; replicas(1)(r) })
	c.converged("web", 1)
	k.set(func() { k.failing["deallocate"] = errors.New("try later") })
	c.node("n2", map[string]string{"rack": "a"}, nil)
	c.relabel("n1", "rack", "b")
	const reason = "n1 is still allocated to main.0, which is on n2 now: the scheduler: try later"
	c.condition("web", rc.BooksDiffer, true, reason)
	metric(t, reg, "rcfarm_farm_alerts_active", "BooksDiffer", is(1))
	c.alerted("web", rc.BooksDiffer) // before the farm ends, because otherwise its successor would alert again
	c.converged("web", 1)
	if on := fmt.Sprint(slices.Collect(maps.Values(c.running("web")))); on != "[[n2]]" {
		t.Errorf("it runs on %s", on)
	}
	stop()
	reg, _ = c.bookedFarm("f2", k, &alerts, &faulty{})
	metric(t, reg, "rcfarm_farm_alerts_active", "BooksDiffer", is(1))
	tried := k.count("deallocate")
	c.ring("web")
	consultest.Eventually(t, soon, func() error {
		if k.count("deallocate") < tried+3 {
			return errors.New("the deallocation was not tried again")
		}
		return nil
	})
	k.set(func() { k.failing["deallocate"] = nil })
	c.ring("web")
	c.inBooks(k, "web")
	c.condition("web", rc.BooksDiffer, false, "")
	consultest.Eventually(t, soon, func() error {
		got := alerts.about("BooksDiffer")
		if len(got) < 2 {
			return fmt.Errorf("alerts: %v", got)
		}
		return nil
	})
	if got := alerts.about("BooksDiffer"); len(got) != 2 || !strings.HasSuffix(got[0], ": "+reason) ||
		!strings.HasPrefix(got[1], "resolve ") {
		t.Errorf("alerts: %v", got)
	}
}

// alerted waits until the status has that people were alerted to an incident of this type.
func (c *cluster) alerted(id string, t rc.ConditionType) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		st, err := c.store.Statuses.Get(c.t.Context(), store.Default, id)
		if err != nil ||
			!slices.ContainsFunc(st.Value.Incidents,
				func(i rc.Incident) bool { return i.Type == t && i.AlertedAt != nil }) {
			return fmt.Errorf("incidents %+v, %w", st.Value.Incidents, err)
		}
		return nil
	})
}

// A deleted controller keeps its records until its shares can be removed from the books.
func TestADeletionWaitsForTheBooks(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	k := newKeeper()
	c.bookedFarm("f1", k, &recorder{}, &faulty{})
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	k.set(func() { k.failing["deallocate"] = errors.New("try later") })
	c.apply("web", testManifest("web", 0), func(r *rc.RC) { now := time.Now(); r.DeletedAt = &now })
	c.condition("web", rc.BooksDiffer, true, "n1 is still allocated to main.0, which is gone")
	if _, err := c.store.RCs.Get(t.Context(), store.Consistent, "web"); err != nil {
		t.Errorf("the record: %v", err)
	}
	k.set(func() { k.failing["deallocate"] = nil })
	c.ring("web")
	c.nothingLeft("web")
	c.inBooks(k, "web")
}

// After a batch with an unknown outcome nothing is deallocated before the outcome is known, whether the batch has
// landed or not.
func TestAnUnknownOutcomeDeallocatesNothing(t *testing.T) {
	t.Parallel()
	for _, landed := range []bool{true, false} {
		t.Run(fmt.Sprintf("landed=%t", landed), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.node("n1", nil, nil)
			c.node("n2", nil, nil)
			k := newKeeper()
			faults := &faulty{}
			var once sync.Once
			faults.commit = func(b *store.Batch) (err error) {
				if len(b.Pods) > 0 {
					once.Do(func() {
						err = fmt.Errorf("%w: no answer", store.ErrUnknown)
						if landed {
							err = errors.Join(faults.Session.Commit(context.Background(), b), err)
						}
					})
				}
				return err
			}
			c.bookedFarm("f1", k, &recorder{}, faults)
			c.apply("web", testManifest("web", 0), replicas(1))
			c.converged("web", 1)
			c.inBooks(k, "web")
			if n := k.count("deallocate"); n != 0 {
				t.Errorf("%d deallocations", n)
			}
		})
	}
}

// If a farm dies between an allocation and its placement, the next owner places the replica there, or deallocates the
// share if the replica is not wanted any more.
func TestANewOwnerFindsAllocationsWithoutPlacements(t *testing.T) {
	t.Parallel()
	for _, wanted := range []int{0, 1} {
		t.Run(fmt.Sprintf("wanted=%d", wanted), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.node("n1", nil, nil)
			c.node("n2", nil, nil)
			k := newKeeper()
			faults := &faulty{commit: func(b *store.Batch) error {
				if len(b.Pods) > 0 {
					return fmt.Errorf("dead: %w", store.ErrRefused) // its batches never land
				}
				return nil
			}}
			_, stop := c.bookedFarm("f1", k, &recorder{}, faults)
			c.apply("web", testManifest("web", 0), replicas(1))
			consultest.Eventually(t, soon, func() error {
				if k.count("allocate") == 0 {
					return errors.New("nothing is allocated")
				}
				return nil
			})
			stop()
			k.mu.Lock()
			before := maps.Clone(k.allocations)
			k.mu.Unlock()
			if len(before) != 1 {
				t.Fatalf("the books show %v", before)
			}
			c.apply("web", testManifest("web", 0), replicas(wanted))
			c.bookedFarm("f2", k, &recorder{}, &faulty{})
			c.converged("web", wanted)
			c.inBooks(k, "web")
			k.mu.Lock()
			defer k.mu.Unlock()
			if wanted == 1 && !maps.Equal(k.allocations, before) {
				t.Errorf("it was allocated %v, and then %v", before, k.allocations)
			}
		})
	}
}

// Nodes that a scheduler must not name are ignored and counted, and what was allocated there is deallocated.
func TestBadNamesOfASchedulerAreIgnored(t *testing.T) {
	t.Parallel()
	id := func(i int) pod.Identity { return pod.Identity{RCID: "web", Role: "main", Index: i} }
	for name, tt := range map[string]struct {
		spoil func(*keeper)
		bad   float64 // at least
	}{
		"unknown, repeated and drained candidates": {func(k *keeper) {
			k.eligible = []string{"n9", "n1", "n1", "n3", "n2"}
		}, 3},
		"an unknown node": {func(k *keeper) {
			k.answer = func([]scheduler.Allocation) []scheduler.Allocation {
				return []scheduler.Allocation{{Pod: id(0), Node: "n9"}}
			}
		}, 1},
		"a drained node": {func(k *keeper) {
			k.answer = func([]scheduler.Allocation) []scheduler.Allocation {
				return []scheduler.Allocation{{Pod: id(0), Node: "n3"}}
			}
		}, 1},
		"one replica twice": {func(k *keeper) {
			k.answer = func([]scheduler.Allocation) []scheduler.Allocation {
				return []scheduler.Allocation{{Pod: id(0), Node: "n1"}, {Pod: id(0), Node: "n2"}}
			}
		}, 1},
		"a replica without a question": {func(k *keeper) {
			k.answer = func(found []scheduler.Allocation) []scheduler.Allocation {
				return append(found, scheduler.Allocation{Pod: id(7), Node: "n1"})
			}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			for _, name := range []string{"n1", "n2", "n3"} {
				c.node(name, nil, nil)
			}
			if err := c.store.Operator.ChangeNode(t.Context(), store.NodeChange{
				Ops: node.Ops{Name: "n3", Unschedulable: true}, Audit: store.NewAudit("test", "cordon", "", nil),
			}); err != nil {
				t.Fatal(err)
			}
			k := newKeeper()
			tt.spoil(k)
			reg, _ := c.bookedFarm("f1", k, &recorder{}, &faulty{})
			c.apply("web", testManifest("web", 0), replicas(1))
			metric(t, reg, "rcfarm_farm_scheduler_errors_total", "answer", func(v float64) bool { return v >= tt.bad })
			k.set(func() { k.answer, k.eligible = nil, nil })
			c.ring("web")
			c.converged("web", 1)
			for id, on := range c.running("web") {
				if on[0] == "n3" || on[0] == "n9" {
					t.Errorf("%s runs on %v", id, on)
				}
			}
			consultest.Eventually(t, soon, func() error { c.ring("web"); return nil })
			c.inBooks(k, "web")
		})
	}
}

// If a scheduler leaves nodes out, or gives none, without a reason, the status reports that.
func TestASchedulerThatGivesNoReason(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.node("n2", nil, nil)
	k := newKeeper()
	k.eligible = []string{}
	c.bookedFarm("f1", k, &recorder{}, &faulty{})
	c.apply("web", testManifest("web", 0), replicas(1))
	c.condition("web", rc.InsufficientNodes, true, rc.TakeNone+"left out by the scheduler: 2")
	k.set(func() {
		k.eligible = nil
		k.answer = func([]scheduler.Allocation) []scheduler.Allocation { return nil }
	})
	c.ring("web")
	c.condition("web", rc.InsufficientNodes, true, rc.TakeNone+"not given by the scheduler: 2")
}

// A static controller keeps its nodes. Nothing is allocated or deallocated because a node does not match any more.
func TestAStaticControllerKeepsItsAllocations(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", map[string]string{"rack": "a"}, nil)
	k := newKeeper()
	reg, _ := c.bookedFarm("f1", k, &recorder{}, &faulty{})
	c.apply("web", testManifest("web", 0),
		func(r *rc.RC) { r.Strategy, r.NodeSelector = rc.Static, "rack=a"; replicas(1)(r) })
	c.converged("web", 1)
	c.node("n2", map[string]string{"rack": "a"}, nil)
	asked := k.count("allocate")
	passes, _ := valueOf(t, reg, "rcfarm_farm_passes_total", "ok")
	c.relabel("n1", "rack", "b")
	metric(t, reg, "rcfarm_farm_passes_total", "ok", func(v float64) bool { return v > passes })
	c.ring("web")
	metric(t, reg, "rcfarm_farm_passes_total", "ok", func(v float64) bool { return v > passes+1 })
	c.inBooks(k, "web")
	if k.count("allocate") != asked || k.count("deallocate") != 0 {
		t.Errorf("%d allocations, %d deallocations", k.count("allocate")-asked, k.count("deallocate"))
	}
	if on := fmt.Sprint(slices.Collect(maps.Values(c.running("web")))); on != "[[n1]]" {
		t.Errorf("it runs on %s", on)
	}
}

// Replicas that were placed without the scheduler are booked on their nodes.
func TestReplicasPlacedWithoutTheSchedulerAreBooked(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.node("n2", nil, nil)
	stop := c.farm("f1")
	c.apply("web", testManifest("web", 8080), replicas(2))
	c.converged("web", 2)
	before := c.running("web")
	stop()
	k := newKeeper()
	c.bookedFarm("f2", k, &recorder{}, &faulty{})
	c.inBooks(k, "web")
	c.converged("web", 2)
	if now := c.running("web"); !maps.EqualFunc(now, before, slices.Equal[[]string]) {
		t.Errorf("they ran on %v, now on %v", before, now)
	}
}

// A scheduler that never answers delays only the placing of pods, and is not asked by all workers at once.
func TestAHangingSchedulerDelaysOnlyPlacing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	h := &hanging{keeper: newKeeper()}
	c.bookedFarm("f1", h, &recorder{}, &faulty{})
	for i := range 20 {
		c.apply(fmt.Sprintf("rc%d", i), testManifest("web", 0), replicas(1))
	}
	for i := range 20 {
		c.condition(fmt.Sprintf("rc%d", i), rc.SchedulerFailing, true, "no answer within")
	}
	if n := h.count("eligible"); n > 10 {
		t.Errorf("%d passes waited for the scheduler; want those of the workers and a few", n)
	}
}

// hanging answers when its caller stops waiting.
type hanging struct{ *keeper }

func (h *hanging) EligibleNodes(ctx context.Context, _ *scheduler.View) ([]string, scheduler.Reasons, error) {
	h.set(func() { h.calls["eligible"]++ })
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

// ordered names the nodes in its own order and keeps no books.
type ordered struct {
	scheduler.NoBooks
	names []string
}

func (o ordered) EligibleNodes(context.Context, *scheduler.View) ([]string, scheduler.Reasons, error) {
	return o.names, nil, nil
}

// The node that a scheduler names first is used first, even if pods run there already, because the scheduler may want
// to pack.
func TestTheOrderOfASchedulerIsFollowed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		c.node(name, nil, nil)
	}
	c.bookedFarm("f1", ordered{names: []string{"n3", "n1", "n2"}}, &recorder{}, &faulty{})
	for _, id := range []string{"first", "second", "third"} {
		c.apply(id, testManifest(id, 0), replicas(2))
		c.converged(id, 2)
		on := map[string]int{}
		for _, names := range c.running(id) {
			for _, name := range names {
				on[name]++
			}
		}
		if on["n3"] != 1 || on["n1"] != 1 || on["n2"] != 0 {
			t.Errorf("%s runs on %v", id, on)
		}
	}
}

// A required skew holds between the groups of nodes that the selector matches. It does not matter which nodes a
// scheduler names, and whether it keeps books.
func TestARequiredSkewIsHeldWhateverASchedulerNames(t *testing.T) {
	t.Parallel()
	booked := newKeeper()
	booked.eligible = []string{"a0", "a1", "a2"}
	for name, k := range map[string]scheduler.Scheduler{
		"without books": ordered{names: []string{"a0", "a1", "a2"}},
		"with books":    booked,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			for i := range 3 {
				c.node(fmt.Sprintf("a%d", i), map[string]string{"rack": "a"}, nil)
				c.node(fmt.Sprintf("b%d", i), map[string]string{"rack": "b"}, nil)
			}
			c.bookedFarm("f1", k, &recorder{}, &faulty{})
			c.apply("web", testManifest("web", 0), func(r *rc.RC) {
				replicas(3)(r)
				r.Spread = rc.Spread{Label: "rack", Skew: 1, When: rc.Require}
			})
			c.condition("web", rc.InsufficientNodes, true, "spread:")
			c.statusOf("web", func(st *rc.Status) bool { return st.Available == 1 })
			if got := c.running("web"); len(got) != 1 {
				t.Errorf("a skew of 1 is required, and %v run, all in rack a", got)
			}
		})
	}
}

// When pods are booked again, a scheduler with books gets what the pods of each group take.
func TestBooksGetWhatEachGroupTakes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.node("n2", nil, nil)
	k := newKeeper()
	_, stop := c.bookedFarm("f1", k, &recorder{}, &faulty{})
	large := testManifest("web", 0)
	large.Launchables[0].Resources = manifest.Resources{CPU: 700}
	c.apply("web", large, replicas(0)) // writes the manifest
	digest := c.record("web").ManifestDigest
	c.apply("web", testManifest("web", 0), func(r *rc.RC) {
		one := 1
		r.ReplicaGroups = []rc.ReplicaGroup{
			{Role: "small", Count: &one},
			{Role: "large", Count: &one, Resources: &large.Launchables[0].Resources},
		}
		r.GroupManifests = map[string]string{"large": digest}
	})
	c.converged("web", 2)
	stop()
	k.set(func() { clear(k.allocations); clear(k.cpuAsked) })
	c.bookedFarm("f2", k, &recorder{}, &faulty{})
	c.inBooks(k, "web")
	k.mu.Lock()
	defer k.mu.Unlock()
	if want := map[string]int64{"small": 0, "large": 700}; !maps.Equal(k.cpuAsked, want) {
		t.Errorf("the scheduler got %v thousandths of a core, want %v", k.cpuAsked, want)
	}
}

// A scheduler in another process works like a scheduler in the farm. While it is away or its answer cannot be read, no
// pod is placed, and a condition reports this. Running pods are left alone. When the scheduler is back, the other pods
// are placed.
func TestARemoteSchedulerMayBeAway(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		scheduler scheduler.Scheduler
		away      http.HandlerFunc
		says      string
	}{
		"with books": {newKeeper(), func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "not today", http.StatusBadGateway)
		}, "answered 502 Bad Gateway: not today"},
		"without books": {
			ordered{names: []string{"n9", "n2", "n1", "n0"}},
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{") },
			"the answer cannot be read",
		},
		"cut off": {new(scheduler.ByLabel), func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			for i := range 3 {
				c.node(fmt.Sprintf("n%d", i), nil, nil)
			}
			var away atomic.Bool
			handler := remote.Handler(tt.scheduler)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if away.Load() {
					tt.away(w, r)
					return
				}
				handler.ServeHTTP(w, r)
			}))
			defer server.Close()
			asks, err := remote.New(remote.Config{URL: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			defer asks.Close()
			_, stop := c.bookedFarm("f1", asks, &recorder{}, &faulty{})
			defer stop() // the farm stops before the server
			c.apply("web", testManifest("web", 0), replicas(1))
			c.converged("web", 1)
			before := c.running("web")
			away.Store(true)
			c.apply("web", testManifest("web", 0), replicas(3))
			c.condition("web", rc.SchedulerFailing, true, "2 of 3 replicas have no node: the scheduler: ")
			c.condition("web", rc.SchedulerFailing, true, tt.says)
			k, keeps := tt.scheduler.(*keeper)
			if keeps {
				k.set(func() { clear(k.allocations) }) // the scheduler starts again, with nothing in its books
			}
			if now := c.running("web"); !maps.EqualFunc(now, before, slices.Equal[[]string]) {
				t.Errorf("the pods ran on %v, and while the scheduler is away on %v", before, now)
			}
			away.Store(false)
			c.ring("web")
			c.converged("web", 3)
			c.condition("web", rc.SchedulerFailing, false, "")
			if keeps {
				c.inBooks(k, "web")
			}
			c.apply("web", testManifest("web", 0), func(r *rc.RC) { now := time.Now(); r.DeletedAt = &now })
			c.nothingLeft("web")
		})
	}
}

// A controller whose farm stops using a scheduler with books does not report for ever that the books differ.
func TestBooksThatAreGoneDoNotDiffer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	k := newKeeper()
	_, stop := c.bookedFarm("f1", k, &recorder{}, &faulty{})
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	k.set(func() { k.failing["deallocate"] = errors.New("try later") })
	c.apply("web", testManifest("web", 0), replicas(0))
	c.condition("web", rc.BooksDiffer, true, "n1 is still allocated")
	stop()
	c.farm("f2")
	c.condition("web", rc.BooksDiffer, false, "")
}

// eager is a scheduler with books that names the first node that a replica need not avoid, even if pods run there.
type eager struct {
	*keeper
	avoided [][]string // of each question about web
}

func (e *eager) AllocateNodes(_ context.Context, _ scheduler.Owner, v *scheduler.View,
	wants []scheduler.Want,
) (given []scheduler.Allocation, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	eligible, _ := v.Eligible()
	for _, w := range wants {
		if w.Pod.RCID == "web" {
			e.avoided = append(e.avoided, w.Avoid)
		}
		if i := slices.IndexFunc(eligible,
			func(n scheduler.Node) bool { return !slices.Contains(w.Avoid, n.Name()) }); i >= 0 {
			given = append(given, scheduler.Allocation{Pod: w.Pod, Node: eligible[i].Name()})
		}
	}
	for _, a := range given {
		e.allocations[a] = true
	}
	return given, nil
}

// A scheduler does not know what others have on nodes. So the next question asks it to avoid a node that had no
// capacity.
func TestANodeWithoutRoomIsNotNamedTwiceRunning(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, name := range []string{"n1", "n2"} {
		c.node(name, nil, nil)
	}
	k := &eager{keeper: newKeeper()}
	c.bookedFarm("f1", k, &recorder{}, &faulty{})
	c.apply("first", testManifest("first", 8080), replicas(1))
	c.converged("first", 1)
	c.apply("web", testManifest("web", 8080), replicas(1)) // its port is taken on n1
	consultest.Eventually(t, soon, func() error {
		c.ring("web")
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.avoided) < 2 {
			return fmt.Errorf("the scheduler was asked %d times", len(k.avoided))
		}
		return nil
	})
	k.set(func() {
		if len(k.avoided[0]) != 0 || !slices.Equal(k.avoided[1], []string{"n1"}) {
			t.Errorf("to be avoided: %v", k.avoided)
		}
	})
	if !t.Failed() {
		c.converged("web", 1)
	}
}
