package node

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
)

// Stamps tell for which labels of a node something was written (ADR 12): a hash of each of the two layers. One that is empty says
// nothing, as where a version without stamps has written.
type Stamps struct {
	Own       string `json:"own,omitempty"`       // of the labels that the preparer was started with
	Operators string `json:"operators,omitempty"` // of the operators' labels
}

// Accepts reports whether both may be of the same labels.
func (s Stamps) Accepts(other Stamps) bool {
	return acceptsStamp(s.Own, other.Own) && acceptsStamp(s.Operators, other.Operators)
}

func acceptsStamp(a, b string) bool { return a == "" || b == "" || a == b }

// stampBytes is the length of a stamp, and noLabels the one of no labels, which most nodes have from their operators.
const (
	stampBytes = 16
	noLabels   = "0000000000000000"
)

// LabelStamp returns the stamp of one layer of labels. That of none is a stamp, too.
func LabelStamp(labels map[string]string) string {
	if len(labels) == 0 {
		return noLabels
	}
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		for _, text := range []string{key, labels[key]} {
			_, _ = h.Write([]byte(text)) // writing to a hash cannot fail
			_, _ = h.Write([]byte{0})    // which no label contains
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:stampBytes]
}

// NewView returns what is known of a node from its record and from what operators said.
func NewView(record Node, ops Ops, alive bool) *View {
	v := &View{Node: record, Alive: alive, Stamps: Stamps{Own: LabelStamp(record.Labels)}}
	v.SetOps(ops)
	return v
}

// SetOps puts what operators said in place of what they said before.
func (v *View) SetOps(ops Ops) {
	v.Ops, v.Stamps.Operators = ops, LabelStamp(ops.Labels)
}

// AsOperatorsSay returns the reservation as it should be where operators have said this of the node: ineligible while it is drained, and with the
// stamp of their labels.
func (r Reservation) AsOperatorsSay(ops Ops) Reservation {
	r = r.Clone()
	r.Ineligible, r.Labels.Operators = ops.Drain != nil, LabelStamp(ops.Labels)
	return r
}

// Agrees reports whether the reservation says what follows from records of the node and of its operators.
func (r Reservation) Agrees(drained bool, stamps Stamps) bool {
	return r.Ineligible == drained && r.Labels.Accepts(stamps)
}
