package farm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// mender mends reservations that somebody has lost or written without knowing all.
type mender struct{ *core }

// mendClaims asks for a resync of each controller that has pods on a node without a reservation, as where the record was
// lost. The check reserves their claims again (P3).
func (f mender) mendClaims(ctx context.Context) error {
	owned := f.roster.all()
	nodes := make([][]string, len(owned)) // before the reservations: what is placed later has one
	for i, c := range owned {
		nodes[i] = slices.Collect(maps.Keys(c.shared.now().nodes))
	}
	names, err := f.cfg.Store.ListReservedNodes(ctx)
	if err != nil {
		return err
	}
	reserved := map[string]bool{}
	for _, name := range names {
		reserved[name] = true
	}
	for i, c := range owned {
		if slices.ContainsFunc(nodes[i], func(name string) bool { return !reserved[name] }) {
			c.shared.askResync()
			f.queue.Add(c.unit.id)
		}
	}
	return nil
}

// mendFresh looks at nodes whose first reservation this farm has written. Where it was only the first after the record was
// lost, claims of others are missing, whose owners are asked to reserve them again. What is forgotten here, by a farm that
// dies, the slow resync of those others finds.
func (f mender) mendFresh(ctx context.Context) error {
	names := f.kit.fresh.take()
	for len(names) > freshPerSweep {
		f.kit.fresh.add(names[len(names)-1])
		names = names[:len(names)-1]
	}
	if err := f.askForClaims(ctx, names); err != nil {
		f.kit.fresh.add(names...)
		return err
	}
	return nil
}

// askForClaims asks the owners of what has no claim on some nodes.
func (f mender) askForClaims(ctx context.Context, names []string) error {
	missing, err := f.cfg.Store.Unreserved(ctx, names)
	if err != nil {
		return err
	}
	asked := map[[2]string]bool{}
	for _, at := range missing {
		key := [2]string{at.RCID, at.Node}
		if asked[key] {
			continue
		}
		asked[key] = true
		if exists, err := f.cfg.Store.RCExists(ctx, at.RCID); err != nil || !exists {
			continue // its placements are reported as what they are
		}
		r := store.NewRepair(f.cfg.ID, at.RCID, at.Node)
		a := store.NewAudit(f.cfg.ID, string(r.Kind), at.RCID, []string{"reserve what it has on " + at.Node + ": the record was lost"}).OnNodes(at.Node)
		if err := f.cfg.Store.Ask(ctx, r, a); err != nil {
			return err
		}
	}
	return nil
}

// freshPerSweep bounds how many nodes one sweep reads the intents of. After pods were placed on a thousand nodes that held none
// before, it takes ten minutes to have looked at all, which is when the slow resync finds the same.
const freshPerSweep = 50

// nodeSet is nodes that something is to be done about.
type nodeSet struct {
	mu    sync.Mutex
	names map[string]bool
}

func (s *nodeSet) add(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		s.names = map[string]bool{}
	}
	for _, name := range names {
		s.names[name] = true
	}
}

// take returns the nodes and forgets them.
func (s *nodeSet) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := slices.Sorted(maps.Keys(s.names))
	s.names = nil
	return names
}

// disagrees reports whether a reservation says of the node something else than its record and its operators, as seen last: whether it is
// drained, or which labels it has.
func disagrees(v *node.View, res node.Reservation) bool {
	return v != nil && v.OpsUnread == "" && !res.Agrees(v.Ops.Drain != nil, v.LabelVersions)
}

// mendMet mends the reservations that this farm has met, and that did not say what is known of their nodes.
func (f mender) mendMet(ctx context.Context) error {
	names := f.kit.mismatched.take()
	err := f.mendReservations(ctx, names, f.cfg.Store.MendReservation)
	if err != nil {
		f.kit.mismatched.add(names...)
	}
	return err
}

// mendDrained mends the reservations of drained nodes, which no farm may have met. A cluster without drains reads nothing.
func (f mender) mendDrained(ctx context.Context, as Duties) error {
	nodes, _ := f.cache.nodesAt()
	var names []string
	for name, v := range nodes {
		if v.Ops.Drain != nil {
			names = append(names, name)
		}
	}
	return f.mendReservations(ctx, names, as.MendReservation)
}

// mendReservations makes reservations say which nodes are drained (R13) and for which labels pods may be placed (ADR 12), where the
// record was lost, or is an older one, or was written by somebody who does not know about the one or the other. Without it a farm that
// has not heard of a drain yet could place there, and none where the labels are said to be others.
func (f mender) mendReservations(ctx context.Context, names []string, mend func(ctx context.Context, nodeName string) (mended bool, err error)) error {
	nodes, _ := f.cache.nodesAt()
	d, err := f.cfg.Store.ReadDetails(ctx, store.Wanted{Reservations: names}, false)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if d.Unreadable[name] != nil || !disagrees(nodes[name], d.Reservations[name].Value) {
			continue // this farm has only been the last to hear
		}
		mended, err := mend(ctx, name)
		switch {
		case mended:
			f.kit.fresh.add(name) // it may be the first record after a loss
			f.log.WithField(obs.Node, name).Warn("a node's reservation did not say what operators and the node's record say; mended")
			f.kit.scarcity.changed([]string{name})
			f.roomFreed("")
		case errors.Is(err, store.ErrRefused): // somebody was faster; the next sweep looks again
		case err != nil:
			errs = append(errs, err)
		}
	}
	return joined(errs)
}
