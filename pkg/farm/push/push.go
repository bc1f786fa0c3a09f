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
	failing int              // nodes that could not be told
	// ready are the nodes whose turn it is, in this order: those that could be told when it was tried last, and after them the others.
	ready, retried []*peer
	look           time.Time // when it may be the turn of others
}

// peer is a node, and what it is still to be told. The Pusher's mutex guards it.
type peer struct {
	Target
	requests map[string]waiting // the latest, by controller
	queued   bool               // it is its turn
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
	again bool // the same was handed over while it was under way
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
		if n.sending && !later(before.Request, r) { // what is under way may have been read before what this one speaks of
			before.again = true
			n.requests[r.Epoch.RCID] = before
		}
		return
	case !replaces && p.waiting >= p.cfg.Most:
		p.cfg.Metrics.count(dropped)
		return
	case !replaces:
		p.waiting++
	}
	now := time.Now()
	n.requests[r.Epoch.RCID] = waiting{Request: r, since: now}
	p.queue(n, now)
	p.wake.Raise()
}

// queue makes it a node's turn, if it can be.
func (p *Pusher) queue(n *peer, now time.Time) {
	switch {
	case n.queued || n.sending || len(n.requests) == 0:
		return
	case n.due.After(now):
		if n.due.Before(p.look) {
			p.look = n.due
		}
		return
	case n.failed == "":
		p.ready = append(p.ready, n)
	default:
		p.retried = append(p.retried, n)
	}
	n.queued = true
}

// later reports whether a request about a controller is later than another one that was taken before it. In another epoch it is: what an epoch's name begins with
// is the time of some clock.
func later(r, than scale.Request) bool {
	if r.Epoch.Cluster != than.Epoch.Cluster {
		return true
	}
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

// lookGap is the least time between two looks at all nodes: of thousands that cannot be told, each has its own time.
const lookGap = 50 * time.Millisecond

// next returns the node whose turn it is, where it is now and what it is to be told, or how long nobody's is.
func (p *Pusher) next(now time.Time) (turn *peer, to Target, r scale.Request, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if turn = p.first(now); turn == nil && !now.Before(p.look) {
		p.lookAtAll(now)
		turn = p.first(now)
	}
	if turn == nil {
		return nil, to, r, p.look.Sub(now)
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

// first takes the first node from those whose turn it is, nil where there is none. One that has nothing left to be told is passed over.
func (p *Pusher) first(now time.Time) *peer {
	for _, list := range []*[]*peer{&p.ready, &p.retried} {
		for len(*list) > 0 {
			n := (*list)[0]
			*list = (*list)[1:]
			n.queued = false
			if p.expire(n, now); len(n.requests) > 0 {
				return n
			}
		}
	}
	return nil
}

// lookAtAll makes it the turn of all nodes whose time has come, and forgets those that there is nothing to say of any more.
func (p *Pusher) lookAtAll(now time.Time) {
	p.look = now.Add(idlePause)
	for _, n := range p.nodes {
		if n.sending {
			continue
		}
		p.expire(n, now)
		p.queue(n, now)
		p.forget(n, now)
	}
	if soonest := now.Add(lookGap); p.look.Before(soonest) {
		p.look = soonest
	}
}

// forget forgets a node that nothing is to be told, unless it could not be told lately.
func (p *Pusher) forget(n *peer, now time.Time) {
	if len(n.requests) > 0 || n.failed != "" && now.Sub(n.tried) <= forgetAfter {
		return
	}
	delete(p.nodes, n.Node)
	p.fails(n, "")
}

// fails notes why a node cannot be told; empty: it can.
func (p *Pusher) fails(n *peer, why string) {
	switch {
	case n.failed == "" && why != "":
		p.failing++
	case n.failed != "" && why == "":
		p.failing--
	}
	n.failed = why
	p.cfg.Metrics.unreached(p.failing)
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
	defer p.queue(n, now)
	log := p.cfg.Log.WithFields(obs.Fields{obs.Node: n.Node, obs.RCID: r.Epoch.RCID, obs.ConsulIndex: r.Revision})
	known := err == nil || errors.Is(err, ErrOutdated)
	if !known {
		p.cfg.Metrics.count(failed)
		if n.failed == "" {
			n.since = now
			log.WithError(err).Warn("a node cannot be told of its intents; it reads them by itself after a while")
		}
		n.due = now.Add(n.pace.NextBackOff())
		p.fails(n, err.Error())
		return
	}
	p.cfg.Metrics.count(outcomeOf(err))
	switch w, still := n.requests[r.Epoch.RCID]; {
	case still && w.again:
		w.again = false
		n.requests[r.Epoch.RCID] = w
	case still && !later(w.Request, r):
		p.settle(n, r.Epoch.RCID)
	}
	n.due = time.Time{}
	n.pace.Reset()
	if n.failed != "" {
		log.Info("a node can be told of its intents again")
		p.fails(n, "")
	}
	p.forget(n, now)
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
