package rc

import (
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// MaxReplicas bounds one controller. It keeps a slip of the keyboard from filling a cluster.
const MaxReplicas = 10_000

// Spec is the document that a user applies: the controller and, inline, the manifest of its pods.
type Spec struct {
	Name          string             `json:"name"`
	Labels        map[string]string  `json:"labels,omitempty"`
	NodeSelector  string             `json:"node_selector,omitempty"`
	Replicas      *int               `json:"replicas,omitempty"` // short for one replica group of DefaultRole
	ReplicaGroups []ReplicaGroup     `json:"replica_groups,omitempty"`
	PodLabels     map[string]string  `json:"pod_labels,omitempty"`
	MaxPerNode    int                `json:"max_per_node,omitempty"`
	MinAvailable  *int               `json:"min_available,omitempty"`
	MaxSurge      *int               `json:"max_surge,omitempty"`
	NodeLoss      NodeLoss           `json:"node_loss,omitzero"`
	Strategy      Strategy           `json:"strategy,omitempty"`
	Disabled      bool               `json:"disabled,omitempty"`
	Pod           *manifest.Manifest `json:"pod"`
}

// DecodeSpec reads a controller document strictly and validates it. Mistakes come back as field.Errors.
func DecodeSpec(data []byte) (*Spec, error) {
	var s Spec
	if err := field.Decode(data, &s); err != nil {
		return nil, err
	}
	if err := s.Validate().Err(); err != nil {
		return nil, err
	}
	return &s, nil
}

// Validate reports every mistake in the document, with paths from its top.
func (s *Spec) Validate() field.Errors {
	var errs field.Errors
	errs.CheckName("name", s.Name)
	manifest.ValidateLabels(&errs, "labels", s.Labels)
	manifest.ValidateLabels(&errs, "pod_labels", s.PodLabels)
	if _, err := ParseSelector(s.NodeSelector); err != nil {
		errs.Add("node_selector", s.NodeSelector, `a Kubernetes label selector, such as "rack in (a,b),disk=ssd"`)
	}
	s.validateGroups(&errs)
	if s.MaxPerNode < 0 {
		errs.Add("max_per_node", s.MaxPerNode, "zero (no limit) or more")
	}
	if s.MinAvailable != nil && *s.MinAvailable < 0 {
		errs.Add("min_available", *s.MinAvailable, "zero or more")
	}
	if s.MaxSurge != nil && *s.MaxSurge < 0 {
		errs.Add("max_surge", *s.MaxSurge, "zero or more")
	}
	switch s.NodeLoss.Action {
	case "", "replace", "keep":
	default:
		errs.Add("node_loss.action", s.NodeLoss.Action, "replace or keep")
	}
	switch s.Strategy {
	case "", Dynamic, Static:
	default:
		errs.Add("strategy", string(s.Strategy), "dynamic or static")
	}
	if s.Pod == nil {
		errs.Missing("pod", "the pod's manifest")
	} else {
		errs.Nest("pod", s.Pod.Validate())
	}
	return errs
}

func (s *Spec) validateGroups(errs *field.Errors) {
	const countAllowed = "a whole number from 0 to %d"
	if (s.Replicas == nil) == (len(s.ReplicaGroups) == 0) {
		errs.Add("replicas", "replicas and replica_groups", "exactly one of replicas and replica_groups")
		return
	}
	if s.Replicas != nil {
		if *s.Replicas < 0 || *s.Replicas > MaxReplicas {
			errs.Add("replicas", *s.Replicas, fmt.Sprintf(countAllowed, MaxReplicas))
		}
		return
	}
	seen := map[string]bool{}
	for i, g := range s.ReplicaGroups {
		path := fmt.Sprintf("replica_groups[%d]", i)
		errs.CheckName(path+".role", g.Role)
		if seen[g.Role] {
			errs.Add(path+".role", g.Role, "a role that no other group has")
		}
		seen[g.Role] = true
		switch {
		case g.Count == nil:
			errs.Missing(path+".count", fmt.Sprintf(countAllowed, MaxReplicas))
		case *g.Count < 0 || *g.Count > MaxReplicas:
			errs.Add(path+".count", *g.Count, fmt.Sprintf(countAllowed, MaxReplicas))
		}
	}
}

// Apply writes the document's wishes over a record. The caller sets identity, generation and author.
func (s *Spec) Apply(r *RC, manifestDigest string) {
	r.Name, r.Labels, r.ManifestDigest = s.Name, s.Labels, manifestDigest
	r.NodeSelector, r.PodLabels = strings.TrimSpace(s.NodeSelector), s.PodLabels
	r.ReplicaGroups = s.ReplicaGroups
	if s.Replicas != nil {
		r.ReplicaGroups = []ReplicaGroup{{Role: DefaultRole, Count: s.Replicas}}
	}
	r.MaxPerNode, r.MinAvailable, r.MaxSurge = s.MaxPerNode, s.MinAvailable, s.MaxSurge
	r.NodeLoss, r.Disabled = s.NodeLoss, s.Disabled
	r.Strategy = s.Strategy
	if r.Strategy == "" {
		r.Strategy = Dynamic
	}
}
