package rc

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Mode is what decides how many pods there are.
type Mode string

// The modes.
const (
	Replicas Mode = "replicas"  // the counts of the groups; the default
	EachNode Mode = "each-node" // one pod on each matching node, present and future (ADR 24)
)

// EachNode reports whether each matching node has one pod. Such a record has no replica groups.
func (r *RC) EachNode() bool { return r.Mode == EachNode }

// CountedBy returns the record with one group of as many replicas as nodes, for decisions. It must not be stored.
func (r *RC) CountedBy(nodes int) RC {
	counted := *r
	counted.ReplicaGroups = []ReplicaGroup{{Role: DefaultRole, Count: &nodes}}
	return counted
}

func (s *Spec) validateMode(errs *field.Errors) {
	if s.Mode != "" {
		field.CheckOneOf(errs, "mode", s.Mode, Replicas, EachNode)
	}
	if s.Mode != EachNode {
		return
	}
	const allowed = "nothing where mode is each-node: "
	refuse := func(given bool, path string, value any, why string) {
		if given {
			errs.Add(path, value, allowed+why)
		}
	}
	const counts = "there is one pod on every matching node"
	const stays = "no pod is ever placed elsewhere"
	if s.Replicas != nil {
		errs.Add("replicas", *s.Replicas, allowed+counts)
	}
	refuse(len(s.ReplicaGroups) > 0, "replica_groups",
		field.Text(fmt.Sprintf("%d groups", len(s.ReplicaGroups))), counts)
	refuse(s.MaxPerNode != 0, "max_per_node", s.MaxPerNode, counts)
	refuse(!s.Spread.IsZero(), "spread", s.Spread.Label, counts)
	refuse(len(s.Affinity) > 0, "affinity", field.Text("a list"), counts)
	refuse(s.Placing != "", "placing", string(s.Placing), counts)
	if s.MaxSurge != nil {
		errs.Add("max_surge", *s.MaxSurge, allowed+stays)
	}
	refuse(s.NodeLoss != NodeLoss{}, "node_loss", field.Text("a map"), stays)
	refuse(s.Strategy == Static, "strategy", string(s.Strategy), stays+", and a drained node is to be emptied")
}
