package node

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
)

// LabelVersions are hashes of the two layers of a node's labels, in a record that was written for these labels (ADR
// 12). An empty version is unknown.
type LabelVersions struct {
	Own       string `json:"own,omitempty"`       // of the preparer's labels
	Operators string `json:"operators,omitempty"` // of the operators' labels
}

// Accepts reports whether both may be of the same labels.
func (l LabelVersions) Accepts(other LabelVersions) bool {
	return acceptsVersion(l.Own, other.Own) && acceptsVersion(l.Operators, other.Operators)
}

func acceptsVersion(a, b string) bool { return a == "" || b == "" || a == b }

// noLabels is the version of no labels, which most nodes have in the operators' layer.
const (
	labelVersionBytes = 16
	noLabels          = "0000000000000000"
)

// LabelVersion returns the version of one layer, even without labels.
func LabelVersion(labels map[string]string) string {
	if len(labels) == 0 {
		return noLabels
	}
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		for _, text := range []string{key, labels[key]} {
			_, _ = h.Write([]byte(text)) // writing to a hash cannot fail
			_, _ = h.Write([]byte{0})    // no label contains it
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:labelVersionBytes]
}

// NewView returns the view of a node.
func NewView(record Node, ops Ops, alive bool) *View {
	v := &View{Node: record, Alive: alive, LabelVersions: LabelVersions{Own: LabelVersion(record.Labels)}}
	v.SetOps(ops)
	return v
}

// SetOps replaces the operators' settings.
func (v *View) SetOps(ops Ops) {
	v.Ops, v.LabelVersions.Operators = ops, LabelVersion(ops.Labels)
}

// WithOps returns the reservation that follows from the operators' settings.
func (r Reservation) WithOps(ops Ops) Reservation {
	r = r.Clone()
	r.Ineligible, r.Labels.Operators = ops.Drain != nil, LabelVersion(ops.Labels)
	return r
}

// Agrees reports whether the reservation matches the records of the node and of its operators.
func (r Reservation) Agrees(drained bool, versions LabelVersions) bool {
	return r.Ineligible == drained && r.Labels.Accepts(versions)
}
