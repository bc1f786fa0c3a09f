package farm

import (
	"context"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/janitor"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Gatekeeper has the methods by which the leader raises the version gate (ADR 28).
type Gatekeeper interface {
	ReadGate(ctx context.Context) (store.Rec[store.Gate], error)
	FirstRaise(ctx context.Context, gate store.Rec[store.Gate]) (to string, err error)
	Writers(ctx context.Context) ([]feature.Writer, error)
	RaiseGate(ctx context.Context, rec store.Rec[store.Gate], to string) error
}

const gateKey = "gate/held"

// gateDuty has what the leader knows of the gate.
type gateDuty struct {
	*leaderReporter
	as      Gatekeeper
	lookout feature.Lookout
	gate    store.Rec[store.Gate]
	read    time.Time         // when gate was read; zero: it must be read
	begun   bool              // begin has done its work
	gone    map[string]uint64 // nodes that are gone and do not hold the gate back, with their FreeIndex at that time
	asked   time.Time         // when the store was last asked which nodes are gone
}

// tendGate raises the version gate when all living farms and nodes allow it, and reports which features wait.
func (f *Farm) tendGate(ctx context.Context, as Gatekeeper) error {
	defer f.cfg.Metrics.gate(0, 0)
	defer f.leaderReporter.unreadable.forget(gateKind)
	d := gateDuty{leaderReporter: f.leaderReporter, as: as}
	for {
		if err := d.look(ctx, time.Now()); err != nil && ctx.Err() == nil {
			f.log.WithError(err).Warn("cannot look after the version gate; trying again")
		}
		if err := wait.Pause(ctx, f.cfg.StableAfter/4); err != nil {
			return err
		}
	}
}

// look compares the gate with the members and nodes that the farm has seen. It reads the gate once in each SweepEvery,
// and after each attempt to raise it.
func (g *gateDuty) look(ctx context.Context, now time.Time) (err error) {
	if g.read.IsZero() || now.Sub(g.read) >= g.cfg.SweepEvery {
		if g.gate, err = g.as.ReadGate(ctx); err != nil {
			return err
		}
		g.read = now
	}
	if raised, err := g.begin(ctx); raised || err != nil {
		return err
	}
	gate := g.gate.Value.Version
	nodes, _ := g.cache.nodesAt()
	synced := g.kit.nodeSync.synced(g.cache.present().schema.Value.Epoch)
	fleet := janitor.Cluster{Nodes: nodes, Synced: synced, Now: now}
	if err := g.findGone(ctx, gate, &fleet); err != nil {
		return err
	}
	living := g.cache.writers(g.gone)
	g.reportHeld(gate, living)
	if !fleet.Synced {
		living = nil // there may be nodes that the farm has not seen
	}
	to := g.lookout.Raise(now, gate, living, g.cfg.StableAfter)
	if to == "" && g.gate.Index != 0 {
		return nil
	}
	g.read = time.Time{}
	return g.raise(ctx, to)
}

// begin raises a gate at once if an operator has just made it with the first records of the cluster. Then no record
// exists that an older program could damage.
func (g *gateDuty) begin(ctx context.Context) (raised bool, err error) {
	if g.begun {
		return false, nil
	}
	to, err := g.as.FirstRaise(ctx, g.gate)
	if err != nil {
		return false, err
	}
	g.begun = true
	if to == "" {
		return false, nil
	}
	g.read = time.Time{}
	return true, g.write(ctx, g.gate, to)
}

func (g *gateDuty) write(ctx context.Context, rec store.Rec[store.Gate], to string) error {
	if err := g.as.RaiseGate(ctx, rec, to); err != nil {
		return err
	}
	g.log.WithFields(obs.Fields{"gate": to, "before": rec.Value.Version}).Info("raised the version gate")
	return nil
}

// findGone finds out, at most once in each SweepEvery, which nodes that hold the gate back are gone with all their
// pods. If most nodes seem to be gone, another cause is more likely, and no node is taken for gone.
func (g *gateDuty) findGone(ctx context.Context, gate string, fleet *janitor.Cluster) error {
	free := map[string]uint64{}
	for name, v := range fleet.Nodes {
		if !v.Alive && feature.After(feature.Known.Newest(), feature.Counted(v.EmulationVersion)) {
			free[name] = v.FreeIndex
		}
	}
	switch {
	case len(free) == 0, !fleet.Sound():
		g.gone = nil
		return nil
	case len(feature.Known.Waiting(gate)) == 0, fleet.Now.Sub(g.asked) < g.cfg.SweepEvery:
		return nil
	}
	g.gone, g.asked = nil, fleet.Now
	living, err := g.as.Writers(ctx)
	if err != nil {
		return err
	}
	for _, w := range living {
		if w.Kind == "node" {
			delete(free, w.Name)
		}
	}
	g.gone = free
	return nil
}

// raise reads again which farms and nodes live. It changes the gate only if all of them allow the version. If there is
// no gate, raise makes it.
func (g *gateDuty) raise(ctx context.Context, to string) error {
	living, err := g.as.Writers(ctx)
	if err != nil {
		return err
	}
	rec, err := g.as.ReadGate(ctx)
	if err != nil {
		return err
	}
	next := rec.Value.Version
	if to != "" && !feature.After(to, feature.Next(next, living)) {
		next = to
	} else if to != "" {
		g.gone = nil // some node lives that was taken for gone
	}
	if rec.Index != 0 && !feature.After(next, rec.Value.Version) {
		return nil
	}
	return g.write(ctx, rec, next)
}

// reportHeld reports which features wait, and for which farms and nodes. The leader has the oldest living version, so
// it may not know all of these features.
func (g *gateDuty) reportHeld(gate string, living []feature.Writer) {
	newest := feature.Highest(feature.Known.Newest(), living)
	behind := feature.Below(newest, living)
	g.cfg.Metrics.gate(len(feature.Known.Waiting(gate)), len(behind))
	texts := map[string]string{}
	if feature.After(newest, gate) {
		texts[gateKey] = heldText(gate, newest, behind)
	}
	g.unreadable.setSearched(gateKind, texts)
}

func heldText(gate, newest string, behind []feature.Writer) string {
	why := "not all nodes have reported what they run, or the gate is about to be raised"
	if len(behind) > 0 {
		why = "these are older: " + feature.Names(behind)
	}
	return fmt.Sprintf("the features of version %s wait, because the version gate is %s: %s", newest, gate, why)
}

// writers returns the living members, the living nodes, and the dead nodes that are not in gone.
func (c *cache) writers(gone map[string]uint64) []feature.Writer {
	var living []feature.Writer
	for _, m := range c.present().farms {
		living = append(living, m.Writer(m.ID))
	}
	views, _ := c.nodesAt()
	for name, v := range views {
		if v.Alive || gone[name] != v.FreeIndex {
			living = append(living, store.NodeWriter(name, &v.Node))
		}
	}
	return living
}
