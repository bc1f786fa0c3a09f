package place

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Memory is what a controller's owner remembers about an outside scheduler between passes.
type Memory struct {
	booked   map[scheduler.Allocation]bool // shares in the scheduler's books; true: of this controller; nil: not known
	bookless bool                          // the scheduler has answered that it keeps no books
	// unfit has the nodes that the scheduler named for a pod and that could not take it, the latest last. The entry
	// goes when the scheduler names a node that can take the pod, or none.
	unfit map[pod.Identity][]string
}

// maxUnfit is how many unfit nodes are remembered for a pod. The scheduler itself must avoid others.
const maxUnfit = 8

func (m *Memory) noteUnfit(asked []pod.Identity, unfit []scheduler.Allocation) {
	named := make(map[pod.Identity]string, len(unfit))
	for _, a := range unfit {
		named[a.Pod] = a.Node
	}
	for _, id := range asked {
		name, lacks := named[id]
		switch names := m.unfit[id]; {
		case !lacks:
			delete(m.unfit, id)
		case m.unfit == nil:
			m.unfit = map[pod.Identity][]string{id: {name}}
		case !slices.Contains(names, name):
			m.unfit[id] = append(names[max(0, len(names)+1-maxUnfit):], name)
		}
	}
}

// account makes an outside scheduler's books match the placements of one controller, in one pass.
type account struct {
	finder *Finder
	owner  scheduler.Owner // on whose behalf the scheduler is asked
	nodes  Nodes
	log    obs.Logger
	Memory
}

// Balance makes the books of an outside scheduler match the placements, and reports whether they do. After a crash
// between allocation and placement, or a deallocation that failed, the books show what is left to do. Balance reads
// them when they are not known: at the start of a tenure, in a resync, and after each failure.
func (a *account) Balance(ctx context.Context, plan *reconcile.Plan, resync bool) (even bool) {
	s := &plan.Facts().Snapshot
	switch a.readBooks(ctx, plan, resync) {
	case noBooks:
		plan.BooksDiffer(s.Now, "")
		return true
	case booksUnknown:
		return false
	case booksKnown:
	}
	leaked, unallocated := compareBooks(s, a.finder.cfg.Orphans(a.owner.RCID), plan.Adds, a.booked)
	if len(leaked) > 0 && s.Hold != "" {
		return false // the pod of a share that looks leaked may run on a node that has not reported yet (R1)
	}
	leaked, err := a.stillLeaked(ctx, leaked)
	if err != nil {
		a.log.WithError(err).Warn("cannot find out which shares of nodes are leaked")
		plan.Retry()
		return false
	}
	var errs []string
	if err := a.deallocate(ctx, leaked); err != nil {
		errs = append(errs, describeLeaked(s, leaked)+": "+err.Error())
	}
	if err := a.book(ctx, plan, unallocated); err != nil {
		errs = append(errs, fmt.Sprintf("%d replicas are not in its books: %v", len(unallocated), err))
	}
	plan.BooksDiffer(s.Now, strings.Join(errs, "; "))
	return len(errs) == 0
}

type standing int

const (
	noBooks standing = iota
	booksUnknown
	booksKnown
)

func (a *account) keepsBooks() bool { return a.finder.books != nil && !a.bookless }

func (a *account) readBooks(ctx context.Context, plan *reconcile.Plan, resync bool) standing {
	if a.finder.books == nil {
		return noBooks
	}
	if a.booked == nil && !a.bookless || resync {
		booked, err := a.finder.books.booked(ctx, a.owner)
		a.booked, a.bookless = booked, errors.Is(err, scheduler.ErrNoBooks)
		if err != nil && !a.bookless {
			a.booked = nil
			a.log.WithError(err).Warn("the scheduler does not show its books")
			plan.Retry()
			if plan.Finish {
				plan.SchedulerFails(plan.Facts().Now,
					"the controller's last records are kept until the scheduler shows its books: "+err.Error())
			}
			return booksUnknown
		}
	}
	if a.bookless {
		return noBooks
	}
	return booksKnown
}

// stillLeaked removes shares whose placements exist, but were missing in the pass: a stale leader of Consul may have
// answered it. A transaction also leaves out placements that the token may not read, without an error. A list reports
// an error for them.
func (a *account) stillLeaked(ctx context.Context, leaked []scheduler.Allocation) ([]scheduler.Allocation, error) {
	if len(leaked) == 0 {
		return nil, nil
	}
	placements, corrupt, err := a.finder.cfg.Reads.Placements(ctx, a.owner.RCID, store.Consistent)
	if err = errors.Join(append(corrupt, err)...); err != nil {
		return nil, err
	}
	there := shares{}
	for i := range placements {
		there.addCopies(&placements[i].Value)
	}
	return slices.DeleteFunc(leaked, func(s scheduler.Allocation) bool { return there[s] }), nil
}

// shares has shares whose pods are, or may be, on the node.
type shares map[scheduler.Allocation]bool

func (s shares) addCopies(p *pod.Placement) {
	s[scheduler.Allocation{Pod: p.Identity, Node: p.Node}] = true
	for _, g := range p.Ghosts {
		s[scheduler.Allocation{Pod: p.Identity, Node: g.Node}] = true
	}
}

// compareBooks returns, in a stable order, the booked shares that no pod has or needs any more, and the replicas
// without a booked share of their node.
func compareBooks(
	s *reconcile.Snapshot, orphans []reconcile.Orphan, adds []pod.Identity, booked map[scheduler.Allocation]bool,
) (leaked []scheduler.Allocation, unallocated []scheduler.Want) {
	there := shares{}
	for i := range s.Pods {
		p := &s.Pods[i]
		there.addCopies(&p.Placement)
		if at := (scheduler.Allocation{Pod: p.Identity, Node: p.Node}); !booked[at] {
			unallocated = append(unallocated, scheduler.Want{Pod: p.Identity, Node: p.Node})
		}
	}
	for _, o := range orphans {
		there[scheduler.Allocation{Pod: o.Identity, Node: o.Node}] = true
	}
	added := field.Set(adds)
	for a, ours := range booked {
		// The pass asks again for the share of a replica that is not placed yet.
		if ours && !there[a] && !added[a.Pod] {
			leaked = append(leaked, a)
		}
	}
	slices.SortFunc(leaked, func(a, b scheduler.Allocation) int {
		if d := a.Pod.Compare(b.Pod); d != 0 {
			return d
		}
		return strings.Compare(a.Node, b.Node)
	})
	return leaked, unallocated
}

func describeLeaked(s *reconcile.Snapshot, leaked []scheduler.Allocation) string {
	const show = 5
	var lines []string
	for _, a := range leaked[:min(show, len(leaked))] {
		line := fmt.Sprintf("%s is still allocated to %s.%d, which is gone", a.Node, a.Pod.Role, a.Pod.Index)
		if i := slices.IndexFunc(s.Pods, func(p reconcile.Pod) bool { return p.Identity == a.Pod }); i >= 0 {
			line = fmt.Sprintf("%s is still allocated to %s.%d, which is on %s now",
				a.Node, a.Pod.Role, a.Pod.Index, s.Pods[i].Node)
		}
		lines = append(lines, line)
	}
	if more := len(leaked) - show; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, ", ")
}

func (a *account) deallocate(ctx context.Context, allocations []scheduler.Allocation) error {
	if len(allocations) == 0 {
		return nil
	}
	if err := a.finder.books.deallocate(ctx, a.owner, allocations); err != nil {
		a.booked = nil
		a.log.WithError(err).WithField("shares", len(allocations)).Warn("cannot give shares back to the scheduler")
		return err
	}
	for _, share := range allocations {
		delete(a.booked, share)
	}
	return nil
}

// book allocates shares for replicas on their present nodes, lot by lot, because one request describes pods with equal
// needs. Lots without a known manifest wait.
func (a *account) book(ctx context.Context, plan *reconcile.Plan, wants []scheduler.Want) error {
	if len(wants) == 0 || a.booked == nil || plan.Facts().Manifest == nil {
		return nil
	}
	byPod := make(map[pod.Identity]scheduler.Want, len(wants))
	lots := plan.Lots(field.Each(wants, func(w scheduler.Want) pod.Identity {
		byPod[w.Pod] = w
		return w.Pod
	}))
	for i := range lots {
		if lots[i].Manifest == nil {
			continue
		}
		view := viewOf(plan.Facts(), &lots[i], a.nodes.Version)
		of := field.Each(lots[i].Pods, func(id pod.Identity) scheduler.Want { return byPod[id] })
		if err := a.bookLot(ctx, view, of); err != nil {
			return err
		}
	}
	return nil
}

func (a *account) bookLot(ctx context.Context, view *scheduler.View, wants []scheduler.Want) error {
	given, err := a.finder.books.allocate(ctx, a.owner, view, wants)
	if err != nil {
		a.booked = nil
		return err
	}
	booked := map[scheduler.Allocation]bool{}
	for _, share := range given {
		booked[share], a.booked[share] = true, true
	}
	for _, w := range wants {
		if !booked[scheduler.Allocation{Pod: w.Pod, Node: w.Node}] {
			a.booked = nil // the next pass reads the books again
			return fmt.Errorf("%s.%d is on %s, which was not booked", w.Pod.Role, w.Pod.Index, w.Node)
		}
	}
	return nil
}

// ask asks for shares on nodes that the pods do not avoid. All shares of the answer are in the books, also those that
// cannot be used.
func (a *account) ask(
	ctx context.Context, view *scheduler.View, pods []pod.Identity, avoid map[pod.Identity][]string,
) ([]scheduler.Allocation, error) {
	wants := field.Each(pods, func(id pod.Identity) scheduler.Want {
		return scheduler.Want{Pod: id, Avoid: slices.Concat(avoid[id], a.unfit[id])}
	})
	given, err := a.finder.books.allocate(ctx, a.owner, view, wants)
	if err != nil {
		a.booked = nil
		return nil, err
	}
	for _, share := range given {
		if a.booked != nil {
			a.booked[share] = true
		}
	}
	return given, nil
}
