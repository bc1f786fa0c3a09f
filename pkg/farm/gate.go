package farm

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/janitor"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Gatekeeper is how the leader raises the version gate (ADR 28).
type Gatekeeper interface {
	PresentGate(ctx context.Context) (store.Rec[store.Gate], error)
	Writers(ctx context.Context) ([]feature.Writer, error)
	RaiseGate(ctx context.Context, rec store.Rec[store.Gate], to string) error
}

// heldWarnAfter is after how long the log says for whom features wait, and between two times that it does.
const heldWarnAfter = time.Hour

// gateDuty is what the leader knows of the gate.
type gateDuty struct {
	*core
	as      Gatekeeper
	lookout feature.Lookout
	gate    store.Rec[store.Gate]
	read    time.Time         // zero: it must be read
	gone    map[string]uint64 // nodes that do not count, with the FreeIndex of that
	asked   time.Time         // when the store was asked for that last
	warned  time.Time         // when the log said last who holds it back; zero while nothing waits
}

// tendGate raises the gate once everybody who lives allows it, and says what waits for whom.
func (f *Farm) tendGate(ctx context.Context, as Gatekeeper) error {
	defer f.cfg.Metrics.gate(0, 0)
	d := gateDuty{core: f.core, as: as}
	for {
		if err := d.look(ctx, time.Now()); err != nil && ctx.Err() == nil {
			f.log.WithError(err).Warn("cannot look after the version gate; trying again")
		}
		if err := wait.Pause(ctx, f.cfg.StableAfter/4); err != nil {
			return err
		}
	}
}

// look compares the gate with what the farm has seen of the others. Only where it is to be raised, and once in a sweep, anything is read.
func (d *gateDuty) look(ctx context.Context, now time.Time) (err error) {
	if d.read.IsZero() || now.Sub(d.read) >= d.cfg.SweepEvery {
		if d.gate, err = d.as.PresentGate(ctx); err != nil {
			return err
		}
		d.read = now
	}
	gate := d.gate.Value.Version
	nodes, _ := d.cache.nodesAt()
	fleet := janitor.Fleet{Nodes: nodes, Synced: d.kit.nodeSync.synced(d.cache.now().schema.Value.Epoch), Now: now}
	if err := d.findGone(ctx, gate, &fleet); err != nil {
		return err
	}
	living := d.cache.writers(d.gone)
	d.tell(now, gate, living)
	if !fleet.Synced {
		living = nil // there may be others
	}
	to := d.lookout.Raise(now, gate, living, d.cfg.StableAfter)
	if to == "" && d.gate.Index != 0 {
		return nil
	}
	d.read = time.Time{}
	return d.raise(ctx, to)
}

// findGone finds out, once in a sweep, which of the nodes that hold the gate back are gone with all that they ran. Where most nodes are gone, it
// is not they that are.
func (d *gateDuty) findGone(ctx context.Context, gate string, fleet *janitor.Fleet) error {
	free := map[string]uint64{}
	for name, v := range fleet.Nodes {
		if !v.Alive && feature.After(feature.Known.Newest(), feature.Counted(v.EmulationVersion)) {
			free[name] = v.FreeIndex
		}
	}
	switch {
	case len(free) == 0, !fleet.Sound():
		d.gone = nil
		return nil
	case len(feature.Known.Waiting(gate)) == 0, fleet.Now.Sub(d.asked) < d.cfg.SweepEvery:
		return nil
	}
	d.gone, d.asked = nil, fleet.Now
	living, err := d.as.Writers(ctx)
	if err != nil {
		return err
	}
	for _, w := range living {
		if w.Kind == "node" {
			delete(free, w.Name)
		}
	}
	d.gone = free
	return nil
}

// raise makes the gate a version, or what all allow that live by now, and makes it where there is none.
func (d *gateDuty) raise(ctx context.Context, to string) error {
	living, err := d.as.Writers(ctx)
	if err != nil {
		return err
	}
	rec, err := d.as.PresentGate(ctx)
	if err != nil {
		return err
	}
	next := rec.Value.Version
	if to != "" && !feature.After(to, feature.Next(next, living)) {
		next = to
	} else if to != "" {
		d.gone = nil // somebody is there after all
	}
	if rec.Index != 0 && !feature.After(next, rec.Value.Version) {
		return nil
	}
	if err := d.as.RaiseGate(ctx, rec, next); err != nil {
		return err
	}
	d.log.WithFields(obs.Fields{"gate": next, "before": rec.Value.Version}).Info("raised the version gate")
	return nil
}

// tell says what waits for the gate.
func (d *gateDuty) tell(now time.Time, gate string, living []feature.Writer) {
	waiting, behind := feature.Known.Waiting(gate), feature.Below(feature.Known.Newest(), living)
	d.cfg.Metrics.gate(len(waiting), len(behind))
	switch {
	case len(waiting) == 0:
		d.warned = time.Time{}
	case d.warned.IsZero():
		d.warned = now
	case now.Sub(d.warned) >= heldWarnAfter:
		d.warned = now
		d.log.WithFields(obs.Fields{"gate": gate, "behind": feature.Names(behind)}).Warn("new fields of records wait until others are upgraded")
	}
}

// writers returns the farms and nodes that count as living, as last seen: nodes unless they are gone.
func (w *cache) writers(gone map[string]uint64) []feature.Writer {
	w.mu.Lock()
	defer w.mu.Unlock()
	var living []feature.Writer
	for i := range w.as.farms {
		living = append(living, w.as.farms[i].Writer(w.as.farms[i].ID))
	}
	for name, v := range w.views {
		if v.Alive || gone[name] != v.FreeIndex {
			living = append(living, store.NodeWriter(name, &v.Node))
		}
	}
	return living
}
