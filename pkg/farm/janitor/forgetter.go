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

// ForgetStore is what a forgetter needs of the store. *store.Leader implements it.
type ForgetStore interface {
	ReadGone(ctx context.Context) (store.Rec[store.Gone], error)
	WriteGone(ctx context.Context, rec store.Rec[store.Gone]) error
	LeftOn(ctx context.Context, names []string) (map[string]store.LeftOn, error)
	AgentGone(ctx context.Context, consulNode string) (bool, error)
	RemoveNode(ctx context.Context, r store.NodeRemoval) error
}

// ForgetConfig is what a forgetter needs.
type ForgetConfig struct {
	Farm  string // id
	Store ForgetStore
	// Nodes returns all nodes, the cluster's epoch, and whether every living node has spoken in it.
	Nodes   func() (nodes map[string]*node.View, epoch string, synced bool)
	Ready   func() error  // returns nil once all nodes were read; before that, no node is known to be gone
	After   time.Duration // for how long a node must have been gone; zero: none is forgotten
	Log     obs.Logger
	Metrics *Metrics
}

// Metrics are the metrics of a janitor. They outlive sessions.
type Metrics struct {
	kept      *prometheus.GaugeVec
	forgotten prometheus.Counter
}

// NewMetrics registers the metrics of a janitor.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := obs.NewMeter(reg, "farm")
	return &Metrics{
		kept: obs.Gauges(m, "kept_nodes",
			"Nodes gone for longer than --forget-node-after whose records are kept, by reason; reported by the leader.",
			"reason", Reasons...),
		forgotten: m.Counter("forgotten_nodes_total",
			"Nodes whose records this farm removed, because they were gone for longer than --forget-node-after."),
	}
}

func (m *Metrics) keep(kept map[Reason]int) {
	for _, r := range Reasons {
		m.kept.WithLabelValues(string(r)).Set(float64(kept[r]))
	}
}

// Forgetter removes the records of nodes whose machines are gone for long (ADR 27).
type Forgetter struct {
	cfg  ForgetConfig
	last time.Time // when this leader looked last; zero: it has not
	// unnoted is time that has passed and is not written. It is lost with the leadership.
	unnoted time.Duration
}

// NewForgetter returns a forgetter.
func NewForgetter(cfg ForgetConfig) *Forgetter { return &Forgetter{cfg: cfg} }

// A look comes after a tenth of the time for which a node must be gone, within these bounds.
const (
	forgetEvery    = time.Second
	forgetEveryMax = 10 * time.Minute
)

// noteEvery is how long the same gone nodes are not written again.
const noteEvery = 10 * time.Second

// ForgetEvery returns the time between two looks.
func ForgetEvery(after time.Duration) time.Duration {
	return min(max(after/10, forgetEvery), forgetEveryMax)
}

// Run forgets nodes until ctx, the leadership, ends. It logs the error of a look.
func (f *Forgetter) Run(ctx context.Context) error {
	if f.cfg.After == 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	defer f.cfg.Metrics.keep(nil)
	f.last, f.unnoted = time.Time{}, 0
	for {
		if err := f.Look(ctx, time.Now()); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrConflict) {
			f.cfg.Log.WithError(err).Warn("cannot find out which nodes are gone for good")
		}
		if err := wait.Pause(ctx, ForgetEvery(f.cfg.After)); err != nil {
			return err
		}
	}
}

// passed returns how much of the time since the last look is added to the absence of nodes: zero for a new leader, or
// if the clock went back; at most twice the usual time, in case the clock went ahead or the leader was paused. A
// refused write loses the time, which only delays the removal.
func (f *Forgetter) passed(now time.Time) time.Duration {
	last := f.last
	if f.last = now; last.IsZero() {
		return 0
	}
	return min(max(now.Sub(last), 0), 2*ForgetEvery(f.cfg.After))
}

// Look notes which nodes are gone, and forgets those that are gone for long enough.
func (f *Forgetter) Look(ctx context.Context, now time.Time) error {
	passed := f.passed(now) + f.unnoted
	f.unnoted = 0
	if f.cfg.Ready() != nil {
		return nil // before the nodes are read, those that are noted as gone would seem to be back
	}
	nodes, epoch, synced := f.cfg.Nodes()
	fleet := Cluster{Nodes: nodes, Synced: synced, Now: now.UTC().Truncate(time.Millisecond), Passed: passed}
	rec, err := f.cfg.Store.ReadGone(ctx)
	if err != nil {
		return fmt.Errorf("read since when nodes are gone: %w", err)
	}
	noted := fleet.Deaths(rec.Value.Nodes)
	switch same := maps.EqualFunc(noted, rec.Value.Nodes, func(a, b store.Death) bool { return a.Index == b.Index }); {
	case same && passed < noteEvery:
		f.unnoted = passed
	case !maps.Equal(noted, rec.Value.Nodes):
		rec.Value.Nodes = noted
		if err := f.cfg.Store.WriteGone(ctx, rec); err != nil {
			return fmt.Errorf("write since when nodes are gone: %w", err)
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
	left, err := f.cfg.Store.LeftOn(ctx, due)
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

// forget removes a node's records, unless its agent lives, it came back meanwhile, or a farm placed a pod there.
func (f *Forgetter) forget(ctx context.Context, v *node.View, left store.LeftOn, death store.Death) (Reason, error) {
	gone, err := f.cfg.Store.AgentGone(ctx, v.ConsulNode)
	if err != nil {
		return KeptByAgent, fmt.Errorf("read whether the agent of node %s is gone: %w", v.Name, err)
	}
	if !gone {
		return KeptByAgent, nil
	}
	since := death.Since.Format(time.RFC3339)
	text := fmt.Sprintf("remove node %s: its machine has been gone since %s or longer", v.Name, since)
	err = f.cfg.Store.RemoveNode(ctx, store.NodeRemoval{
		Name: v.Name, Node: death.Index, Reservation: left.Reservation,
		Audit: store.NewAudit(f.cfg.Farm, "forget-node", "", []string{text}).OnNodes(v.Name),
	})
	switch {
	case store.Denied(err):
		return KeptByPace, fmt.Errorf("forget node %s: the token does not allow it: %w", v.Name, err)
	case errors.Is(err, store.ErrRefused):
		return KeptByPace, nil // something about the node has changed; the next look reads it again
	case err != nil:
		return KeptByPace, fmt.Errorf("forget node %s: %w", v.Name, err)
	}
	f.cfg.Metrics.forgotten.Inc()
	f.cfg.Log.WithField(obs.Node, v.Name).WithField("since", since).
		Warn("removed the records of a node whose machine is gone")
	return "", nil
}
