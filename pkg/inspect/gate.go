package inspect

import (
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// GateView is the version gate (ADR 28).
type GateView struct {
	Version  string        `json:"version"`
	By       string        `json:"by,omitempty"` // who raised it; empty: it was never raised
	At       time.Time     `json:"at,omitzero"`
	Features []FeatureView `json:"features"`
	// living farms and nodes that emulate a version before the newest feature, the oldest first
	Behind []WriterView `json:"behind"`
}

// FeatureView is a feature of this program.
type FeatureView struct {
	Name    string `json:"name"`
	Since   string `json:"since"`
	What    string `json:"what"`
	Allowed bool   `json:"allowed"`
}

// WriterView is a living farm or node.
type WriterView struct {
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Version  string `json:"version"`
	Emulates string `json:"emulation_version"` // empty: the program is older than the gate
}

// NewGateView returns the view of the gate. known has the features of this program.
func NewGateView(gate store.Gate, known feature.Table, living []feature.Writer) GateView {
	v := GateView{Version: gate.Version, By: gate.By, At: gate.At, Features: []FeatureView{}, Behind: []WriterView{}}
	for _, f := range known {
		v.Features = append(v.Features,
			FeatureView{Name: f.Name, Since: f.Since, What: f.What, Allowed: !feature.After(f.Since, gate.Version)})
	}
	for _, w := range feature.Below(known.Newest(), living) {
		v.Behind = append(v.Behind, WriterView(w))
	}
	return v
}

// Waiting is a line about the features that wait for the gate, "" for none.
func (g *GateView) Waiting() string {
	waiting := 0
	for i := range g.Features {
		if !g.Features[i].Allowed {
			waiting++
		}
	}
	switch {
	case waiting == 0:
		return ""
	case len(g.Behind) == 0:
		return fmt.Sprintf("the version gate is %s; features that wait: %d; all living farms and nodes are new "+
			"enough, and the leader of the farms will raise the gate", g.Version, waiting)
	default:
		first := g.Behind[0]
		return fmt.Sprintf("the version gate is %s; features that wait: %d, for %d farms and nodes that are older, "+
			"the oldest of them %s %s", g.Version, waiting, len(g.Behind), first.Kind, first.Name)
	}
}
