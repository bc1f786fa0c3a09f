package place

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// An outside scheduler that fails is asked a few times in a row, and again in a later pass.
const (
	schedulerTries = 3
	schedulerRetry = 50 * time.Millisecond // before the second try; it doubles
	schedulerLimit = 5 * time.Second       // for one answer
	schedulerPause = 15 * time.Second      // after a timeout
)

// The calls of an outside scheduler, as label values. badAnswer counts names that are ignored.
const (
	callEligible   = "eligible"
	callBooks      = "books"
	callAllocate   = "allocate"
	callDeallocate = "deallocate"
	badAnswer      = "answer"
)

// Why nodes take no pods, if an outside scheduler gives no reason.
const (
	leftOut  scheduler.Reason = "left out by the scheduler"
	notGiven scheduler.Reason = "not given by the scheduler"
)

// Calls are the possible arguments of Metrics.SchedulerFailed.
var Calls = []string{callEligible, callBooks, callAllocate, callDeallocate, badAnswer}

// outside is an outside Scheduler. It can fail, hang, or return anything.
type outside struct {
	scheduler scheduler.Scheduler
	log       obs.Logger
	metrics   Metrics
	pause     pause
}

type books struct {
	*outside
	keeper scheduler.Books
}

// outsideOf returns nil and nil for a farm without an outside scheduler.
func outsideOf(cfg *Config) (*outside, *books) {
	if cfg.Scheduler == nil {
		return nil, nil
	}
	o := &outside{scheduler: cfg.Scheduler, log: cfg.Log, metrics: cfg.Metrics}
	if keeper, ok := cfg.Scheduler.(scheduler.Books); ok {
		return o, &books{outside: o, keeper: keeper}
	}
	return o, nil
}

// eligible returns only nodes that are also eligible by the view's rule.
func (o *outside) eligible(
	ctx context.Context, v *scheduler.View,
) (nodes []string, others scheduler.Reasons, err error) {
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
		others = excluded // so that the status has at least why the rule excludes nodes
	}
	silent := len(open) // eligible nodes without a reason
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

func (o *outside) ignore(rcID, name, why string) {
	o.metrics.SchedulerFailed(badAnswer)
	o.log.WithFields(obs.Fields{obs.RCID: rcID, obs.Node: name, obs.Reason: why}).
		Error("a node that the scheduler named is ignored")
}

// booked returns a controller's shares in the books, or scheduler.ErrNoBooks.
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
		booked[a] = a.Pod.RCID == o.RCID // false: another owner decides about it
	}
	return booked, err
}

// allocate returns the scheduler's answer without shares that were not asked for.
func (b *books) allocate(
	ctx context.Context, o scheduler.Owner, v *scheduler.View, wants []scheduler.Want,
) ([]scheduler.Allocation, error) {
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
			b.ignore(o.RCID, a.Node, fmt.Sprintf("no share, or only one, was asked for %s", a.Pod))
			continue
		}
		delete(asked, a.Pod)
		given = append(given, a)
	}
	return given, nil
}

func (b *books) deallocate(ctx context.Context, o scheduler.Owner, allocations []scheduler.Allocation) error {
	return b.try(ctx, callDeallocate, func(ctx context.Context) error {
		return b.keeper.DeallocateNodes(ctx, o, allocations)
	})
}

// try calls the scheduler up to schedulerTries times. After a timeout no pass asks it for a while, because every worker
// would wait for its answer.
func (o *outside) try(ctx context.Context, call string, f func(context.Context) error) error {
	if err := o.pause.pass(time.Now()); err != nil {
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
		o.metrics.SchedulerFailed(call)
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %s: %w", schedulerLimit, err)
			o.pause.hung(time.Now(), err)
			return struct{}{}, backoff.Permanent(err)
		}
		o.pause.answered()
		return struct{}{}, err
	}, backoff.WithBackOff(pace), backoff.WithMaxTries(schedulerTries))
	if err == nil {
		o.pause.answered()
		return nil
	}
	return fmt.Errorf("the scheduler: %w", err)
}
