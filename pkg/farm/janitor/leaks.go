package janitor

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

// LeakReads finds shares whose pods do not exist any more.
type LeakReads interface {
	ListReservedNodes(ctx context.Context) ([]string, error)
	// Unexplained returns shares without an intent. The result is only a hint.
	Unexplained(ctx context.Context, nodes []string) ([]store.At, error)
	// Unplaced returns which of the copies are neither placements nor ghosts.
	Unplaced(ctx context.Context, copies []store.At) ([]store.At, error)
}

// RepairAsker asks the owner of a controller to release shares.
type RepairAsker interface {
	// AskRepair writes a request. It returns ErrConflict if the same one exists.
	AskRepair(ctx context.Context, rcID, node string, a store.Audit) error
}

// LeakConfig is what Leaks needs.
type LeakConfig struct {
	Farm  string // id
	Reads LeakReads
	Asker RepairAsker
	// Nodes is as in ForgetConfig.
	Nodes        func() (nodes map[string]*node.View, epoch string, synced bool)
	Every, Round time.Duration // between two looks, and between two looks at the same node
	Log          obs.Logger
}

// Leaks finds leaked shares, on some nodes each time, and asks for their release. The controller's owner checks again
// and releases them; without a record of the controller, a farm takes the lock for that (ADR 25). It is not safe for
// concurrent use.
type Leaks struct {
	cfg      LeakConfig
	rest     []string // nodes that were not looked at yet in this round
	suspects suspects
	asked    map[store.At]time.Time
}

// NewLeaks returns Leaks that have looked at no node yet.
func NewLeaks(cfg LeakConfig) *Leaks { return &Leaks{cfg: cfg} }

const leaksAtOnce = 25

// suspects are shares without an intent at the last look at their node, and when that was first seen.
type suspects map[store.At]time.Time

// confirm replaces the suspects on the looked nodes, and returns those that were first seen at least long ago.
func (s suspects) confirm(
	looked []string, unexplained []store.At, now time.Time, long time.Duration,
) (confirmed []store.At) {
	on, found := map[string]bool{}, map[store.At]bool{}
	for _, name := range looked {
		on[name] = true
	}
	for _, at := range unexplained {
		found[at] = true
		switch since, known := s[at]; {
		case !known:
			s[at] = now
		case now.Sub(since) >= long:
			confirmed = append(confirmed, at)
		}
	}
	maps.DeleteFunc(s, func(at store.At, _ time.Time) bool { return on[at.Node] && !found[at] })
	return confirmed
}

// Look looks at some nodes, and at all nodes with suspects.
func (l *Leaks) Look(ctx context.Context, now time.Time) error {
	nodes, epoch, synced := l.cfg.Nodes()
	if l.suspects == nil || !synced {
		// A share that seemed leaked may belong to a pod on a node that has not reported yet (R1).
		l.suspects, l.asked = suspects{}, map[store.At]time.Time{}
		return nil
	}
	names, err := l.next(ctx, len(nodes))
	if err != nil {
		return err
	}
	unexplained, err := l.cfg.Reads.Unexplained(ctx, names)
	if err != nil {
		return err
	}
	confirmed := l.suspects.confirm(names, unexplained, now, l.cfg.Every)
	maps.DeleteFunc(l.asked, func(_ store.At, last time.Time) bool { return now.Sub(last) >= l.cfg.Round })
	confirmed = slices.DeleteFunc(confirmed, func(at store.At) bool {
		_, asked := l.asked[at]
		return asked || !shareless(nodes[at.Node], epoch, at.Identity)
	})
	unplaced, err := l.cfg.Reads.Unplaced(ctx, confirmed)
	if err != nil {
		return err
	}
	return l.ask(ctx, unplaced[:min(len(unplaced), maxAsked)], now)
}

// next returns the nodes with suspects, and enough others for a look at each in every round.
func (l *Leaks) next(ctx context.Context, all int) (names []string, err error) {
	if len(l.rest) == 0 {
		if l.rest, err = l.cfg.Reads.ListReservedNodes(ctx); err != nil {
			return nil, err
		}
	}
	some := min(len(l.rest), max(leaksAtOnce, int(float64(all)*float64(l.cfg.Every)/float64(l.cfg.Round))))
	names = slices.Clone(l.rest[:some])
	l.rest = l.rest[some:]
	for at := range l.suspects {
		names = append(names, at.Node)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// shareless reports whether a living node has spoken and does not run the pod.
func shareless(v *node.View, epoch string, id pod.Identity) bool {
	return v != nil && v.Alive && v.Spoke(epoch) &&
		!slices.ContainsFunc(v.Orphans, func(o pod.Orphan) bool { return o.Identity == id })
}

func (l *Leaks) ask(ctx context.Context, leaked []store.At, now time.Time) error {
	asked := map[[2]string]bool{}
	for _, at := range leaked {
		l.asked[at] = now
		key := [2]string{at.RCID, at.Node}
		if asked[key] {
			continue
		}
		asked[key] = true
		line := fmt.Sprintf("release %s on %s: no pod is there", at.Identity, at.Node)
		audit := store.NewAudit(l.cfg.Farm, string(store.RepairReservation), at.RCID, []string{line}).OnNodes(at.Node)
		err := l.cfg.Asker.AskRepair(ctx, at.RCID, at.Node, audit)
		switch {
		case errors.Is(err, store.ErrConflict):
			continue // the owner has not answered the request yet
		case err != nil:
			return err
		}
		l.cfg.Log.WithFields(obs.Fields{obs.RCID: at.RCID, obs.Node: at.Node, obs.Pod: at.Identity.String()}).
			Warn("a node has a share for a pod that is not there; the owner is asked to release it")
	}
	return nil
}
