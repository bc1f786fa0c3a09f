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

// nodes accept requests as a test asks.
type nodes struct {
	mu    sync.Mutex
	got   map[string][]int64 // accepted revisions, by node
	tries map[string]int
	under map[string]int // requests under way, by node
	all   int
	most  int
	takes func(ctx context.Context, node string, try int) error // nil: accept after gate is closed
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
		return errors.New("two requests to one node at the same time")
	}
	if n.takes == nil {
		<-n.gate
	} else if err := n.takes(ctx, to.Node, try); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got[to.Node] = append(n.got[to.Node], r.Revision)
	return nil
}

// view is a copy of what a test looks at while a pusher runs.
type view struct {
	got           map[string][]int64
	tries         map[string]int
	most          int
	waiting, kept int
}

func look(p *Pusher, n *nodes) view {
	p.mu.Lock()
	defer p.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	return view{maps.Clone(n.got), maps.Clone(n.tries), n.most, p.waiting, len(p.nodes)}
}

func pushTo(rcID string, lock uint64, revision int64) scale.Request {
	r := scale.New("web", 1)
	r.Epoch, r.Revision = &scale.Epoch{Cluster: "a", RCID: rcID, Term: scale.Term("a", lock)}, revision
	return r
}

// withPusher runs a pusher while do runs.
func withPusher(
	t *testing.T, takes func(ctx context.Context, node string, try int) error, change func(*Config),
	do func(t *testing.T, p *Pusher, n *nodes),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{
			got: map[string][]int64{}, tries: map[string]int{}, under: map[string]int{}, takes: takes,
			gate: make(chan struct{}),
		}
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
			t.Errorf("%d requests wait", p.waiting)
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

// If several requests about a controller wait, only the request with the highest revision is sent.
func TestOnlyTheLatestRequestOfAControllerIsSent(t *testing.T) {
	t.Parallel()
	withPusher(t, nil, nil, func(t *testing.T, p *Pusher, n *nodes) {
		p.Push(Target{Node: "n1"}, pushTo("r1", 1, 10))
		after(t, time.Millisecond)
		for _, revision := range []int64{11, 14, 13, 12} {
			p.Push(Target{Node: "n1"}, pushTo("r1", 1, revision))
		}
		p.Push(Target{Node: "n1"}, pushTo("r2", 2, 5))
		close(n.gate)
		after(t, time.Second)
		v := look(p, n)
		got := slices.Clone(v.got["n1"])
		if len(got) == 3 {
			slices.Sort(got[1:]) // the two controllers may come in any order
		}
		if !slices.Equal(got, []int64{10, 5, 14}) || v.waiting != 0 {
			t.Errorf("accepted %v, %d wait", got, v.waiting)
		}
	})
}

// The same revision is sent again if it is handed over while it is under way, because the node may have read its
// intents before the write. This happens after a farm has pushed one revision above its lock at takeover, and its next
// write has the same revision.
func TestTheSameRevisionIsSentAgain(t *testing.T) {
	t.Parallel()
	withPusher(t, nil, nil, func(t *testing.T, p *Pusher, n *nodes) {
		p.Push(Target{Node: "n1"}, pushTo("r1", 42, 43))
		after(t, time.Millisecond)
		p.Push(Target{Node: "n1"}, pushTo("r1", 42, 43))
		close(n.gate)
		after(t, time.Second)
		if v := look(p, n); !slices.Equal(v.got["n1"], []int64{43, 43}) || v.waiting != 0 {
			t.Errorf("accepted %v, %d wait", v.got["n1"], v.waiting)
		}
	})
}

// A request of another epoch replaces a waiting request, even if the new epoch sorts lower, because a clock may have
// gone back.
func TestARequestOfAnotherEpochReplacesAWaitingOne(t *testing.T) {
	t.Parallel()
	withPusher(t, nil, nil, func(t *testing.T, p *Pusher, n *nodes) {
		p.Push(Target{Node: "n1"}, pushTo("r1", 1, 10))
		after(t, time.Millisecond)
		later := pushTo("r1", 1, 30)
		later.Epoch.Cluster, later.Epoch.Term = "b", scale.Term("b", 9)
		p.Push(Target{Node: "n1"}, later)
		p.Push(Target{Node: "n1"}, pushTo("r1", 1, 20))
		close(n.gate)
		after(t, time.Second)
		if got := look(p, n).got["n1"]; !slices.Equal(got, []int64{10, 20}) {
			t.Errorf("accepted %v", got)
		}
	})
}

// A node that does not answer delays no other node. At most AtOnce requests are under way.
func TestADeadNodeDelaysNoOtherNode(t *testing.T) {
	t.Parallel()
	slow := func(ctx context.Context, node string, _ int) error {
		if node == "dead" {
			<-ctx.Done()
			return ctx.Err()
		}
		return wait.Pause(ctx, 10*time.Millisecond)
	}
	withPusher(t, slow, func(c *Config) { c.AtOnce = 4 }, func(t *testing.T, p *Pusher, n *nodes) {
		for i := range 100 {
			p.Push(Target{Node: "dead"}, pushTo(fmt.Sprint(i), 1, 10))
		}
		for i := range 100 {
			p.Push(Target{Node: fmt.Sprint(i)}, pushTo("r1", 1, 10))
		}
		after(t, time.Second)
		if v := look(p, n); len(v.got) != 100 || v.most != 4 || v.tries["dead"] != 1 {
			t.Errorf("%d nodes accepted, with %d requests at a time; the dead node was tried %d times",
				len(v.got), v.most, v.tries["dead"])
		}
		after(t, 10*time.Second)
		if u := p.Unreachable(); len(u) != 1 || u[0].Node != "dead" || u[0].Reason == "" {
			t.Errorf("unreachable: %+v", u)
		}
	})
}

// A node whose last request failed comes after all others.
func TestAFailingNodeComesLast(t *testing.T) {
	t.Parallel()
	takes := func(ctx context.Context, node string, try int) error {
		if node == "dead" && try == 1 {
			return errors.New("no route")
		}
		return wait.Pause(ctx, 100*time.Millisecond)
	}
	withPusher(t, takes, func(c *Config) { c.AtOnce = 1 }, func(t *testing.T, p *Pusher, n *nodes) {
		p.Push(Target{Node: "dead"}, pushTo("r1", 1, 10))
		after(t, time.Millisecond)
		for i := range 20 {
			p.Push(Target{Node: fmt.Sprint(i)}, pushTo("r1", 1, 10))
		}
		after(t, 1900*time.Millisecond)
		if v := look(p, n); len(v.got) != 19 || v.tries["dead"] != 1 {
			t.Errorf("%d nodes accepted, the dead node was tried %d times", len(v.got), v.tries["dead"])
		}
		after(t, time.Second)
		if v := look(p, n); len(v.got) != 21 || v.waiting != 0 || v.kept != 0 {
			t.Errorf("%d nodes accepted, %d requests wait, %d nodes are remembered", len(v.got), v.waiting, v.kept)
		}
	})
}

// A request that fails is tried again at growing intervals until it is accepted. An outdated request is not tried
// again.
func TestAFailedRequestIsTriedAgain(t *testing.T) {
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
	withPusher(t, fails, nil, func(t *testing.T, p *Pusher, n *nodes) {
		p.Push(Target{Node: "n1"}, pushTo("r1", 1, 10))
		p.Push(Target{Node: "later"}, pushTo("r1", 1, 10))
		after(t, time.Second)
		m := p.cfg.Metrics
		if n := testutil.ToFloat64(m.unreachable); len(p.Unreachable()) != 1 || n != 1 {
			t.Errorf("unreachable: %+v, counted %v", p.Unreachable(), n)
		}
		after(t, time.Minute)
		if v := look(p, n); v.tries["n1"] != 5 || v.tries["later"] != 1 || len(p.Unreachable()) != 0 || v.waiting != 0 {
			t.Errorf("%+v, unreachable %+v", v, p.Unreachable())
		}
		for o, want := range map[outcome]float64{accepted: 1, outdated: 1, failed: 4, expired: 0, dropped: 0} {
			if n := testutil.ToFloat64(m.sent.WithLabelValues(string(o))); n != want {
				t.Errorf("%s: %v, want %v", o, n, want)
			}
		}
		if n := testutil.ToFloat64(m.unreachable); n != 0 {
			t.Errorf("%v nodes are counted as unreachable", n)
		}
	})
}

// Requests are dropped after a while, because the node has read its intents by itself by then. The node stays in
// Unreachable for a while longer. A new address is tried at once.
func TestRequestsExpire(t *testing.T) {
	t.Parallel()
	fails := func(context.Context, string, int) error { return errors.New("no route") }
	withPusher(t, fails, nil, func(t *testing.T, p *Pusher, n *nodes) {
		p.Push(Target{Node: "n1"}, pushTo("r1", 1, 10))
		after(t, 3*time.Minute)
		v := look(p, n)
		tries := v.tries["n1"]
		if v.waiting != 0 || tries < 6 || tries > 20 || len(p.Unreachable()) != 1 {
			t.Errorf("%d wait after %d tries, unreachable %+v", v.waiting, tries, p.Unreachable())
		}
		p.Push(Target{Node: "n1", API: "https://elsewhere"}, pushTo("r1", 1, 11))
		after(t, time.Millisecond)
		if v = look(p, n); v.tries["n1"] != tries+1 {
			t.Errorf("%d tries, want %d", v.tries["n1"], tries+1)
		}
		after(t, 20*time.Minute)
		if v = look(p, n); v.kept != 0 || len(p.Unreachable()) != 0 {
			t.Errorf("%d nodes are remembered, unreachable %+v", v.kept, p.Unreachable())
		}
	})
}

// The number of waiting requests is bounded. A later request still replaces a waiting request.
func TestTheNumberOfWaitingRequestsIsBounded(t *testing.T) {
	t.Parallel()
	withPusher(t, nil, func(c *Config) { c.Most, c.AtOnce = 10, 1 }, func(t *testing.T, p *Pusher, n *nodes) {
		for i := range 100 {
			p.Push(Target{Node: fmt.Sprint("n", i%5)}, pushTo(fmt.Sprint(i), 1, 10))
		}
		if v := look(p, n); v.waiting != 10 {
			t.Errorf("%d requests wait, want 10", v.waiting)
		}
		p.Push(Target{Node: "n0"}, pushTo("0", 1, 11))
		close(n.gate)
		after(t, time.Second)
		v, accepted := look(p, n), 0
		for _, of := range v.got {
			accepted += len(of)
		}
		if v.waiting != 0 || accepted < 10 || !slices.Contains(v.got["n0"], 11) {
			t.Errorf("%d wait, %d accepted: %v", v.waiting, accepted, v.got)
		}
	})
}

// A node's address may change while a request is sent to it.
func TestAnAddressMayChangeDuringARequest(t *testing.T) {
	t.Parallel()
	fails := func(context.Context, string, int) error { return errors.New("no route") }
	soon := func(c *Config) { c.RetryMin, c.RetryMax = time.Millisecond, time.Millisecond }
	withPusher(t, fails, soon, func(t *testing.T, p *Pusher, n *nodes) {
		var pushes sync.WaitGroup
		for i := range 4 {
			pushes.Go(func() {
				for revision := range int64(500) {
					p.Push(Target{Node: "n1", API: fmt.Sprint("https://", i)}, pushTo("r1", 1, revision))
				}
			})
		}
		pushes.Wait()
		after(t, time.Second)
		if v := look(p, n); v.tries["n1"] == 0 || v.waiting != 1 {
			t.Errorf("%d tries, %d wait", v.tries["n1"], v.waiting)
		}
	})
}

// BenchmarkPush pushes one request to each of 100 or 10,000 nodes.
func BenchmarkPush(b *testing.B) {
	for _, nodes := range []int{100, 10_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			for b.Loop() {
				var left sync.WaitGroup
				left.Add(nodes)
				send := func(context.Context, Target, scale.Request) error { left.Done(); return nil }
				p := New(Config{Send: send, Log: obs.Discard(), Metrics: NewMetrics(prometheus.NewRegistry())})
				ctx, cancel := context.WithCancel(context.Background())
				for i := range nodes {
					p.Push(Target{Node: fmt.Sprint(i)}, pushTo("r1", 1, 10))
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
