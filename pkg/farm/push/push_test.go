package push

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nodes take requests as a test wants them to.
type nodes struct {
	mu    sync.Mutex
	taken map[string][]int64 // revisions, by node
	tries map[string]int
	under map[string]int // requests under way, by node
	all   int
	most  int
	takes func(ctx context.Context, node string, try int) error // nil: once gate is closed
	gate  chan struct{}
}

func (n *nodes) send(ctx context.Context, to Target, r scale.Request) error {
	n.mu.Lock()
	n.tries[to.Node]++
	n.under[to.Node]++
	n.all++
	n.most = max(n.most, n.all)
	try, twice := n.tries[to.Node], n.under[to.Node] > 1
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.under[to.Node]--
		n.all--
	}()
	if twice {
		return errors.New("two requests to one node at once")
	}
	if n.takes == nil {
		<-n.gate
	} else if err := n.takes(ctx, to.Node, try); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken[to.Node] = append(n.taken[to.Node], r.Revision)
	return nil
}

// view is what a test may look at while a pusher runs.
type view struct {
	taken         map[string][]int64
	tries         map[string]int
	most          int
	waiting, kept int
}

func look(p *Pusher, n *nodes) view {
	p.mu.Lock()
	defer p.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	return view{maps.Clone(n.taken), maps.Clone(n.tries), n.most, p.waiting, len(p.nodes)}
}

func pushTo(rcID string, lock uint64, revision int64) scale.Request {
	r := scale.New("web", 1)
	r.Epoch, r.Revision = &scale.Epoch{Cluster: "a", RCID: rcID, Term: scale.Term("a", lock)}, revision
	return r
}

// with runs a pusher for as long as do takes.
func with(t *testing.T, takes func(ctx context.Context, node string, try int) error, change func(*Config), do func(t *testing.T, p *Pusher, n *nodes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{taken: map[string][]int64{}, tries: map[string]int{}, under: map[string]int{}, takes: takes, gate: make(chan struct{})}
		cfg := Config{Send: n.send, Log: obs.Discard(), Metrics: NewMetrics(prometheus.NewRegistry())}
		if change != nil {
			change(&cfg)
		}
		p := New(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() {
			if err := p.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		do(t, p, n)
		cancel()
		run.Wait()
		if p.waiting < 0 {
			t.Errorf("%d wait", p.waiting)
		}
	})
}

func after(t *testing.T, d time.Duration) {
	t.Helper()
	if err := wait.Pause(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// What is not sent yet is replaced by what is later, whatever comes last; of each controller the latest is sent.
func TestRequestsAreCoalesced(t *testing.T) {
	t.Parallel()
	with(t, nil, nil, func(t *testing.T, p *Pusher, n *nodes) {
		p.Tell(Target{Node: "n1"}, pushTo("r1", 1, 10))
		after(t, time.Millisecond)
		for _, revision := range []int64{11, 14, 13, 12} {
			p.Tell(Target{Node: "n1"}, pushTo("r1", 1, revision))
		}
		p.Tell(Target{Node: "n1"}, pushTo("r2", 2, 5))
		close(n.gate)
		after(t, time.Second)
		v := look(p, n)
		if got := v.taken["n1"]; len(got) != 3 || got[0] != 10 || !slices.Contains(got, 14) || !slices.Contains(got, 5) || v.waiting != 0 {
			t.Errorf("%v were taken, %d wait", got, v.waiting)
		}
	})
}

// The same revision, handed over while it is under way, is sent again: the node may have read before the write that it is now about. So it is where a farm told what
// was missed, one above its lock, and its next write lands there.
func TestTheSameRevisionIsSentAgain(t *testing.T) {
	t.Parallel()
	with(t, nil, nil, func(t *testing.T, p *Pusher, n *nodes) {
		p.Tell(Target{Node: "n1"}, pushTo("r1", 42, 43))
		after(t, time.Millisecond)
		p.Tell(Target{Node: "n1"}, pushTo("r1", 42, 43))
		close(n.gate)
		after(t, time.Second)
		if v := look(p, n); !slices.Equal(v.taken["n1"], []int64{43, 43}) || v.waiting != 0 {
			t.Errorf("%v were taken, %d wait", v.taken["n1"], v.waiting)
		}
	})
}

// A request of another epoch replaces one that waits, whichever of their names is the higher: a clock may have gone back.
func TestAnotherEpochReplaces(t *testing.T) {
	t.Parallel()
	with(t, nil, nil, func(t *testing.T, p *Pusher, n *nodes) {
		p.Tell(Target{Node: "n1"}, pushTo("r1", 1, 10))
		after(t, time.Millisecond)
		later := pushTo("r1", 1, 30)
		later.Epoch.Cluster, later.Epoch.Term = "b", scale.Term("b", 9)
		p.Tell(Target{Node: "n1"}, later)
		p.Tell(Target{Node: "n1"}, pushTo("r1", 1, 20))
		close(n.gate)
		after(t, time.Second)
		if got := look(p, n).taken["n1"]; !slices.Equal(got, []int64{10, 20}) {
			t.Errorf("%v were taken", got)
		}
	})
}

// A node that does not answer holds up no other, and no more requests are under way than may be.
func TestADeadNodeHoldsUpNobody(t *testing.T) {
	t.Parallel()
	slow := func(ctx context.Context, node string, _ int) error {
		if node == "dead" {
			<-ctx.Done()
			return ctx.Err()
		}
		return wait.Pause(ctx, 10*time.Millisecond)
	}
	with(t, slow, func(c *Config) { c.AtOnce = 4 }, func(t *testing.T, p *Pusher, n *nodes) {
		for i := range 100 {
			p.Tell(Target{Node: "dead"}, pushTo(fmt.Sprint(i), 1, 10))
		}
		for i := range 100 {
			p.Tell(Target{Node: fmt.Sprint(i)}, pushTo("r1", 1, 10))
		}
		after(t, time.Second)
		if v := look(p, n); len(v.taken) != 100 || v.most != 4 || v.tries["dead"] != 1 {
			t.Errorf("%d nodes were told with %d requests at once; the dead one was tried %d times", len(v.taken), v.most, v.tries["dead"])
		}
		after(t, 10*time.Second)
		if u := p.Unreachable(); len(u) != 1 || u[0].Node != "dead" || u[0].Reason == "" {
			t.Errorf("unreachable: %+v", u)
		}
	})
}

// Whoever could not be told waits until all others were.
func TestWhoFailsComesLast(t *testing.T) {
	t.Parallel()
	takes := func(ctx context.Context, node string, try int) error {
		if node == "dead" && try == 1 {
			return errors.New("no route")
		}
		return wait.Pause(ctx, 100*time.Millisecond)
	}
	with(t, takes, func(c *Config) { c.AtOnce = 1 }, func(t *testing.T, p *Pusher, n *nodes) {
		p.Tell(Target{Node: "dead"}, pushTo("r1", 1, 10))
		after(t, time.Millisecond)
		for i := range 20 {
			p.Tell(Target{Node: fmt.Sprint(i)}, pushTo("r1", 1, 10))
		}
		after(t, 1900*time.Millisecond)
		if v := look(p, n); len(v.taken) != 19 || v.tries["dead"] != 1 {
			t.Errorf("%d nodes were told, the dead one was tried %d times", len(v.taken), v.tries["dead"])
		}
		after(t, time.Second)
		if v := look(p, n); len(v.taken) != 21 || v.waiting != 0 || v.kept != 0 {
			t.Errorf("%d nodes were told, %d wait, %d are kept", len(v.taken), v.waiting, v.kept)
		}
	})
}

// What fails is tried again, more and more rarely, until it is taken; a node that has heard of something later is told nothing more.
func TestRequestsAreTriedAgain(t *testing.T) {
	t.Parallel()
	fails := func(_ context.Context, node string, try int) error {
		switch {
		case node == "later":
			return fmt.Errorf("%w: 409", ErrOutdated)
		case try < 5:
			return errors.New("connection refused")
		}
		return nil
	}
	with(t, fails, nil, func(t *testing.T, p *Pusher, n *nodes) {
		p.Tell(Target{Node: "n1"}, pushTo("r1", 1, 10))
		p.Tell(Target{Node: "later"}, pushTo("r1", 1, 10))
		after(t, time.Second)
		m := p.cfg.Metrics
		if n := testutil.ToFloat64(m.unreachable); len(p.Unreachable()) != 1 || n != 1 {
			t.Errorf("unreachable: %+v, counted %v", p.Unreachable(), n)
		}
		after(t, time.Minute)
		if v := look(p, n); v.tries["n1"] != 5 || v.tries["later"] != 1 || len(p.Unreachable()) != 0 || v.waiting != 0 {
			t.Errorf("%+v, unreachable %+v", v, p.Unreachable())
		}
		for o, want := range map[outcome]float64{taken: 1, outdated: 1, failed: 4, expired: 0, dropped: 0} {
			if n := testutil.ToFloat64(m.sent.WithLabelValues(string(o))); n != want {
				t.Errorf("%s: %v, want %v", o, n, want)
			}
		}
		if n := testutil.ToFloat64(m.unreachable); n != 0 {
			t.Errorf("counted as unreachable: %v", n)
		}
	})
}

// Requests are given up when the node has read by itself. It is named for a while longer, and forgotten then. A new address is tried at once.
func TestRequestsAreGivenUp(t *testing.T) {
	t.Parallel()
	with(t, func(context.Context, string, int) error { return errors.New("no route") }, nil, func(t *testing.T, p *Pusher, n *nodes) {
		p.Tell(Target{Node: "n1"}, pushTo("r1", 1, 10))
		after(t, 3*time.Minute)
		v := look(p, n)
		tries := v.tries["n1"]
		if v.waiting != 0 || tries < 6 || tries > 20 || len(p.Unreachable()) != 1 {
			t.Errorf("%d wait after %d tries, unreachable %+v", v.waiting, tries, p.Unreachable())
		}
		p.Tell(Target{Node: "n1", API: "https://elsewhere"}, pushTo("r1", 1, 11))
		after(t, time.Millisecond)
		if v = look(p, n); v.tries["n1"] != tries+1 {
			t.Errorf("%d tries, before there were %d", v.tries["n1"], tries)
		}
		after(t, 20*time.Minute)
		if v = look(p, n); v.kept != 0 || len(p.Unreachable()) != 0 {
			t.Errorf("remembered: %+v", p.Unreachable())
		}
	})
}

// The queue is bounded; what is there can still be replaced.
func TestTheQueueIsBounded(t *testing.T) {
	t.Parallel()
	with(t, nil, func(c *Config) { c.Most, c.AtOnce = 10, 1 }, func(t *testing.T, p *Pusher, n *nodes) {
		for i := range 100 {
			p.Tell(Target{Node: fmt.Sprint("n", i%5)}, pushTo(fmt.Sprint(i), 1, 10))
		}
		if v := look(p, n); v.waiting != 10 {
			t.Errorf("%d wait", v.waiting)
		}
		p.Tell(Target{Node: "n0"}, pushTo("0", 1, 11))
		close(n.gate)
		after(t, time.Second)
		v, told := look(p, n), 0
		for _, of := range v.taken {
			told += len(of)
		}
		if v.waiting != 0 || told < 10 || !slices.Contains(v.taken["n0"], 11) {
			t.Errorf("%d wait, %d told: %v", v.waiting, told, v.taken)
		}
	})
}

// A node's address may change while something is sent to it.
func TestAnAddressChangesMeanwhile(t *testing.T) {
	t.Parallel()
	fails := func(context.Context, string, int) error { return errors.New("no route") }
	with(t, fails, func(c *Config) { c.RetryMin, c.RetryMax = time.Millisecond, time.Millisecond }, func(t *testing.T, p *Pusher, n *nodes) {
		var tells sync.WaitGroup
		for i := range 4 {
			tells.Go(func() {
				for revision := range int64(500) {
					p.Tell(Target{Node: "n1", API: fmt.Sprint("https://", i)}, pushTo("r1", 1, revision))
				}
			})
		}
		tells.Wait()
		after(t, time.Second)
		if v := look(p, n); v.tries["n1"] == 0 || v.waiting != 1 {
			t.Errorf("%d tries, %d wait", v.tries["n1"], v.waiting)
		}
	})
}

// BenchmarkTell has so many nodes told of one thing each.
func BenchmarkTell(b *testing.B) {
	for _, nodes := range []int{100, 10_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			for b.Loop() {
				var left sync.WaitGroup
				left.Add(nodes)
				send := func(context.Context, Target, scale.Request) error { left.Done(); return nil }
				p := New(Config{Send: send, Log: obs.Discard(), Metrics: NewMetrics(prometheus.NewRegistry())})
				ctx, cancel := context.WithCancel(context.Background())
				for i := range nodes {
					p.Tell(Target{Node: fmt.Sprint(i)}, pushTo("r1", 1, 10))
				}
				var run sync.WaitGroup
				run.Go(func() { _ = p.Run(ctx) })
				left.Wait()
				cancel()
				run.Wait()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*nodes), "us/node")
		})
	}
}
