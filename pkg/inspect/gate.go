package inspect

import (
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// GateView is the version gate: what may be written, and who keeps the rest from it (ADR 28).
type GateView struct {
	Version  string        `json:"version"`
	By       string        `json:"by,omitempty"` // who raised it; empty: nobody has
	At       time.Time     `json:"at,omitzero"`
	Features []FeatureView `json:"features"`
	// Behind are those that emulate less than the newest feature, the oldest first.
	Behind []WriterView `json:"behind"`
}

// FeatureView is a feature of this program.
type FeatureView struct {
	Name    string `json:"name"`
	Since   string `json:"since"`
	What    string `json:"what"`
	Allowed bool   `json:"allowed"`
}

// WriterView is a farm or a node that lives.
type WriterView struct {
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Version  string `json:"version"`
	Emulates string `json:"emulation_version"` // empty: from before the gate
}

// NewGateView says what waits for a gate, and for whom.
func NewGateView(gate store.Gate, known feature.Table, living []feature.Writer) GateView {
	v := GateView{Version: gate.Version, By: gate.By, At: gate.At, Features: []FeatureView{}, Behind: []WriterView{}}
	for _, f := range known {
		v.Features = append(v.Features, FeatureView{Name: f.Name, Since: f.Since, What: f.What, Allowed: !feature.After(f.Since, gate.Version)})
	}
	for _, w := range feature.Below(known.Newest(), living) {
		v.Behind = append(v.Behind, WriterView{Kind: w.Kind, Name: w.Name, Version: w.Version, Emulates: w.Emulates})
	}
	return v
}

// Waiting is, on a line, what waits for whom; "" where nothing does.
func (v *GateView) Waiting() string {
	waiting := 0
	for i := range v.Features {
		if !v.Features[i].Allowed {
			waiting++
		}
	}
	switch {
	case waiting == 0:
		return ""
	case len(v.Behind) == 0:
		return fmt.Sprintf("the version gate is %s; features that wait: %d; all that live allow them, and the leader of the farms is about to raise it", v.Version, waiting)
	default:
		first := v.Behind[0]
		return fmt.Sprintf("the version gate is %s; features that wait: %d, for %d farms and nodes that are older, the oldest of them %s %s", v.Version, waiting, len(v.Behind), first.Kind, first.Name)
	}
}
