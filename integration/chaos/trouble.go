package main

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// trouble makes some pods of a node fail for at most troubleLimit, when they start or later.
type trouble struct {
	on atomic.Bool

	broken func(digest string) bool // reports whether pods always fail; these have no other trouble

	mu  sync.Mutex
	rng *rand.Rand
}

const (
	troubleLimit = 3 * time.Second
	troublePause = 2 * time.Second // between two pods of one node that fail while they run
	startTrouble = 20              // of 100 pods that start
)

func newTrouble(seed int64, node int, broken func(string) bool) *trouble {
	return &trouble{rng: newRand(seed, 200+uint64(node)), broken: broken}
}

// start returns the first report about an intent. A pod in trouble becomes ready later.
func (t *trouble) start(n *simnode.Node, in pod.Intent) pod.Reality {
	r := simnode.Obey(in)
	t.mu.Lock()
	defer t.mu.Unlock()
	if in.State == pod.Running && runsOnce(in) {
		return t.end(r)
	}
	if in.State == pod.Running && t.broken(in.Digest) {
		r.State, r.Available = pod.StateFailed, false
		return r
	}
	if in.State != pod.Running || !t.on.Load() || t.rng.IntN(100) >= startTrouble {
		return r
	}
	r.State, r.Available = []pod.State{pod.StateStarting, pod.StateFailed}[t.rng.IntN(2)], false
	time.AfterFunc(reactLimit+upTo(t.rng, troubleLimit), func() {
		n.Amend(in.Identity, in.Revision, pod.StateReady, true)
	})
	return r
}

// runsOnce: pods of pre_deploy run to their end.
func runsOnce(in pod.Intent) bool { return strings.HasSuffix(in.PodID, "-pre-deploy") }

// The caller holds mu.
func (t *trouble) end(r pod.Reality) pod.Reality {
	r.State, r.Available, r.LastExit = pod.StateEnded, false, &pod.Exit{Launchable: "main", At: time.Now()}
	if t.on.Load() && t.rng.IntN(100) < startTrouble {
		r.State, r.LastExit.Code, r.LogTail = pod.StateFailed, 1, "the schema is not as expected"
	}
	return r
}

func (t *trouble) strike(ctx context.Context, n *simnode.Node) {
	for wait(ctx, t.time(2*troublePause)) {
		runs := n.Running()
		ids := slices.SortedFunc(maps.Keys(runs), pod.Identity.Compare)
		if len(ids) == 0 {
			continue
		}
		t.mu.Lock()
		in := runs[ids[t.rng.IntN(len(ids))]]
		state := []pod.State{pod.StateUnhealthy, pod.StateFailed}[t.rng.IntN(2)]
		t.mu.Unlock()
		if t.broken(in.Digest) || runsOnce(in) {
			continue
		}
		n.Amend(in.Identity, in.Revision, state, false)
		wait(ctx, t.time(troubleLimit))
		n.Amend(in.Identity, in.Revision, pod.StateReady, true)
	}
}

func (t *trouble) time(limit time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return upTo(t.rng, limit)
}

func (c *chaos) troubles(ctx context.Context) {
	var all sync.WaitGroup
	for _, n := range c.nodes {
		n.trouble.on.Store(true)
		all.Go(func() { n.trouble.strike(ctx, &n.Node) })
	}
	all.Wait()
	for _, n := range c.nodes {
		n.trouble.on.Store(false)
	}
}
