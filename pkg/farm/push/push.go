// Package push tells nodes without a standing query that intents were written for them (ADR 26). It stands beside the passes and never in
// their way: whoever has committed hands a request over and goes on. What is not told is lost with the process; the node reads by itself then.
package push

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// ErrOutdated means that a node answered that it has heard of something later. There is nothing left to tell.
var ErrOutdated = errors.New("outdated")

// Target is where a node takes requests.
type Target struct {
	Node string
	API  string // as in its record
}

// Config is what New needs. Zero values mean the defaults that setDefaults has.
type Config struct {
	// Send sends a request to a node. It returns nil or ErrOutdated when the node knows what the request speaks of.
	Send    func(ctx context.Context, to Target, r scale.Request) error
	Log     obs.Logger
	Metrics *Metrics

	AtOnce   int           // requests under way, to different nodes; 16
	Within   time.Duration // for one request; 5 s
	RetryMin time.Duration // first pause after a request failed; it doubles from there; 250 ms
	RetryMax time.Duration // bound of that doubling; 30 s
	KeepFor  time.Duration // how long a request is tried: by then a node has read by itself; 2 min
	Most     int           // requests that wait; beyond it none is taken; 10,000
}

func (c *Config) setDefaults() {
	c.AtOnce, c.Most = cmp.Or(c.AtOnce, 16), cmp.Or(c.Most, 10_000)
	c.Within, c.KeepFor = cmp.Or(c.Within, 5*time.Second), cmp.Or(c.KeepFor, 2*time.Minute)
	c.RetryMin, c.RetryMax = cmp.Or(c.RetryMin, 250*time.Millisecond), cmp.Or(c.RetryMax, 30*time.Second)
}

// Pusher sends requests, one at a time to each node.
type Pusher struct {
	cfg  Config
	wake wait.Signal // somebody may have something to do

	mu      sync.Mutex
	nodes   map[string]*peer // that something is to be told, or could not be told lately
	waiting int              // requests
}

// peer is a node, and what it is still to be told. The Pusher's mutex guards it.
type peer struct {
	Target
	requests map[string]waiting // the latest, by controller
	sending  bool
	due      time.Time // when the next request may be sent
	pace     *backoff.ExponentialBackOff

	failed string    // why the last request was not taken; empty: it was
	since  time.Time // when that began
	tried  time.Time // when it was tried last
}

type waiting struct {
	scale.Request
	since time.Time
}

// New returns a pusher, which sends nothing before Run.
func New(cfg Config) *Pusher {
	cfg.setDefaults()
	return &Pusher{cfg: cfg, wake: wait.NewSignal(), nodes: map[string]*peer{}}
}

// Tell hands over what a node is to be told, and waits for nothing. It takes the place of what is not sent yet about the same controller.
func (p *Pusher) Tell(to Target, r scale.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[to.Node]
	if n == nil {
		n = &peer{Target: to, requests: map[string]waiting{}, pace: wait.NewPace(p.cfg.RetryMin, p.cfg.RetryMax)}
		p.nodes[to.Node] = n
	}
	if n.API != to.API { // it may be reached again
		n.Target, n.due = to, time.Time{}
	}
	before, replaces := n.requests[r.Epoch.RCID]
	switch {
	case replaces && !later(r, before.Request):
		return
	case !replaces && p.waiting >= p.cfg.Most:
		p.cfg.Metrics.count(dropped)
		return
	case !replaces:
		p.waiting++
	}
	n.requests[r.Epoch.RCID] = waiting{r, time.Now()}
	p.wake.Raise()
}

// later reports whether a request about a controller is later than another one.
func later(r, than scale.Request) bool {
	return cmp.Or(cmp.Compare(r.Epoch.Term, than.Epoch.Term), cmp.Compare(r.Revision, than.Revision)) > 0
}

// Run sends until ctx ends, of which it returns the cause.
func (p *Pusher) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range p.cfg.AtOnce {
		workers.Go(func() { p.work(ctx) })
	}
	workers.Wait()
	return context.Cause(ctx)
}

// work sends one request after the other.
func (p *Pusher) work(ctx context.Context) {
	for ctx.Err() == nil {
		n, to, r, pause := p.next(time.Now())
		if n == nil {
			_, _ = wait.PauseUnless(ctx, p.wake, pause) // the end of ctx ends the loop
			continue
		}
		p.wake.Raise() // there may be more
		sending, cancel := context.WithTimeout(ctx, p.cfg.Within)
		err := p.cfg.Send(sending, to, r)
		cancel()
		if ctx.Err() == nil {
			p.sent(n, r, err, time.Now())
		}
	}
}

// idlePause bounds how long nobody looks whether there is something to do.
const idlePause = time.Minute

// next returns the node whose turn it is, where it is now and what it is to be told, or how long nobody's is.
func (p *Pusher) next(now time.Time) (turn *peer, to Target, r scale.Request, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause = idlePause
	for name, n := range p.nodes {
		if n.sending {
			continue
		}
		p.expire(n, now)
		switch {
		case len(n.requests) == 0 && (n.failed == "" || now.Sub(n.tried) > forgetAfter):
			delete(p.nodes, name)
			p.cfg.Metrics.unreached(p.unreached())
		case len(n.requests) == 0:
		case n.due.After(now):
			pause = min(pause, n.due.Sub(now))
		case turn == nil || n.due.Before(turn.due):
			turn = n
		}
	}
	if turn == nil {
		return nil, to, r, pause
	}
	turn.sending, turn.tried = true, now
	oldest := time.Time{}
	for _, w := range turn.requests {
		if oldest.IsZero() || w.since.Before(oldest) {
			r, oldest = w.Request, w.since
		}
	}
	return turn, turn.Target, r, 0
}

// forgetAfter is how long a node that could not be told is remembered when there is nothing left to tell it.
const forgetAfter = 10 * time.Minute

// expire gives up what was tried for long enough.
func (p *Pusher) expire(n *peer, now time.Time) {
	for id, w := range n.requests {
		if now.Sub(w.since) > p.cfg.KeepFor {
			p.settle(n, id)
			p.cfg.Metrics.count(expired)
		}
	}
}

func (p *Pusher) settle(n *peer, rcID string) {
	delete(n.requests, rcID)
	p.waiting--
}

// sent notes what became of a request.
func (p *Pusher) sent(n *peer, r scale.Request, err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.wake.Raise()
	n.sending = false
	log := p.cfg.Log.WithFields(obs.Fields{obs.Node: n.Node, obs.RCID: r.Epoch.RCID, obs.ConsulIndex: r.Revision})
	known := err == nil || errors.Is(err, ErrOutdated)
	if !known {
		p.cfg.Metrics.count(failed)
		if n.failed == "" {
			n.since = now
			log.WithError(err).Warn("a node cannot be told of its intents; it reads them by itself after a while")
		}
		n.failed, n.due = err.Error(), now.Add(n.pace.NextBackOff())
		p.cfg.Metrics.unreached(p.unreached())
		return
	}
	p.cfg.Metrics.count(outcomeOf(err))
	if w, still := n.requests[r.Epoch.RCID]; still && !later(w.Request, r) {
		p.settle(n, r.Epoch.RCID)
	}
	n.due = time.Time{}
	n.pace.Reset()
	if n.failed != "" {
		log.Info("a node can be told of its intents again")
		n.failed = ""
		p.cfg.Metrics.unreached(p.unreached())
	}
}

func (p *Pusher) unreached() (n int) {
	for _, peer := range p.nodes {
		if peer.failed != "" {
			n++
		}
	}
	return n
}

// Unreachable is a node that could not be told of its intents.
type Unreachable struct {
	Node   string
	Since  time.Time
	Reason string
}

// Unreachable returns those that could not be told when it was tried last, by name.
func (p *Pusher) Unreachable() (all []Unreachable) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, n := range p.nodes {
		if n.failed != "" {
			all = append(all, Unreachable{Node: name, Since: n.since, Reason: n.failed})
		}
	}
	slices.SortFunc(all, func(a, b Unreachable) int { return cmp.Compare(a.Node, b.Node) })
	return all
}
