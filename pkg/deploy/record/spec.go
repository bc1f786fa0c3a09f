package record

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// ServiceSpec is the document that a user deploys: the pod, the number of replicas, their nodes, and the rollout.
type ServiceSpec struct {
	// Name of the service; empty: GenerateServiceName makes a name from the first artifact.
	Name         string            `json:"name,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"` // of its controllers; farms select by them
	NodeSelector string            `json:"node_selector,omitempty"`
	Mode         rc.Mode           `json:"mode,omitempty" feature:"each-node"` // default: replicas
	// short for one replica group of rc.DefaultRole
	Replicas      *int              `json:"replicas,omitempty"`
	ReplicaGroups []rc.ReplicaGroup `json:"replica_groups,omitempty"`
	PodLabels     map[string]string `json:"pod_labels,omitempty"`
	MaxPerNode    int               `json:"max_per_node,omitempty"`
	Spread        rc.Spread         `json:"spread,omitzero"`
	Affinity      []rc.Preference   `json:"affinity,omitempty" feature:"placing"`
	Placing       rc.Placing        `json:"placing,omitempty" feature:"placing"` // default: spread
	NodeLoss      rc.NodeLoss       `json:"node_loss,omitzero"`
	// of allocation: dynamic or static; default: see rc.Allocation
	Strategy rc.Strategy     `json:"strategy,omitempty"`
	Progress *field.Duration `json:"progress_deadline,omitempty"`
	// source of the digests that the document leaves out; default: always for a pod with an image, else missing
	Digests   Policy             `json:"digests,omitempty"`
	Update    rollout.Knobs      `json:"update,omitzero"`
	PreDeploy *PreDeploy         `json:"pre_deploy,omitempty"`
	Pod       *manifest.Manifest `json:"pod"`
}

// Policy names the source of the digest of an artifact that the document does not pin.
type Policy string

// The policies.
const (
	// Always: an archive is read, and the registry of an image is asked.
	Always Policy = "always"
	// Missing: the newest digest in the history of any service is used. If there is none, it is as Always.
	Missing Policy = "missing"
	Never   Policy = "never" // only the newest digest in the history of any service
)

// PreDeploy is a program that runs once, to its end, before the first pod of a new revision starts.
type PreDeploy struct {
	// in the first launchable's artifact; default: the launchable's command
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"` // in addition to the launchable's
}

// Decode reads and validates the document of one service strictly. It returns mistakes as field.Errors.
func Decode(data []byte) (*ServiceSpec, error) { return field.Read[ServiceSpec](data) }

// Knobs returns the knobs of a rollout. Without a strategy in the document, it is in-place if pods must stay on their
// nodes or have volumes.
func (s *ServiceSpec) Knobs() rollout.Knobs { return s.KnobsAfter(nil) }

// KnobsAfter is Knobs after the document before (nil: a new service). It is in-place also if the pods of that document
// must stay on their nodes.
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

// Anchor is why pods have no successors elsewhere, in two parts of a sentence.
type Anchor struct{ What, Why string }

// Anchored returns why pods must stay on their nodes, nil if they need not.
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

// Allocation returns the strategy of the service's controllers.
func (s *ServiceSpec) Allocation() rc.Strategy { return rc.Allocation(s.Strategy, s.Mode, s.Pod) }

// Groups returns the groups in both forms of the document.
func (s *ServiceSpec) Groups() []rc.ReplicaGroup {
	if s.Replicas != nil {
		return []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: s.Replicas}}
	}
	return slices.Clone(s.ReplicaGroups)
}

// WithCounts returns the document with the counts of groups, by role. Other roles keep their counts, and a document
// with a pod on each node does not change.
func (s *ServiceSpec) WithCounts(groups []rc.ReplicaGroup) *ServiceSpec {
	out := *s
	if s.Mode == rc.EachNode {
		return &out
	}
	out.ReplicaGroups, out.Replicas = s.Groups(), nil
	for i := range out.ReplicaGroups {
		g := &out.ReplicaGroups[i]
		if same := field.Find(groups, func(o *rc.ReplicaGroup) bool { return o.Role == g.Role }); same != nil &&
			same.Count != nil {
			n := *same.Count
			g.Count = &n
		}
	}
	return &out
}

// Total returns the number of replicas of all groups.
func (s *ServiceSpec) Total() int {
	return rc.Total(s.Groups())
}

// RCSpec returns the document of the service's controller.
func (s *ServiceSpec) RCSpec(name string) *rc.Spec {
	return &rc.Spec{
		Name: name, Labels: s.Labels, NodeSelector: s.NodeSelector, Mode: s.Mode, ReplicaGroups: s.Groups(),
		PodLabels: s.PodLabels, MaxPerNode: s.MaxPerNode,
		Spread: s.Spread, Affinity: s.Affinity, Placing: s.Placing, NodeLoss: s.NodeLoss, ProgressDeadline: s.Progress,
		Strategy: s.Strategy, Pod: s.Pod,
	}
}
