package farm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// faulty is a session with hooks; each may be nil.
type faulty struct {
	farm.Session
	readHead func(rcID string) error
	commit   func(*store.Batch) error
	join     func() error
	bump     func() error
	finish   func() error
	claim    func(rcID string)
	orphans  func(complete bool, err error) (bool, error) // changes the result of a read of a node's orphans
	agents   atomic.Pointer[map[string]bool]              // names of failed agents; nil: Consul answers
	answers  *answers                                     // instead of agents
	reads    func(store.Level)                            // of realities
	wanted   func(w store.Wanted)
	hidden   atomic.Bool  // transactions do not show placements, as if ACL rules hid them
	looks    atomic.Int32 // at units while placements are hidden
}

func (f *faulty) ReadDetails(ctx context.Context, w store.Wanted, level store.Level) (store.Details, error) {
	if f.reads != nil && len(w.Realities) > 0 {
		f.reads(level)
	}
	if f.wanted != nil {
		f.wanted(w)
	}
	return f.Session.ReadDetails(ctx, w, level)
}

func (f *faulty) Bump(ctx context.Context, fence store.Fence) (store.Fence, error) {
	if f.bump != nil {
		if err := f.bump(); err != nil {
			return store.Fence{}, err
		}
	}
	return f.Session.Bump(ctx, fence)
}

func (f *faulty) Finish(ctx context.Context, fence store.Fence, rec store.Rec[rc.RC], bell, schemaIndex uint64,
	a store.Audit,
) error {
	if f.finish != nil {
		if err := f.finish(); err != nil {
			return err
		}
	}
	return f.Session.Finish(ctx, fence, rec, bell, schemaIndex, a)
}

func (f *faulty) Claim(ctx context.Context, rcID string) (store.Claimed, error) {
	if f.claim != nil {
		f.claim(rcID)
	}
	return f.Session.Claim(ctx, rcID)
}

func (f *faulty) NodeOrphans(ctx context.Context, name string) (store.Rec[node.Node], bool, error) {
	rec, complete, err := f.Session.NodeOrphans(ctx, name)
	if f.orphans != nil {
		complete, err = f.orphans(complete, err)
	}
	return rec, complete, err
}

func (f *faulty) FailedAgents(ctx context.Context) (map[string]bool, error) {
	if f.answers != nil {
		return f.answers.answer(), nil
	}
	if failed := f.agents.Load(); failed != nil {
		return *failed, nil
	}
	return f.Session.FailedAgents(ctx)
}

// LivingAgents returns no agent if the test fakes which agents have failed.
func (f *faulty) LivingAgents(ctx context.Context, agents []string) (map[string]bool, error) {
	if f.answers != nil || f.agents.Load() != nil {
		return nil, nil
	}
	return f.Session.LivingAgents(ctx, agents)
}

func (f *faulty) Join(ctx context.Context, m store.Member) error {
	if f.join != nil {
		if err := f.join(); err != nil {
			return err
		}
	}
	return f.Session.Join(ctx, m)
}

func (f *faulty) ReadUnit(ctx context.Context, unit string, level store.Level) (store.Unit, error) {
	if f.readHead != nil {
		if err := f.readHead(unit); err != nil {
			return store.Unit{}, err
		}
	}
	now, err := f.Session.ReadUnit(ctx, unit, level)
	if f.hidden.Load() {
		for _, h := range now.Heads {
			h.Placements = nil
		}
		f.looks.Add(1)
	}
	return now, err
}

func (f *faulty) Commit(ctx context.Context, b *store.Batch) error {
	if f.commit != nil {
		if err := f.commit(b); err != nil {
			return err
		}
	}
	return f.Session.Commit(ctx, b)
}

// faultyFarm runs a farm with faults and with a scheduler of the test.
func (c *cluster) faultyFarm(id string, faults *faulty, sched scheduler.Scheduler) (stop func()) {
	log, err := obs.NewLogger(testWriter{c.t}, "info", "text")
	if err != nil {
		c.t.Fatal(err)
	}
	client, st := c.connect()
	cfg := c.session("farm", id)
	return c.background(func(ctx context.Context) error {
		return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
			faults.Session = st.FarmSession(s, id)
			return farm.NewFarm(farm.Config{
				ID: id, Store: faults, Log: log, TTL: 500 * time.Millisecond, SweepEvery: time.Second,
				Scheduler: sched, StableAfter: time.Hour,
			}).Start(ctx)
		})
	})
}

func (c *cluster) short(id string) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		st, err := c.store.Statuses.Get(c.t.Context(), store.Default, id)
		if err == nil && !st.Value.Is(rc.InsufficientNodes) {
			err = fmt.Errorf("status %+v", st.Value)
		}
		return err
	})
}

// A controller that lacks nodes uses the capacity that another controller frees, although no watch shows the change.
func TestAShortControllerFindsCapacityThatAnotherFreed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.faultyFarm("f1", &faulty{}, nil)
	c.apply("first", testManifest("web", 8080), replicas(1))
	c.converged("first", 1)
	c.apply("second", testManifest("web", 8080), replicas(1))
	c.short("second")
	c.apply("first", testManifest("web", 8080), replicas(0))
	c.converged("first", 0)
	c.converged("second", 1)
}

// late is the built-in scheduler. It first calls before, and then answers from what the pass has read.
type late struct {
	scheduler.ByLabel
	before func()
}

func (l *late) EligibleNodes(ctx context.Context, v *scheduler.View) ([]string, scheduler.Reasons, error) {
	l.before()
	return l.ByLabel.EligibleNodes(ctx, v)
}

// A controller notices a node that joins during its pass.
func TestANodeThatJoinsDuringAPassIsNotMissed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	var once sync.Once
	c.faultyFarm("f1", &faulty{}, &late{before: func() {
		placements, _, _ := c.store.Pods.List(context.Background(), store.Consistent, "web")
		if len(placements) == 1 {
			once.Do(func() {
				c.node("n2", nil, nil)
				elapse(time.Second) // long enough for the farm's watch of nodes, which has no other visible effect
			})
		}
	}})
	c.apply("web", testManifest("web", 8080), replicas(1))
	c.converged("web", 1)
	c.apply("web", testManifest("web", 8080), replicas(2))
	c.converged("web", 2)
}

// A sweep gives a bell and an owner to a controller without a bell (R4). There is such a controller, for example, if
// people write records back by hand after a wipe. Only a sweep finds it.
func TestASweepFindsAControllerWithoutABell(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.apply("web", testManifest("web", 0), replicas(1))
	bell := c.store.Keys().Bells.Key("web")
	c.remove(bell)
	c.farm("f1")
	c.converged("web", 1)
	if _, err := c.client.Get(t.Context(), bell, consul.Consistent); err != nil {
		t.Errorf("it has no bell: %v", err)
	}
}

// A read may wrongly find no controller, because Consul's leader is stale. Then the farm must not leave a lock behind
// under which no farm works (R4).
func TestAControllerThatSeemedGoneIsNotForgotten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	var mu sync.Mutex
	gone := false
	c.faultyFarm("f1", &faulty{readHead: func(string) error {
		mu.Lock()
		defer mu.Unlock()
		if gone {
			gone = false
			return store.ErrNotFound
		}
		return nil
	}}, nil)
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	mu.Lock()
	gone = true
	mu.Unlock()
	if err := c.store.Ring(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, soon, func() error {
		mu.Lock()
		defer mu.Unlock()
		if gone {
			return errors.New("not looked at yet")
		}
		return nil
	})
	elapse(3 * time.Second) // two sweeps, which have no visible effect if all is well
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
}

// An unreadable reservation keeps pods from its node, and delays nothing else.
func TestAnUnreadableReservationConcernsItsNodeOnly(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.node("n2", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	var bad string
	for id, on := range c.running("web") {
		if id.Index == 1 {
			bad = on[0]
		}
	}
	if _, err := c.client.Commit(t.Context(),
		[]consul.Op{consul.Set(c.store.Keys().Reservations.Key(bad), []byte("{"))}); err != nil {
		t.Fatal(err)
	}
	c.apply("web", testManifest("web", 0), replicas(1)) // a stop, then a removal that cannot release its share
	consultest.Eventually(t, soon, func() error {
		if n := len(c.running("web")); n != 1 {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
	c.apply("web", testManifest("web", 0), func(r *rc.RC) { replicas(4)(r); five := 5; r.MaxSurge = &five })
	consultest.Eventually(t, soon, func() error {
		st, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
		if err != nil {
			return err
		}
		if n := len(c.running("web")); n != 4 || !strings.Contains(st.Value.LastError, "reservations/"+bad) {
			return fmt.Errorf("%d run; status %+v", n, st.Value)
		}
		return nil
	})
}

// A fault that only a resync can see is mended, although the first try did not land.
func TestAResyncIsRepeatedUntilItIsDone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	stop := c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	stop()
	placements, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
	if err != nil || len(placements) != 1 {
		t.Fatal(placements, err)
	}
	// The intent differs from the placement; the node's report matches the intent.
	in := placements[0].Value.Intent()
	in.Labels = map[string]string{}
	p := placements[0].Value
	p.Revision += 5
	if _, err := c.client.Commit(t.Context(), []consul.Op{
		consul.Set(c.store.Keys().Pods.Key(p.Identity.String()), mustJSON(t, p)),
	}); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		err := error(nil)
		if len(b.Intents) > 0 {
			once.Do(func() { err = fmt.Errorf("conflict: %w", store.ErrRefused) })
		}
		return err
	}}, nil)
	consultest.Eventually(t, soon, func() error {
		placements, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
		if err != nil {
			return err
		}
		got, ok := c.nodes["n1"].Running()[p.Identity]
		if !ok || got.Revision != placements[0].Value.Revision {
			return fmt.Errorf("the intent has revision %d, the placement %d", got.Revision,
				placements[0].Value.Revision)
		}
		return nil
	})
}

// In the first pass after a claim, the farm also reads the reports consistently. A stale leader of Consul would show
// pods as they were under the previous owner.
func TestTheFirstReadAfterAClaimIsConsistent(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	stop := c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	stop()
	var mu sync.Mutex
	var reads []bool
	c.faultyFarm("f2", &faulty{reads: func(level store.Level) {
		mu.Lock()
		defer mu.Unlock()
		reads = append(reads, level == store.Consistent)
	}}, nil)
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	// Later reads need not be consistent. A farm that loses its session begins again with consistent reads, so any
	// later read may be the one that is not.
	consultest.Eventually(t, soon, func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(reads) == 0 || !reads[0] || !slices.Contains(reads, false) {
			return fmt.Errorf("realities were read consistently: %v; want the first, and not all", reads)
		}
		return nil
	})
}

// A placement that was copied to the key of another replica is reported, and changes nothing.
func TestACopiedPlacementIsNotActedOn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	reg, _ := c.watchedFarm("f1", &recorder{})
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	placements, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
	if err != nil || len(placements) != 1 {
		t.Fatal(placements, err)
	}
	stray := c.store.Keys().Pods.Key(pod.Identity{RCID: "web", Role: "main", Index: 5}.String())
	if _, err := c.client.Commit(t.Context(),
		[]consul.Op{consul.Set(stray, mustJSON(t, placements[0].Value))}); err != nil {
		t.Fatal(err)
	}
	if err := c.store.Ring(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	metric(t, reg, "rcfarm_farm_corrupt_records", "", is(1))
	if n := len(c.running("web")); n != 1 {
		t.Errorf("%d pods run", n)
	}
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(stray)}); err != nil {
		t.Fatal(err)
	}
	metric(t, reg, "rcfarm_farm_corrupt_records", "", is(0))
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
}

// A deleted controller whose placements cannot be seen keeps its records, because its pods would run on and no farm
// would stop them.
func TestADeletedControllerWithHiddenPlacementsIsNotForgotten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	faults := &faulty{}
	c.faultyFarm("f1", faults, nil)
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	faults.hidden.Store(true)
	c.apply("web", testManifest("web", 0), func(r *rc.RC) { now := time.Now(); r.DeletedAt = &now })
	consultest.Eventually(t, soon, func() error {
		if n := faults.looks.Load(); n < 4 {
			return fmt.Errorf("%d looks", n)
		}
		return nil
	})
	if rec, err := c.store.RCs.Get(t.Context(), store.Consistent, "web"); err != nil || rec.Value.DeletedAt == nil {
		t.Errorf("the record is %+v, %v", rec, err)
	}
	faults.hidden.Store(false)
	c.nothingLeft("web")
	if on := c.running("web"); len(on) != 0 {
		t.Errorf("still running: %v", on)
	}
}

// A farm that cannot join leaves no goroutine running.
func TestAFarmThatCannotJoinLeaksNothing(t *testing.T) {
	log, err := obs.NewLogger(testWriter{t}, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	for range 50 {
		f := farm.NewFarm(farm.Config{
			ID: "f", Store: &faulty{join: func() error { return errors.New("held") }},
			Log: log,
		})
		if err := f.Start(t.Context()); err == nil {
			t.Fatal("joined")
		}
	}
	consultest.Eventually(t, soon, func() error {
		if after := runtime.NumGoroutine(); after > before+10 {
			return fmt.Errorf("%d goroutines before, %d after 50 farms", before, after)
		}
		return nil
	})
}

// elapse waits for something that has no visible effect.
func elapse(d time.Duration) { <-time.After(d) }

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
