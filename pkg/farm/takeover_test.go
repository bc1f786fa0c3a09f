package farm_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// asking notes for which units a farm asks whether they are locked.
type asking struct {
	*store.FarmSession
	*asked
}

type asked struct {
	mu  sync.Mutex
	ids []string
}

func (a asking) IsLocked(ctx context.Context, id string) (bool, error) {
	a.mu.Lock()
	a.ids = append(a.ids, id)
	a.mu.Unlock()
	return a.FarmSession.IsLocked(ctx, id)
}

// about returns the number of questions about units with a prefix.
func (a *asked) about(prefix string) (times int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range a.ids {
		if strings.HasPrefix(id, prefix) {
			times++
		}
	}
	return times
}

// among returns the number of questions about some units.
func (a *asked) among(some map[string]bool) (times int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range a.ids {
		if some[id] {
			times++
		}
	}
	return times
}

// When a farm ends, the others find the units without an owner in one list of the locks. They do not ask about each
// unit that another farm owns.
func TestTakeOverAsksOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 3 {
		c.node(fmt.Sprintf("n%d", i), nil, nil)
	}
	log, err := obs.NewLogger(testWriter{t}, "warn", "text")
	if err != nil {
		t.Fatal(err)
	}
	start := func(id string) (*asked, func()) {
		a := &asked{}
		client, st := c.connect()
		cfg := c.session("farm", id)
		return a, c.background(func(ctx context.Context) error {
			return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
				return farm.NewFarm(farm.Config{
					ID: id, Store: asking{st.FarmSession(s, id), a}, Log: log, TTL: 500 * time.Millisecond,
					SweepEvery: time.Hour, StableAfter: time.Hour,
				}).Start(ctx)
			})
		})
	}
	first, _ := start("f1")
	second, _ := start("f2")
	_, stop := start("f3")
	consultest.Eventually(t, soon, func() error {
		members, _, err := c.store.Farms.List(t.Context(), store.Default)
		if err == nil && len(members) < 3 {
			err = fmt.Errorf("%d members", len(members))
		}
		return err
	})
	const rcs = 24
	for i := range rcs {
		c.apply(fmt.Sprintf("web-%02d", i), testManifest("web", 0), replicas(1))
	}
	owned := func(n int, by string) func() error {
		return func() error {
			got := 0
			recs, _, err := c.store.Statuses.List(t.Context(), store.Default)
			for _, rec := range recs {
				if rec.Value.Owner != "" && rec.Value.Owner != by {
					got++
				}
			}
			if err == nil && got < n {
				err = fmt.Errorf("%d of %d controllers have another owner than %q", got, n, by)
			}
			return err
		}
	}
	consultest.Eventually(t, soon, owned(rcs, ""))
	// A farm asks about a new unit that it does not own, after the preferred farm has had time to claim it. When each
	// farm has asked about such a unit, both have asked about all earlier units.
	made := rcs
	askedAbout := func(prefix string) {
		t.Helper()
		for i := 0; first.about(prefix) == 0 || second.about(prefix) == 0; i++ {
			c.apply(fmt.Sprintf("%s-%02d", prefix, i), testManifest("new", 0), replicas(1))
			made++
			consultest.Eventually(t, soon, owned(made, ""))
		}
	}
	askedAbout("then")
	stays := map[string]bool{} // units that keep their owner
	recs, _, err := c.store.Statuses.List(t.Context(), store.Default)
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range recs {
		stays[rec.Value.RCID] = rec.Value.Owner != "f3" && strings.HasPrefix(rec.Value.RCID, "web")
	}
	before := first.among(stays) + second.among(stays)
	stop()
	consultest.Eventually(t, soon, owned(made, "f3"))
	askedAbout("new")
	// A report that arrives just then may make a farm ask about a few.
	if more, most := first.among(stays)+second.among(stays)-before, rcs/4; more > most {
		t.Errorf(
			"after a farm had ended, the others asked %d times about controllers of living farms, want at most %d",
			more, most)
	}
}

// claims counts the units whose locks a farm takes together, and the units whose locks it takes alone.
type claims struct {
	*store.FarmSession
	together, alone *atomic.Int32
}

func (c claims) ClaimAll(ctx context.Context, ids []string) (map[string]store.Fence, error) {
	got, err := c.FarmSession.ClaimAll(ctx, ids)
	c.together.Add(int32(len(got)))
	return got, err
}

func (c claims) Claim(ctx context.Context, id string) (store.Claimed, error) {
	c.alone.Add(1)
	return c.FarmSession.Claim(ctx, id)
}

// A farm that takes over many controllers takes their locks together, and then reconciles each of them.
func TestTakeOverTakesManyLocksTogether(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 3 {
		c.node(fmt.Sprintf("n%d", i), nil, nil)
	}
	stop := c.farm("f1")
	const rcs = 150 // more than one transaction takes
	for i := range rcs {
		c.apply(fmt.Sprintf("web-%03d", i), testManifest("web", 0), replicas(0))
	}
	owned := func(by string) func() error {
		return func() error {
			recs, _, err := c.store.Statuses.List(t.Context(), store.Default)
			got := 0
			for _, rec := range recs {
				if rec.Value.Owner == by && rec.Value.Is(rc.Converged) {
					got++
				}
			}
			if err == nil && got < rcs {
				err = fmt.Errorf("%s has %d of %d controllers", by, got, rcs)
			}
			return err
		}
	}
	consultest.Eventually(t, soon, owned("f1"))
	together, alone := new(atomic.Int32), new(atomic.Int32)
	_, _ = c.farmWith("f2", nil, func(session farm.Session) farm.Session {
		return claims{session.(*store.FarmSession), together, alone}
	})
	consultest.Eventually(t, soon, func() error {
		members, _, err := c.store.Farms.List(t.Context(), store.Default)
		if err == nil && len(members) < 2 {
			err = fmt.Errorf("%d members", len(members))
		}
		return err
	})
	c.apply("web-000", testManifest("web", 0), replicas(2))
	stop()
	consultest.Eventually(t, soon, owned("f2"))
	c.converged("web-000", 2)
	// the previous owner releases them one by one, so it depends on the machine how many are free at a time
	if together.Load() < rcs/4 {
		t.Errorf("%d locks were taken together, %d alone", together.Load(), alone.Load())
	}
}
