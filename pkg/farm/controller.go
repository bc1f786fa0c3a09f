package farm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// RCIDLabel is the label that every pod of a controller carries with the controller's id.
const RCIDLabel = pod.RCIDLabel

// ReplicationController is one controller that this farm owns. One goroutine at a time works on it. Or it is one that New returned, which a
// farm of its own owns while WatchDesires runs.
type ReplicationController struct {
	ID   string
	farm *Farm
	log  obs.Logger

	fence      store.Fence
	consistent bool // the next read must be: it is the first of this tenure
	unsure     bool // a write may linger: the fence must be bumped before anything is read
	deep       bool // the next pass compares intents too
	relied     bool // the last pass needed the minimum
	last       memory
	phantom    bool           // there is no record: what it left behind is stopped, as somebody asked for
	claimed    *store.Claimed // what came with the lock, until the first read uses it

	confirmed map[store.At]int64 // revisions at which nodes confirmed stops, after which the placements went

	held     map[scheduler.Allocation]bool // by an outside scheduler's books, where they are known
	bookless bool                          // that scheduler could keep books and said that it keeps none

	told map[string]bool // what was told and is not stored yet, by alert.Tell.ID

	looks    looks
	expects  expects
	reported time.Time // when a status was written last

	mu       sync.Mutex
	lastDeep time.Time
	nodes    map[string]bool // where it has pods
	hungry   bool            // more nodes would help it
	pods     int             // that were meant to run at the last look; see breaker
	leaving  bool            // give it to the farm that prefers it
	unread   bool            // its lock was taken together with others, and it was not read since: the breaker does not know its pods
}

// pass looks at the controller once: read, decide, write. It returns when to look again even if nothing rings.
func (c *ReplicationController) pass(ctx context.Context) (again time.Duration, err error) {
	started := time.Now()
	if c.unsure {
		if err := c.bump(ctx); err != nil {
			return 0, err
		}
	}
	c.concernedByAll() // what changes while this pass is under way may matter to it
	c.looks.begin()
	v := &view{}
	defer func() { c.farm.ledger.GiveBack(v.taken) }()
	err = c.read(ctx, v)
	var corrupt *store.CorruptError
	switch {
	case errors.Is(err, store.ErrNotFound) && !v.consistent:
		c.consistent = true // a leader that is behind may not have it yet
		return time.Millisecond, nil
	case errors.Is(err, store.ErrNotFound):
		return 0, c.abandon(ctx, v.head.Status)
	case errors.As(err, &corrupt):
		return 0, cmp.Or(c.sayUnreadable(ctx, v.head, err), err)
	case err != nil:
		return 0, err
	}
	c.learnOnce(&v.head)
	if gone, err := c.leave(ctx, v); gone || err != nil {
		return 0, err
	}
	if v.head.BellIndex == 0 {
		// Without a bell nobody could tell us of a change, and no write could depend on there being none.
		return time.Millisecond, c.farm.cfg.Store.Ring(ctx, c.ID)
	}
	if released, err := c.releaseMutator(ctx, v); released || err != nil {
		return time.Millisecond, err
	}
	plan, err := c.decide(ctx, v)
	if err != nil {
		return 0, err
	}
	if made, err := c.relyOn(ctx, v, &plan); made || err != nil {
		return time.Millisecond, err
	}
	if even := c.balance(ctx, v, &plan); even && plan.Finish {
		return 0, c.finish(ctx, v)
	}
	if judged, err := c.breaker(ctx, v, &plan); err != nil || !judged {
		return claimsLook, err
	}
	if err := c.assign(ctx, v, &plan); err != nil {
		return 0, err
	}
	wrote, err := c.apply(ctx, v, &plan)
	c.remember(v, &plan, wrote, err)
	c.expect(v, &plan, wrote)
	c.noteConfirmed(v, &plan)
	if wrote > 0 {
		c.log.WithFields(obs.Fields{
			obs.Action: summary(plan.Changes), obs.Desired: plan.Status.Desired, obs.Current: plan.Status.Placed,
			obs.Took: time.Since(started).Round(time.Millisecond).String(), "written": wrote,
		}).Info("changed pods")
	}
	if err != nil {
		return 0, c.afterFailure(ctx, err)
	}
	told := c.alert(ctx, &plan)
	c.looks.ended(c.ID, &v.head, v.companions, plan.Alone || c.expects.nodes)
	if wrote > 0 && frees(plan.Changes) {
		c.farm.enqueueOwned(func(other *ReplicationController) bool { return other != c && other.isHungry() })
	}
	switch {
	case wrote > 0 && !told && v.foreseen:
		return plan.Again, nil
	case wrote > 0 && !told && wrote == len(plan.Changes) && onlyAsks(plan.Changes):
		return soonest(plan.Again, askedLook), nil
	case wrote > 0 || told || len(plan.Answered) > 0:
		return time.Millisecond, nil // what this made possible comes with the next look, and further requests
	}
	if v.later > 0 {
		return soonest(plan.Again, v.later), nil
	}
	return plan.Again, nil
}

// askedLook is when a controller whose plan was to place, move or stop pods, and nothing else, is looked at again. Nothing more can be
// done before the nodes report, which rings; only the status says less than it could until then.
const askedLook = time.Second

func onlyAsks(changes []reconcile.Change) bool {
	return !slices.ContainsFunc(changes, func(ch reconcile.Change) bool { return !adds(&ch) && ch.Action != reconcile.Stop })
}

// soonest returns the shorter of two times; the first may be zero for none.
func soonest(a, b time.Duration) time.Duration {
	if a > 0 {
		return min(a, b)
	}
	return b
}

// afterFailure makes sure of the fence before anybody reads on: after an unknown outcome it is bumped, so that a write that
// lingers somewhere can no longer land; where the fence itself was refused, bumping tells whether the lock is still ours
// (R9).
func (c *ReplicationController) afterFailure(ctx context.Context, failure error) error {
	if !errors.Is(failure, store.ErrUnknown) && !store.LockRefused(failure, c.fence) {
		return failure
	}
	c.unsure = true
	if err := c.bump(ctx); err != nil {
		return fmt.Errorf("after %w: %w", failure, err)
	}
	c.log.WithError(failure).WithField(obs.ConsulIndex, c.fence.Index).Info("bumped the fence")
	return failure
}

// bump moves the fence. Until that has worked, every pass begins with it.
func (c *ReplicationController) bump(ctx context.Context) error {
	fence, err := c.farm.cfg.Store.Bump(ctx, c.fence)
	if err != nil {
		return fmt.Errorf("bump the fence: %w", err)
	}
	if c.unsure {
		c.farm.cfg.Metrics.bumped()
	}
	c.fence, c.consistent, c.unsure = fence, true, false
	return nil
}

// abandon gives up a controller whose record is gone. Its pods, if any, run on: nothing says that they should stop (P4).
func (c *ReplicationController) abandon(ctx context.Context, st *rc.Status) error {
	if err := c.farm.cfg.Store.Abandon(ctx, c.ID, c.fence); err != nil {
		c.consistent = true // the record may be there after all
		return c.afterFailure(ctx, err)
	}
	c.alertGone(ctx, st)
	c.log.Warn("the controller's record is gone; its pods are left alone")
	return errGone
}

// finish removes the last records of a deleted controller. Before that it looks for placements once more: a list, unlike the
// transaction that the pass began with, tells of whatever the token may not read. And it moves the fence before it looks. A
// snapshot that is restored between the removal of the last placement and the last transaction brings placements back,
// while the controller's own record may be just as it was; but then the lock is not as it is now.
func (c *ReplicationController) finish(ctx context.Context, v *view) error {
	if err := c.bump(ctx); err != nil {
		c.unsure = true
		return err
	}
	switch left, corrupt, err := c.farm.cfg.Store.Placements(ctx, c.ID, true); {
	case err != nil:
		return err
	case len(left)+len(corrupt) > 0:
		return fmt.Errorf("controller %s has %d placements that its pass did not see", c.ID, len(left)+len(corrupt))
	}
	c.alertGone(ctx, v.head.Status)
	a := store.NewAudit(c.farm.cfg.ID, "finish", c.ID, []string{"removed " + v.head.RC.Value.Name + " after its last pod"})
	if err := c.farm.cfg.Store.Finish(ctx, c.fence, v.head.RC, v.schema.Index, a); err != nil {
		return c.afterFailure(ctx, err)
	}
	c.log.WithField(obs.RCName, v.head.RC.Value.Name).Info("deleted a controller")
	return errGone
}

// concernedByAll makes every changed node concern this controller until the pass under way is remembered.
func (c *ReplicationController) concernedByAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = nil
}

func (c *ReplicationController) isHungry() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hungry
}

// remember keeps what tells whether a changed node concerns this controller. A deep check is done when it found nothing
// to do, and nothing kept it from doing it.
func (c *ReplicationController) remember(v *view, plan *reconcile.Plan, wrote int, err error) {
	nodes, placed := map[string]bool{}, 0
	for i := range v.snapshot.Pods {
		nodes[v.snapshot.Pods[i].Node] = true
	}
	for i := range plan.Changes {
		if p := plan.Changes[i].Placement; p != nil {
			nodes[p.Node] = true
		}
		if plan.Changes[i].Action == reconcile.Place && err == nil && wrote == len(plan.Changes) {
			placed++
		}
	}
	pods := c.staying(&v.head, stopsOf(plan, v.snapshot.Now))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes, c.pods = nodes, pods
	c.hungry = plan.Status.Placed+placed < plan.Status.Desired || plan.Status.Is(rc.InsufficientNodes) || plan.Status.Is(rc.SchedulerFailing) // also for a move
	if v.deep && err == nil && wrote == 0 && v.snapshot.Hold == "" && v.snapshot.Breaker == "" {
		c.lastDeep, c.deep = time.Now(), false
	}
}

// takenOver reports, once, that the controller was just claimed and had an owner before. What came with the lock is read
// again, because it may be old by the time of the pass.
func (c *ReplicationController) takenOver() bool {
	if c.claimed == nil || c.claimed.Head.Status == nil {
		return false
	}
	c.claimed = nil
	return true
}

// rebalance asks for the controller to be given to the farm that prefers it, if that is not this one.
func (c *ReplicationController) rebalance() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = true
	c.looks.ask()
}

// leave gives the controller up if another farm should have it: its labels do not match this farm's selector any more, or
// the members have been stable and another one prefers it.
func (c *ReplicationController) leave(ctx context.Context, v *view) (bool, error) {
	c.mu.Lock()
	leaving := c.leaving
	c.leaving = false
	c.mu.Unlock()
	owner := c.farm.cfg.ID
	if matches := c.phantom || c.farm.cfg.RCSelector.Matches(labels.Set(v.head.RC.Value.Labels)); leaving && matches {
		var err error
		if owner, _, err = c.farm.preferred(ctx, c.ID); err != nil {
			return false, err
		}
	} else if !matches {
		owner = "a farm whose selector matches it"
	}
	if owner == c.farm.cfg.ID || owner == "" {
		return false, nil
	}
	if err := c.farm.cfg.Store.Release(ctx, c.ID, c.fence); err != nil {
		c.rebalance()
		return false, c.afterFailure(ctx, err)
	}
	c.log.WithField("to", owner).Info("handed a controller over")
	return true, errHandedOver
}

func (c *ReplicationController) concernedBy(changed map[string]bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hungry || c.nodes == nil {
		return true
	}
	for name := range c.nodes {
		if changed[name] {
			return true
		}
	}
	return false
}

// placedOn returns the nodes where the controller had pods at the last look; none while it is looked at.
func (c *ReplicationController) placedOn() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.nodes))
}

// checkDeeply asks for a deep check in the next pass.
func (c *ReplicationController) checkDeeply() {
	c.looks.ask()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deep = true
}

// checkedAt returns when the last deep check was done; zero: not by this farm.
func (c *ReplicationController) checkedAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastDeep
}

// summary counts changes by action, for the log.
func summary(changes []reconcile.Change) string {
	counts := map[reconcile.Action]int{}
	var order []reconcile.Action
	for i := range changes {
		if counts[changes[i].Action]++; counts[changes[i].Action] == 1 {
			order = append(order, changes[i].Action)
		}
	}
	text := ""
	for _, a := range order {
		text += fmt.Sprintf(" %s:%d", a, counts[a])
	}
	return text[min(1, len(text)):]
}
