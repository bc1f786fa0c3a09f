package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// LeakReads are how the leader finds shares of nodes that nobody has any more.
type LeakReads interface {
	// Unexplained returns shares that no intent explains. It is a hint.
	Unexplained(ctx context.Context, nodes []string) ([]store.At, error)
	// Unplaced returns those of some copies that are neither placements nor ghosts.
	Unplaced(ctx context.Context, copies []store.At) ([]store.At, error)
}

// RepairAsker is how the leader asks for the release of what it found.
type RepairAsker interface {
	// AskRepair asks once: it returns ErrConflict while the same was asked and is not answered.
	AskRepair(ctx context.Context, rcID, node string, a store.Audit) error
}

// leaks looks for shares of nodes that nobody has any more, on some nodes after each sweep, and asks for their release. One loop, that of the leader, uses
// it. It releases nothing: whoever owns the controller, or takes the lock of one without a record, looks again and does (ADR 25).
type leaks struct {
	*core
	as       RepairAsker
	rest     []string // nodes that this round has yet to look at
	suspects suspects
	asked    map[store.At]time.Time
}

// leaksAtOnce is on how many nodes the leader looks for leaks in the least with each sweep.
const leaksAtOnce = 25

// suspects are shares that nothing explained when they were last looked at, and since when.
type suspects map[store.At]time.Time

// confirm takes in what nothing explains on the nodes that were looked at, and returns what nothing has explained for so long.
func (s suspects) confirm(looked map[string]bool, unexplained []store.At, now time.Time, long time.Duration) (confirmed []store.At) {
	found := setOf(unexplained)
	for at := range s {
		if looked[at.Node] && !found[at] {
			delete(s, at)
		}
	}
	for _, at := range unexplained {
		switch since, known := s[at]; {
		case !known:
			s[at] = now
		case now.Sub(since) >= long:
			confirmed = append(confirmed, at)
		}
	}
	return confirmed
}

// look looks at some nodes, and at all that have suspects.
func (l *leaks) look(ctx context.Context, now time.Time) error {
	seen := l.cache.now()
	if l.suspects == nil || l.kit.nodeSync.hold(seen.schema.Value.Epoch) != "" {
		l.suspects, l.asked = suspects{}, map[store.At]time.Time{} // what seemed leaked may run on a node that has yet to say so (R1)
		return nil
	}
	names, err := l.next(ctx)
	if err != nil {
		return err
	}
	unexplained, err := l.cfg.Store.Unexplained(ctx, names)
	if err != nil {
		return err
	}
	nodes, _ := l.cache.nodesAt()
	confirmed := l.suspects.confirm(setOf(names), unexplained, now, l.cfg.SweepEvery)
	maps.DeleteFunc(l.asked, func(_ store.At, last time.Time) bool { return now.Sub(last) >= l.cfg.ResyncEvery })
	confirmed = slices.DeleteFunc(confirmed, func(at store.At) bool {
		_, asked := l.asked[at]
		return asked || !shareless(nodes[at.Node], seen.schema.Value.Epoch, at.Identity)
	})
	unplaced, err := l.cfg.Store.Unplaced(ctx, confirmed)
	if err != nil {
		return err
	}
	return l.ask(ctx, unplaced[:min(len(unplaced), maxReports)], now)
}

// next returns the nodes to look at: those of suspects, and so many others that all have their turn within the time between two resyncs.
func (l *leaks) next(ctx context.Context) ([]string, error) {
	if len(l.rest) == 0 {
		all, err := l.cfg.Store.ListReservedNodes(ctx)
		if err != nil {
			return nil, err
		}
		l.rest = all
	}
	nodes, _ := l.cache.nodesAt()
	some := min(len(l.rest), max(leaksAtOnce, int(float64(len(nodes))*float64(l.cfg.SweepEvery)/float64(l.cfg.ResyncEvery))))
	names := slices.Clone(l.rest[:some])
	l.rest = l.rest[some:]
	for at := range l.suspects {
		names = append(names, at.Node)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// shareless reports whether a node that has said what it runs does not run the pod.
func shareless(v *node.View, epoch string, id pod.Identity) bool {
	return v != nil && v.Alive && v.Spoke(epoch) && !slices.ContainsFunc(v.Orphans, func(o pod.Orphan) bool { return o.Identity == id })
}

// ask leaves a request for each controller and node, where none is left.
func (l *leaks) ask(ctx context.Context, leaked []store.At, now time.Time) error {
	asked := map[[2]string]bool{}
	for _, at := range leaked {
		l.asked[at] = now
		key := [2]string{at.RCID, at.Node}
		if asked[key] {
			continue
		}
		asked[key] = true
		line := fmt.Sprintf("release %s on %s: no pod is there", at.Identity, at.Node)
		err := l.as.AskRepair(ctx, at.RCID, at.Node, store.NewAudit(l.cfg.ID, string(store.RepairReservation), at.RCID, []string{line}).OnNodes(at.Node))
		switch {
		case errors.Is(err, store.ErrConflict):
			continue // nobody has answered yet
		case err != nil:
			return err
		}
		l.log.WithFields(obs.Fields{obs.RCID: at.RCID, obs.Node: at.Node, obs.Pod: at.Identity.String()}).Warn("a share of a node is held for a pod that is not there; its release is asked for")
	}
	return nil
}
