package janitor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Graves is the forgetter's side of the store; *store.Leader has it.
type Graves interface {
	ReadGone(ctx context.Context) (store.Rec[store.Gone], error)
	WriteGone(ctx context.Context, rec store.Rec[store.Gone]) error
	LeftOn(ctx context.Context, names []string) (map[string]store.LeftOn, error)
	AgentGone(ctx context.Context, consulNode string) (bool, error)
	RemoveNode(ctx context.Context, r store.NodeRemoval) error
}

// ForgetConfig is what a forgetter needs.
type ForgetConfig struct {
	Farm   string // id
	Graves Graves
	// Nodes returns all nodes, the cluster's epoch, and whether every node that lives has said what it runs.
	Nodes   func() (nodes map[string]*node.View, epoch string, synced bool)
	Ready   func() error  // nil: all nodes were seen; before that nothing is known to be gone
	After   time.Duration // for which a node must have been gone; zero: none is forgotten
	Log     obs.Logger
	Metrics *Metrics
}

// Metrics is what a janitor counts. It outlives sessions.
type Metrics struct {
	kept      *prometheus.GaugeVec
	forgotten prometheus.Counter
}

// NewMetrics makes and registers the metrics of a janitor.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := obs.NewMeter(reg, "farm")
	return &Metrics{
		kept: obs.Gauges(m, "kept_nodes",
			"Nodes gone for longer than --forget-node-after whose records stay, by why; reported by the leader.", "reason", Reasons...),
		forgotten: m.Counter("forgotten_nodes_total", "Nodes whose records this farm removed, because they were gone for longer than --forget-node-after."),
	}
}

func (m *Metrics) keep(kept map[Reason]int) {
	for _, r := range Reasons {
		m.kept.WithLabelValues(string(r)).Set(float64(kept[r]))
	}
}

// Forgetter removes the records of nodes whose machines have been gone for long (ADR 27).
type Forgetter struct {
	cfg  ForgetConfig
	last time.Time // when this leader looked last; zero: it has not
	// unnoted is the time that has passed and is not written yet. A leader that ends loses it.
	unnoted time.Duration
}

// NewForgetter returns a forgetter.
func NewForgetter(cfg ForgetConfig) *Forgetter { return &Forgetter{cfg: cfg} }

// The pace of looks: a tenth of the time for which a node must have been gone, within bounds.
const (
	forgetEvery    = time.Second
	forgetEveryMax = 10 * time.Minute
)

// noteEvery is how much time of nodes that stay gone is written at once, at the least.
const noteEvery = 10 * time.Second

// ForgetEvery returns how long it is from one look to the next.
func ForgetEvery(after time.Duration) time.Duration {
	return min(max(after/10, forgetEvery), forgetEveryMax)
}

// Run forgets nodes until ctx, which is the leadership, ends. Failures are logged, and tried again with the next look.
func (f *Forgetter) Run(ctx context.Context) error {
	if f.cfg.After == 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	defer f.cfg.Metrics.keep(nil)
	f.last, f.unnoted = time.Time{}, 0
	for {
		if err := f.Look(ctx, time.Now()); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrConflict) {
			f.cfg.Log.WithError(err).Warn("cannot tell which nodes are gone for good")
		}
		if err := wait.Pause(ctx, ForgetEvery(f.cfg.After)); err != nil {
			return err
		}
	}
}

// passed returns how much of the time since the last look counts: none for one who was just elected, nor where the clock went back, and at most two steps where it went
// ahead, or the leader was paused. What a leader has counted is not counted again: if it could not be noted it is lost, which only puts it off.
func (f *Forgetter) passed(now time.Time) time.Duration {
	last := f.last
	if f.last = now; last.IsZero() {
		return 0
	}
	return min(max(now.Sub(last), 0), 2*ForgetEvery(f.cfg.After))
}

// Look notes which nodes are gone, and forgets those that have been for long enough. now is a time of the leader's own.
func (f *Forgetter) Look(ctx context.Context, now time.Time) error {
	passed := f.passed(now) + f.unnoted
	f.unnoted = 0
	if f.cfg.Ready() != nil {
		return nil // without its nodes, what was noted of them would seem to be over
	}
	nodes, epoch, synced := f.cfg.Nodes()
	fleet := Fleet{Nodes: nodes, Synced: synced, Now: now.UTC().Truncate(time.Millisecond), Passed: passed}
	rec, err := f.cfg.Graves.ReadGone(ctx)
	if err != nil {
		return fmt.Errorf("read since when nodes are gone: %w", err)
	}
	noted := fleet.Deaths(rec.Value.Nodes)
	switch same := maps.EqualFunc(noted, rec.Value.Nodes, func(a, b store.Death) bool { return a.Index == b.Index }); {
	case same && passed < noteEvery:
		f.unnoted = passed
	case !maps.Equal(noted, rec.Value.Nodes):
		rec.Value.Nodes = noted
		if err := f.cfg.Graves.WriteGone(ctx, rec); err != nil {
			return fmt.Errorf("note since when nodes are gone: %w", err)
		}
	}
	due := Due(noted, f.cfg.After)
	kept := map[Reason]int{}
	defer func() { f.cfg.Metrics.keep(kept) }()
	switch {
	case len(due) == 0:
		return nil
	case !fleet.Sound():
		kept[KeptByFleet] = len(due)
		return nil
	}
	left, err := f.cfg.Graves.LeftOn(ctx, due)
	if err != nil {
		return fmt.Errorf("read what is left on nodes that are gone: %w", err)
	}
	quota := fleet.Quota()
	for _, name := range due {
		why := keeps(nodes[name], left[name], epoch)
		if why == "" && quota == 0 {
			why = KeptByPace
		}
		if why == "" {
			if why, err = f.forget(ctx, nodes[name], left[name], noted[name]); err != nil {
				return err
			}
		}
		if why == "" {
			quota--
		} else {
			kept[why]++
		}
	}
	return nil
}

// forget removes a node's records, unless its machine is not gone after all. Whoever comes back, or places something there, meanwhile
// changes what the removal depends on.
func (f *Forgetter) forget(ctx context.Context, v *node.View, left store.LeftOn, death store.Death) (Reason, error) {
	gone, err := f.cfg.Graves.AgentGone(ctx, v.ConsulNode)
	if err != nil {
		return KeptByAgent, fmt.Errorf("tell whether the machine of node %s is gone: %w", v.Name, err)
	}
	if !gone {
		return KeptByAgent, nil
	}
	text := fmt.Sprintf("remove node %s: its machine is gone since %s or longer", v.Name, death.Since.Format(time.RFC3339))
	err = f.cfg.Graves.RemoveNode(ctx, store.NodeRemoval{
		Name: v.Name, Node: death.Index, Reservation: left.Reservation, Audit: store.NewAudit(f.cfg.Farm, "forget-node", "", []string{text}).OnNodes(v.Name),
	})
	switch {
	case store.Denied(err):
		return KeptByPace, fmt.Errorf("forget node %s: the token may not: %w", v.Name, err)
	case errors.Is(err, store.ErrRefused):
		return KeptByPace, nil // it is not as it was; the next look finds out
	case err != nil:
		return KeptByPace, fmt.Errorf("forget node %s: %w", v.Name, err)
	}
	f.cfg.Metrics.forgotten.Inc()
	f.cfg.Log.WithField(obs.Node, v.Name).WithField("since", death.Since.Format(time.RFC3339)).Warn("removed the records of a node whose machine is gone")
	return "", nil
}
