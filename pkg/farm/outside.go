package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// How an outside scheduler is asked: a few times in a row at the most, then again in a later pass.
const (
	schedulerTries   = 3
	schedulerRetry   = 50 * time.Millisecond // before the second try; it doubles
	schedulerLimit   = 5 * time.Second       // for one answer
	schedulerRespite = 15 * time.Second      // after no answer at all
)

// The calls of an outside scheduler, for the metric; badAnswer counts names that are ignored.
const (
	callEligible   = "eligible"
	callBooks      = "books"
	callAllocate   = "allocate"
	callDeallocate = "deallocate"
	badAnswer      = "answer"
)

// Why nodes take no pods, where an outside scheduler does not say so itself.
const (
	leftOut  scheduler.Reason = "left out by the scheduler"
	notGiven scheduler.Reason = "not given by the scheduler"
)

var schedulerCalls = []string{callEligible, callBooks, callAllocate, callDeallocate, badAnswer}

// outside is a Scheduler that is not ours: it may fail, hang, and answer anything.
type outside struct {
	scheduler scheduler.Scheduler
	log       obs.Logger
	metrics   *Metrics
	gate      gate
}

// books is an outside scheduler that keeps books.
type books struct {
	*outside
	keeper scheduler.Books
}

// outsideOf returns the scheduler that a farm is to ask in place of the built-in one, and the books that go with it: nil where there are
// none but ours.
func outsideOf(cfg *Config) (*outside, *books) {
	if cfg.Scheduler == nil {
		return nil, nil
	}
	o := &outside{scheduler: cfg.Scheduler, log: cfg.Log.WithField(obs.FarmID, cfg.ID), metrics: cfg.Metrics}
	if keeper, ok := cfg.Scheduler.(scheduler.Books); ok {
		return o, &books{outside: o, keeper: keeper}
	}
	return o, nil
}

// eligible asks for nodes. Only those that may take pods as we see it are among its answers.
func (o *outside) eligible(ctx context.Context, v *scheduler.View) (nodes []string, others scheduler.Reasons, err error) {
	var names []string
	err = o.try(ctx, callEligible, func(ctx context.Context) (err error) {
		names, others, err = o.scheduler.EligibleNodes(ctx, v)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	open, excluded := v.Eligible()
	if others == nil {
		others = excluded // the status says at least why the rule leaves nodes out
	}
	silent := len(open)
	for _, n := range others.Others() {
		silent -= n
	}
	seen := map[string]bool{}
	for _, name := range names {
		why := refuses(v, name)
		if seen[name] {
			why = "it is named twice"
		}
		seen[name] = true
		if why != "" {
			o.ignore(v.Ask().RCID, name, why)
			continue
		}
		nodes = append(nodes, name)
	}
	if silent -= len(nodes); silent > 0 {
		others = maps.Clone(others)
		others[leftOut] = silent
	}
	return nodes, others, nil
}

// refuses says why a node may not take pods of the controller, "" when it may.
func refuses(v *scheduler.View, name string) (why string) {
	n, known := v.Node(name)
	if !known {
		return "there is no such node"
	}
	if reason := v.Excludes(n); reason != "" {
		return "it is not eligible: " + string(reason)
	}
	return ""
}

// ignore counts a part of an answer that is not used, and says why.
func (o *outside) ignore(rcID, name, why string) {
	o.metrics.scheduler.WithLabelValues(badAnswer).Inc()
	o.log.WithFields(obs.Fields{obs.RCID: rcID, obs.Node: name, obs.Reason: why}).
		Error("a node that the scheduler named is ignored")
}

// booked returns what the books hold for a controller. The error is scheduler.ErrNoBooks where none are kept.
func (b *books) booked(ctx context.Context, o scheduler.Owner) (map[scheduler.Allocation]bool, error) {
	var all []scheduler.Allocation
	none := false
	err := b.try(ctx, callBooks, func(ctx context.Context) (err error) {
		all, err = b.keeper.AllocatedNodes(ctx, o)
		if none = errors.Is(err, scheduler.ErrNoBooks); none {
			return nil
		}
		return err
	})
	if err == nil && none {
		return nil, scheduler.ErrNoBooks
	}
	booked := make(map[scheduler.Allocation]bool, len(all))
	for _, a := range all {
		booked[a] = a.Pod.RCID == o.RCID // others are not ours to judge
	}
	return booked, err
}

// allocate asks for shares. The answer is as the scheduler gave it, without those that nobody asked for.
func (b *books) allocate(ctx context.Context, o scheduler.Owner, v *scheduler.View, wants []scheduler.Want) ([]scheduler.Allocation, error) {
	var all, given []scheduler.Allocation
	err := b.try(ctx, callAllocate, func(ctx context.Context) (err error) {
		all, err = b.keeper.AllocateNodes(ctx, o, v, wants)
		return err
	})
	if err != nil {
		return nil, err
	}
	asked := make(map[pod.Identity]bool, len(wants))
	for _, w := range wants {
		asked[w.Pod] = true
	}
	for _, a := range all {
		if !asked[a.Pod] {
			b.ignore(o.RCID, a.Node, fmt.Sprintf("nobody asked for a share for %s, or not for two", a.Pod))
			continue
		}
		delete(asked, a.Pod)
		given = append(given, a)
	}
	return given, nil
}

// deallocate gives shares back.
func (b *books) deallocate(ctx context.Context, o scheduler.Owner, allocations []scheduler.Allocation) error {
	return b.try(ctx, callDeallocate, func(ctx context.Context) error {
		return b.keeper.DeallocateNodes(ctx, o, allocations)
	})
}

// try calls the scheduler, a bounded number of times. One that gives no answer is left alone for a while, by all
// controllers: they would keep every worker waiting.
func (o *outside) try(ctx context.Context, call string, f func(context.Context) error) error {
	if err := o.gate.pass(time.Now()); err != nil {
		return err
	}
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval, pace.Multiplier = schedulerRetry, 2
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		limited, cancel := context.WithTimeout(ctx, schedulerLimit)
		defer cancel()
		err := f(limited)
		if err == nil {
			return struct{}{}, nil
		}
		o.metrics.scheduler.WithLabelValues(call).Inc()
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %s: %w", schedulerLimit, err)
			o.gate.hung(time.Now(), err)
			return struct{}{}, backoff.Permanent(err)
		}
		o.gate.answered()
		return struct{}{}, err
	}, backoff.WithBackOff(pace), backoff.WithMaxTries(schedulerTries))
	if err == nil {
		o.gate.answered()
		return nil
	}
	return fmt.Errorf("the scheduler: %w", err)
}

// gate keeps callers away from a scheduler that does not answer, all but one now and then who finds out.
type gate struct {
	mu    sync.Mutex
	err   error // why it is shut; nil: open
	until time.Time
}

var errRespite = errors.New("it is asked again in a while")

func (g *gate) pass(now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		return nil
	}
	if now.Before(g.until) {
		return fmt.Errorf("the scheduler: %w; %w", g.err, errRespite)
	}
	g.until = now.Add(schedulerRespite) // the others wait for what comes of this one
	return nil
}

func (g *gate) hung(now time.Time, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err, g.until = err, now.Add(schedulerRespite)
}

func (g *gate) answered() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = nil
}
