package farm

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

type mender struct{ *core }

// mendClaims asks for a resync of each controller that has pods on a node without a reservation. The resync reserves
// their shares again (P3).
func (m mender) mendClaims(ctx context.Context) error {
	owned := m.roster.all()
	nodes := make([][]string, len(owned)) // read before the reservations, because a pod that is placed later has one
	for i, c := range owned {
		nodes[i] = slices.Collect(maps.Keys(c.shared.now().nodes))
	}
	names, err := m.cfg.Store.ListReservedNodes(ctx)
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
			m.queue.Add(c.unit.id)
		}
	}
	return nil
}

// mendFresh checks the nodes whose first reservation this farm has written. If an earlier reservation was lost, the
// shares of other controllers are missing, and mendFresh asks their owners to reserve them again.
func (m mender) mendFresh(ctx context.Context) error {
	names := m.kit.fresh.take()
	for len(names) > freshPerSweep {
		m.kit.fresh.add(names[len(names)-1])
		names = names[:len(names)-1]
	}
	if err := m.askForClaims(ctx, names); err != nil {
		m.kit.fresh.add(names...)
		return err
	}
	return nil
}

// askForClaims asks the owners of pods that have no share on some nodes to reserve it.
func (m mender) askForClaims(ctx context.Context, names []string) error {
	missing, err := m.cfg.Store.Unreserved(ctx, names)
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
		if exists, err := m.cfg.Store.RCExists(ctx, at.RCID); err != nil || !exists {
			continue // its placements are reported as placements without a controller
		}
		r := store.NewRepair(m.cfg.ID, at.RCID, at.Node)
		lines := []string{"reserve what it has on " + at.Node + ": the record was lost"}
		a := store.NewAudit(m.cfg.ID, string(r.Kind), at.RCID, lines).OnNodes(at.Node)
		if err := m.cfg.Store.Ask(ctx, r, a); err != nil {
			return err
		}
	}
	return nil
}

// freshPerSweep is how many nodes mendFresh checks in one sweep, because it reads the intents of each. For 1,000 nodes
// all checks take ten minutes; by then the resyncs have found the same.
const freshPerSweep = 50

// mendMismatched mends the reservations that passes have noted as different from the records of their nodes.
func (m mender) mendMismatched(ctx context.Context) error {
	names := m.kit.mismatched.take()
	err := m.mendReservations(ctx, names, m.cfg.Store.MendReservation)
	if err != nil {
		m.kit.mismatched.add(names...)
	}
	return err
}

// mendDrained mends the reservations of drained nodes, because perhaps no pass has read them.
func (m mender) mendDrained(ctx context.Context, as LeaderStore) error {
	nodes, _ := m.cache.nodesAt()
	var names []string
	for name, v := range nodes {
		if v.Ops.Drain != nil {
			names = append(names, name)
		}
	}
	return m.mendReservations(ctx, names, as.MendReservation)
}

// mendReservations writes into reservations whether the node is drained (R13), and with which label versions pods may
// be placed there (ADR 12). This is wrong if the record was lost, is an older copy, or is of an older program. Without
// the drain, a farm that does not know of it could place a pod there. With wrong labels, no farm could.
func (m mender) mendReservations(
	ctx context.Context, names []string, mend func(ctx context.Context, nodeName string) (mended bool, err error),
) error {
	nodes, _ := m.cache.nodesAt()
	d, err := m.cfg.Store.ReadDetails(ctx, store.Wanted{Reservations: names}, store.Default)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if d.Unreadable[name] != nil || !disagrees(nodes[name], d.Reservations[name].Value) {
			continue // only this farm's view was old
		}
		mended, err := mend(ctx, name)
		switch {
		case mended:
			m.kit.fresh.add(name) // the record may have been lost before
			m.log.WithField(obs.Node, name).
				Warn("a node's reservation did not match the node's record and the operators' record; mended")
			m.kit.places.Changed([]string{name})
			m.capacityFreed("")
		case errors.Is(err, store.ErrRefused): // another write came first; the next sweep looks again
		case err != nil:
			errs = append(errs, err)
		}
	}
	return joined(errs)
}
