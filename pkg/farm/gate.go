package farm

import (
	"context"
	"time"

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
	read    time.Time // zero: it must be read
	warned  time.Time // when the log said last who holds it back; zero while nothing waits
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
	gate, living := d.gate.Value.Version, d.cache.writers()
	d.tell(now, gate, living)
	to := d.lookout.Raise(now, gate, living, d.cfg.StableAfter)
	if to == "" && d.gate.Index != 0 {
		return nil
	}
	d.read = time.Time{}
	return d.raise(ctx, to)
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

// writers returns the farms and nodes that live, as last seen: nodes unless their machines are gone.
func (w *cache) writers() []feature.Writer {
	w.mu.Lock()
	defer w.mu.Unlock()
	var living []feature.Writer
	for i := range w.as.farms {
		living = append(living, w.as.farms[i].Writer(w.as.farms[i].ID))
	}
	for name, v := range w.views {
		if v.Alive || !v.MachineLost {
			living = append(living, store.NodeWriter(name, &v.Node))
		}
	}
	return living
}
