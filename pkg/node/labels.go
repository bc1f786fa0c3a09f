package node

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
)

// LabelVersions tell for which labels of a node something was written (ADR 12): a hash of each of the two layers. One that is empty says
// nothing, as where a build that does not know them has written.
type LabelVersions struct {
	Own       string `json:"own,omitempty"`       // of the labels that the preparer was started with
	Operators string `json:"operators,omitempty"` // of the operators' labels
}

// Accepts reports whether both may be of the same labels.
func (s LabelVersions) Accepts(other LabelVersions) bool {
	return acceptsVersion(s.Own, other.Own) && acceptsVersion(s.Operators, other.Operators)
}

func acceptsVersion(a, b string) bool { return a == "" || b == "" || a == b }

// labelVersionBytes is the length of a version, and noLabels that of no labels, which most nodes have from their operators.
const (
	labelVersionBytes = 16
	noLabels          = "0000000000000000"
)

// LabelVersion returns the version of one layer of labels. That of none is a version, too.
func LabelVersion(labels map[string]string) string {
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
	return hex.EncodeToString(h.Sum(nil))[:labelVersionBytes]
}

// NewView returns what is known of a node from its record and from what operators said.
func NewView(record Node, ops Ops, alive bool) *View {
	v := &View{Node: record, Alive: alive, LabelVersions: LabelVersions{Own: LabelVersion(record.Labels)}}
	v.SetOps(ops)
	return v
}

// SetOps puts what operators said in place of what they said before.
func (v *View) SetOps(ops Ops) {
	v.Ops, v.LabelVersions.Operators = ops, LabelVersion(ops.Labels)
}

// AsOperatorsSay returns the reservation as it should be where operators have said this of the node: ineligible while it is drained, and with the
// version of their labels.
func (r Reservation) AsOperatorsSay(ops Ops) Reservation {
	r = r.Clone()
	r.Ineligible, r.Labels.Operators = ops.Drain != nil, LabelVersion(ops.Labels)
	return r
}

// Agrees reports whether the reservation says what follows from records of the node and of its operators.
func (r Reservation) Agrees(drained bool, versions LabelVersions) bool {
	return r.Ineligible == drained && r.Labels.Accepts(versions)
}
