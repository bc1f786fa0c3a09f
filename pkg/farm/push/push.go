// Package push asks nodes that do not watch Consul to read their intents after a farm has written some (ADR 26). A pass
// does not wait for its request. Requests are lost when the process ends; the nodes read their intents by themselves
// after a while.
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

// ErrOutdated means that the node has accepted a later request. Do not send it again.
var ErrOutdated = errors.New("outdated")

// Target is where a node accepts requests.
type Target struct {
	Node string
	API  string // as in its record
}

// Config is what New needs. Zero values mean the defaults, at the end of each number's comment.
type Config struct {
	// Send sends a request. It returns nil if the node accepts it, or ErrOutdated if the node has a later one.
	Send    func(ctx context.Context, to Target, r scale.Request) error
	Log     obs.Logger
	Metrics *Metrics

	AtOnce   int           // requests under way, to different nodes; 16
	Within   time.Duration // for one request; 5 s
	RetryMin time.Duration // pause after the first failure; it doubles with each further failure; 250 ms
	RetryMax time.Duration // longest pause; 30 s
	KeepFor  time.Duration // how long a request is tried; by then the node has read its intents by itself; 2 min
	Most     int           // how many requests may wait; more are dropped; 10,000
}

func (c *Config) setDefaults() {
	c.AtOnce, c.Most = cmp.Or(c.AtOnce, 16), cmp.Or(c.Most, 10_000)
	c.Within, c.KeepFor = cmp.Or(c.Within, 5*time.Second), cmp.Or(c.KeepFor, 2*time.Minute)
	c.RetryMin, c.RetryMax = cmp.Or(c.RetryMin, 250*time.Millisecond), cmp.Or(c.RetryMax, 30*time.Second)
}

// Pusher sends requests, one at a time to each node.
type Pusher struct {
	cfg  Config
	wake wait.Signal // raised if a worker may have something to do

	mu      sync.Mutex
	nodes   map[string]*peer // that have waiting requests, or whose last request failed a short time ago
	waiting int              // number of waiting requests
	failing int              // number of nodes whose last request failed
	// Nodes to which a request can be sent now: first ready, then retried, whose last request failed.
	ready, retried []*peer
	look           time.Time // when to look at all nodes for more
}

// The Pusher's mutex guards a peer.
type peer struct {
	Target
	requests map[string]waiting // the latest, by controller
	queued   bool               // it is in ready or retried
	sending  bool
	due      time.Time // when the next request may be sent
	pace     *backoff.ExponentialBackOff

	failed string    // why the last request failed; empty: it did not
	since  time.Time // of the first failure
	tried  time.Time // when the last request was sent
}

type waiting struct {
	scale.Request
	since time.Time
	again bool // the same request was handed over again while it was under way
}

// New returns a pusher that sends nothing before Run.
func New(cfg Config) *Pusher {
	cfg.setDefaults()
	return &Pusher{cfg: cfg, wake: wait.NewSignal(), nodes: map[string]*peer{}}
}

// Push hands over a request, and returns at once. It replaces an earlier one about the same controller that still
// waits.
func (p *Pusher) Push(to Target, r scale.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[to.Node]
	if n == nil {
		n = &peer{Target: to, requests: map[string]waiting{}, pace: wait.NewPace(p.cfg.RetryMin, p.cfg.RetryMax)}
		p.nodes[to.Node] = n
	}
	if n.API != to.API { // try the new address at once
		n.Target, n.due = to, time.Time{}
	}
	before, replaces := n.requests[r.Epoch.RCID]
	switch {
	case replaces && !later(r, before.Request):
		if n.sending && !later(before.Request, r) {
			// The node may have read its intents before the write that this request is about.
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

// queue puts a node into ready or retried if a request can be sent to it.
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

// later reports whether r is later than the request that was handed over before it. A request with another epoch is:
// epochs have no order, because a ULID begins with the time of some clock.
func later(r, than scale.Request) bool {
	if r.Epoch.Cluster != than.Epoch.Cluster {
		return true
	}
	return cmp.Or(cmp.Compare(r.Epoch.Term, than.Epoch.Term), cmp.Compare(r.Revision, than.Revision)) > 0
}

// Run sends until ctx ends, and returns its cause.
func (p *Pusher) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range p.cfg.AtOnce {
		workers.Go(func() { p.work(ctx) })
	}
	workers.Wait()
	return context.Cause(ctx)
}

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

const idlePause = time.Minute

// lookGap is the least time between two looks at all nodes, because thousands of failing nodes may be due at different
// times.
const lookGap = 50 * time.Millisecond

// next returns the next node with its present target and its oldest request, or how long to wait.
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

func (p *Pusher) forget(n *peer, now time.Time) {
	if len(n.requests) > 0 || n.failed != "" && now.Sub(n.tried) <= forgetAfter {
		return
	}
	delete(p.nodes, n.Node)
	p.fails(n, "")
}

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

// forgetAfter is how long a failing node without requests is remembered.
const forgetAfter = 10 * time.Minute

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
			log.WithError(err).Warn("cannot push to a node; it reads its intents by itself after a while")
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
		log.Info("can push to a node again")
		p.fails(n, "")
	}
	p.forget(n, now)
}

// Unreachable is a node to which the last push failed.
type Unreachable struct {
	Node   string
	Since  time.Time
	Reason string
}

// Unreachable returns the nodes to which the last push failed, by name.
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
