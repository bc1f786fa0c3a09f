package record

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// ServiceSpec is the document that a user deploys: what runs, how often, where, and how a change of it is rolled out.
type ServiceSpec struct {
	// Name of the service; empty: GenerateServiceName makes one of the first artifact's.
	Name          string             `json:"name,omitempty"`
	Labels        map[string]string  `json:"labels,omitempty"` // of its controllers; farms select by them
	NodeSelector  string             `json:"node_selector,omitempty"`
	Mode          rc.Mode            `json:"mode,omitempty" feature:"each-node"` // default: replicas
	Replicas      *int               `json:"replicas,omitempty"`                 // short for one replica group of rc.DefaultRole
	ReplicaGroups []rc.ReplicaGroup  `json:"replica_groups,omitempty"`
	PodLabels     map[string]string  `json:"pod_labels,omitempty"`
	MaxPerNode    int                `json:"max_per_node,omitempty"`
	Spread        rc.Spread          `json:"spread,omitzero"`
	Affinity      []rc.Preference    `json:"affinity,omitempty" feature:"placing"`
	Placing       rc.Placing         `json:"placing,omitempty" feature:"placing"` // default: spread
	NodeLoss      rc.NodeLoss        `json:"node_loss,omitzero"`
	Strategy      rc.Strategy        `json:"strategy,omitempty"` // of allocation: dynamic or static; default: see rc.Allocation
	Progress      *field.Duration    `json:"progress_deadline,omitempty"`
	Digests       Policy             `json:"digests,omitempty"` // where the digests come from that the document leaves out; default: missing
	Update        rollout.Knobs      `json:"update,omitzero"`
	PreDeploy     *PreDeploy         `json:"pre_deploy,omitempty"`
	Pod           *manifest.Manifest `json:"pod"`
}

// Policy says where the digest of an artifact comes from that the document does not pin.
type Policy string

// The policies.
const (
	Always  Policy = "always"  // the source is asked now
	Missing Policy = "missing" // the newest in the history of any service; the source is asked where there is none
	Never   Policy = "never"   // the newest in the history of any service, and no other
)

// PreDeploy is a program that runs once, to its end, before the first pod of a new revision starts.
type PreDeploy struct {
	Command string            `json:"command,omitempty"` // in the first launchable's artifact; default: as the launchable
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"` // besides the launchable's
}

// Decode reads the document of one service strictly and validates it. Mistakes come back as field.Errors.
func Decode(data []byte) (*ServiceSpec, error) { return field.Read[ServiceSpec](data) }

// Knobs returns how the service is rolled out: in place where its pods stay on their nodes, or have volumes, and the
// document names no strategy.
func (s *ServiceSpec) Knobs() rollout.Knobs { return s.KnobsAfter(nil) }

// KnobsAfter is Knobs for a service that has had another document: pods of that one may have to stay, too. nil: none.
func (s *ServiceSpec) KnobsAfter(before *ServiceSpec) rollout.Knobs {
	k := s.Update
	if k.Strategy != "" || k.Order != "" || k.Canary != nil {
		return k
	}
	if s.Anchored() != nil || len(s.Pod.VolumeNames()) > 0 || before != nil && before.Anchored() != nil {
		k.Strategy = rollout.InPlaceStrategy
	}
	return k
}

// Anchor is why pods of a service have no successors elsewhere, in two parts of a sentence.
type Anchor struct{ What, Why string }

// Anchored returns why pods of the service must stay where they are, nil if they need not.
func (s *ServiceSpec) Anchored() *Anchor {
	switch {
	case s.Mode == rc.EachNode:
		return &Anchor{"mode is each-node", "there is one pod on each node"}
	case rc.HasOrdered(s.ReplicaGroups):
		return &Anchor{"a replica group is ordered", "no index may have two living copies"}
	case s.Allocation() != rc.Static:
		return nil
	case s.Strategy == "":
		return &Anchor{"pods have volumes and strategy is not dynamic", "they stay with their data"}
	default:
		return &Anchor{"strategy is static", "pods stay on their nodes"}
	}
}

// Allocation returns the strategy of allocation of the service's controllers.
func (s *ServiceSpec) Allocation() rc.Strategy { return rc.Allocation(s.Strategy, s.Mode, s.Pod) }

// Groups returns the replica groups, whichever way the document names them.
func (s *ServiceSpec) Groups() []rc.ReplicaGroup {
	if s.Replicas != nil {
		return []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: s.Replicas}}
	}
	return slices.Clone(s.ReplicaGroups)
}

// WithCounts returns the document with the counts that other groups have, by role. A role that is not among them keeps
// its own, and so does a document that has a pod on each node.
func (s *ServiceSpec) WithCounts(groups []rc.ReplicaGroup) *ServiceSpec {
	out := *s
	if s.Mode == rc.EachNode {
		return &out
	}
	out.ReplicaGroups, out.Replicas = s.Groups(), nil
	for i := range out.ReplicaGroups {
		g := &out.ReplicaGroups[i]
		if same := field.Find(groups, func(o *rc.ReplicaGroup) bool { return o.Role == g.Role }); same != nil && same.Count != nil {
			n := *same.Count
			g.Count = &n
		}
	}
	return &out
}

// Total returns how many replicas there are of all groups.
func (s *ServiceSpec) Total() int {
	return rc.Total(s.Groups())
}

// PerNode returns how many of its pods a node takes, 0 for no limit.
func (s *ServiceSpec) PerNode() int {
	if s.Mode == rc.EachNode {
		return 1
	}
	return s.MaxPerNode
}

// RCSpec returns the document of a controller that runs the service.
func (s *ServiceSpec) RCSpec(name string) *rc.Spec {
	return &rc.Spec{
		Name: name, Labels: s.Labels, NodeSelector: s.NodeSelector, Mode: s.Mode, ReplicaGroups: s.Groups(), PodLabels: s.PodLabels, MaxPerNode: s.MaxPerNode,
		Spread: s.Spread, Affinity: s.Affinity, Placing: s.Placing, NodeLoss: s.NodeLoss, ProgressDeadline: s.Progress, Strategy: s.Strategy, Pod: s.Pod,
	}
}
