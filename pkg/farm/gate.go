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

// Gatekeeper is how the leader raises the version gate (ADR 28).
type Gatekeeper interface {
	PresentGate(ctx context.Context) (store.Rec[store.Gate], error)
	FirstRaise(ctx context.Context, gate store.Rec[store.Gate]) (to string, err error)
	Writers(ctx context.Context) ([]feature.Writer, error)
	RaiseGate(ctx context.Context, rec store.Rec[store.Gate], to string) error
}

// gateKey is the key of what holds the gate back, among those of records.
const gateKey = "gate/held"

// gateDuty is what the leader knows of the gate.
type gateDuty struct {
	*speaker
	as      Gatekeeper
	lookout feature.Lookout
	gate    store.Rec[store.Gate]
	read    time.Time         // zero: it must be read
	begun   bool              // it was found out whether an operator has just made it
	gone    map[string]uint64 // nodes that do not count, with the FreeIndex of that
	asked   time.Time         // when the store was asked for that last
}

// tendGate raises the gate once everybody who lives allows it, and says what waits for whom.
func (f *Farm) tendGate(ctx context.Context, as Gatekeeper) error {
	defer f.cfg.Metrics.gate(0, 0)
	defer f.speaker.unreadable.forget(gateKind)
	d := gateDuty{speaker: f.speaker, as: as}
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
	if raised, err := d.begin(ctx); raised || err != nil {
		return err
	}
	gate := d.gate.Value.Version
	nodes, _ := d.cache.nodesAt()
	fleet := janitor.Fleet{Nodes: nodes, Synced: d.kit.nodeSync.synced(d.cache.now().schema.Value.Epoch), Now: now}
	if err := d.findGone(ctx, gate, &fleet); err != nil {
		return err
	}
	living := d.cache.writers(d.gone)
	d.tell(gate, living)
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

// begin raises, once, a gate that an operator has made with the first records of the cluster: nobody has written anything by then that an older
// program could drop.
func (d *gateDuty) begin(ctx context.Context) (raised bool, err error) {
	if d.begun {
		return false, nil
	}
	to, err := d.as.FirstRaise(ctx, d.gate)
	if err != nil {
		return false, err
	}
	d.begun = true
	if to == "" {
		return false, nil
	}
	d.read = time.Time{}
	return true, d.write(ctx, d.gate, to)
}

// write makes the gate a version.
func (d *gateDuty) write(ctx context.Context, rec store.Rec[store.Gate], to string) error {
	if err := d.as.RaiseGate(ctx, rec, to); err != nil {
		return err
	}
	d.log.WithFields(obs.Fields{"gate": to, "before": rec.Value.Version}).Info("raised the version gate")
	return nil
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
	return d.write(ctx, rec, next)
}

// tell says what waits for the gate, and for whom. The leader is of the oldest version that lives, which may not know what the others wait for.
func (d *gateDuty) tell(gate string, living []feature.Writer) {
	newest := feature.Highest(feature.Known.Newest(), living)
	behind := feature.Below(newest, living)
	d.cfg.Metrics.gate(len(feature.Known.Waiting(gate)), len(behind))
	texts := map[string]string{}
	if feature.After(newest, gate) {
		texts[gateKey] = heldText(gate, newest, behind)
	}
	d.unreadable.found(gateKind, texts)
}

func heldText(gate, newest string, behind []feature.Writer) string {
	who := "not all nodes have said what they run, or it is about to be raised"
	if len(behind) > 0 {
		who = "these are older: " + feature.Names(behind)
	}
	return fmt.Sprintf("what version %s brings waits, as the version gate is %s: %s", newest, gate, who)
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
