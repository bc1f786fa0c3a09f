package rc

import (
	"fmt"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Limits on one controller. They keep a slip of the keyboard from filling a cluster, and the record within what one
// transaction takes.
const (
	MaxReplicas      = pod.MaxReplicas // of all groups together
	MaxGroups        = 64
	MaxSelectorBytes = 4096
)

// CountAllowed says in words what a number of replicas may be.
var CountAllowed = fmt.Sprintf("a whole number from 0 to %d", MaxReplicas)

// Spec is the document that a user applies: the controller and, inline, the manifest of its pods.
type Spec struct {
	Name          string            `json:"name"`
	Labels        map[string]string `json:"labels,omitempty"`
	NodeSelector  string            `json:"node_selector,omitempty"`
	Mode          Mode              `json:"mode,omitempty" feature:"each-node"` // default: Replicas
	Replicas      *int              `json:"replicas,omitempty"`                 // short for one replica group of DefaultRole
	ReplicaGroups []ReplicaGroup    `json:"replica_groups,omitempty"`
	PodLabels     map[string]string `json:"pod_labels,omitempty"`
	MaxPerNode    int               `json:"max_per_node,omitempty"`
	Spread        Spread            `json:"spread,omitzero"` // label key, such as rack, or more
	Affinity      []Preference      `json:"affinity,omitempty"`
	Placing       Placing           `json:"placing,omitempty"` // default: PlaceSpread
	MinAvailable  *int              `json:"min_available,omitempty"`
	MaxSurge      *int              `json:"max_surge,omitempty"`
	NodeLoss      NodeLoss          `json:"node_loss,omitzero"`
	// ProgressDeadline is more than zero.
	ProgressDeadline *field.Duration    `json:"progress_deadline,omitempty"`
	Strategy         Strategy           `json:"strategy,omitempty"`
	Disabled         bool               `json:"disabled,omitempty"`
	Pod              *manifest.Manifest `json:"pod"`
}

// SpecOf returns the document that makes a record what it is, with nothing that the record leaves to a default. m may be nil.
func SpecOf(r *RC, m *manifest.Manifest) *Spec {
	s := &Spec{
		Name: r.Name, Labels: r.Labels, NodeSelector: r.NodeSelector, Mode: r.Mode, ReplicaGroups: r.ReplicaGroups, PodLabels: r.PodLabels,
		MaxPerNode: r.MaxPerNode, Spread: r.Spread, Affinity: r.Affinity, Placing: r.Placing, MinAvailable: r.MinAvailable, MaxSurge: r.MaxSurge, NodeLoss: r.NodeLoss,
		ProgressDeadline: r.ProgressDeadline, Strategy: r.Strategy, Disabled: r.Disabled, Pod: m,
	}
	if g := r.ReplicaGroups; len(g) == 1 && g[0].Role == DefaultRole && !g[0].Differs() && !g[0].Wishes() && !g[0].Ordered {
		s.Replicas, s.ReplicaGroups = g[0].Count, nil
	}
	if s.Strategy == Allocation("", s.Mode, m) {
		s.Strategy = ""
	}
	return s
}

// Allocation returns the strategy of allocation of a document: the one that it names, else static where pods have
// volumes, so that a pod stays with its data. With a pod on each node it is dynamic. m may be nil.
func Allocation(named Strategy, mode Mode, m *manifest.Manifest) Strategy {
	switch {
	case named != "":
		return named
	case mode != EachNode && m != nil && len(m.Volumes) > 0:
		return Static
	default:
		return Dynamic
	}
}

// DecodeSpec reads a controller document strictly and validates it. Mistakes come back as field.Errors.
func DecodeSpec(data []byte) (*Spec, error) { return field.Read[Spec](data) }

// Validate reports every mistake in the document, with paths from its top.
func (s *Spec) Validate() field.Errors {
	var errs field.Errors
	errs.CheckName("name", s.Name)
	manifest.ValidateLabels(&errs, "labels", s.Labels)
	manifest.ValidateLabels(&errs, "pod_labels", s.PodLabels)
	checkReserved(&errs, "pod_labels", s.PodLabels)
	s.validateMode(&errs)
	if s.Mode != EachNode {
		s.validateGroups(&errs)
	}
	s.validateLimits(&errs)
	if d := s.ProgressDeadline; d != nil && *d <= 0 {
		errs.Add("progress_deadline", field.Text(time.Duration(*d).String()), `a length of time with a unit, more than zero, such as "30s" or "2m"`)
	}
	if s.Pod == nil {
		errs.Missing("pod", "the pod's manifest")
	} else {
		errs.Nest("pod", s.Pod.Validate())
		checkReserved(&errs, "pod.labels", s.Pod.Labels)
	}
	return errs
}

// validateLimits records what must hold of records, too, counts and roles of groups apart: see RC.Check.
func (s *Spec) validateLimits(errs *field.Errors) {
	checkSelector(errs, "node_selector", s.NodeSelector)
	validateSpread(errs, "spread", s.Spread)
	validateRanking(errs, "", s.Affinity, s.Placing)
	for i := range s.ReplicaGroups {
		g, path := &s.ReplicaGroups[i], fmt.Sprintf("replica_groups[%d]", i)
		validateSpread(errs, path+".spread", g.Spread)
		validateRanking(errs, path+".", g.Affinity, g.Placing)
	}
	checkCount(errs, "max_per_node", &s.MaxPerNode, "; 0 means no limit")
	checkCount(errs, "min_available", s.MinAvailable, "")
	checkCount(errs, "max_surge", s.MaxSurge, "")
	field.CheckWait(errs, "progress_deadline", s.ProgressDeadline)
	field.CheckWait(errs, "node_loss.after", s.NodeLoss.After)
	field.CheckWait(errs, "node_loss.unmanaged_after", s.NodeLoss.UnmanagedAfter)
	if s.NodeLoss.Action != "" {
		field.CheckOneOf(errs, "node_loss.action", s.NodeLoss.Action, "replace", "keep")
	}
	if s.Strategy != "" {
		field.CheckOneOf(errs, "strategy", s.Strategy, Dynamic, Static)
	}
}

const selectorAllowed = `a Kubernetes label selector, such as "rack in (a,b),disk=ssd"`

func checkSelector(errs *field.Errors, path, text string) {
	if _, err := ParseSelector(text); err != nil {
		errs.Add(path, text, selectorAllowed)
	} else if len(text) > MaxSelectorBytes {
		errs.Add(path, text, fmt.Sprintf("at most %d bytes", MaxSelectorBytes))
	}
}

// checkReserved records labels that every pod gets from its controller and that would be overwritten.
func checkReserved(errs *field.Errors, path string, set map[string]string) {
	for _, key := range []string{pod.RCIDLabel, pod.PodIDLabel} {
		if value, taken := set[key]; taken {
			errs.Add(path+"."+key, value, pod.ReservedAllowed)
		}
	}
}

func checkCount(errs *field.Errors, path string, n *int, more string) {
	if n != nil && (*n < 0 || *n > MaxReplicas) {
		errs.Add(path, *n, CountAllowed+more)
	}
}

func (s *Spec) validateGroups(errs *field.Errors) {
	const oneOf = "exactly one of replicas and replica_groups"
	switch {
	case s.Replicas == nil && len(s.ReplicaGroups) == 0:
		errs.Missing("replicas", oneOf)
		return
	case s.Replicas != nil && len(s.ReplicaGroups) > 0:
		errs.Add("replicas", field.Text("replicas together with replica_groups"), oneOf)
		return
	case s.Replicas != nil:
		checkCount(errs, "replicas", s.Replicas, "")
		return
	}
	before := len(*errs)
	if !validateCounts(errs, s.ReplicaGroups) {
		return
	}
	for i := range s.ReplicaGroups {
		s.ReplicaGroups[i].validateManifest(errs, fmt.Sprintf("replica_groups[%d]", i), s.Pod)
	}
	if len(*errs) == before {
		validateSize(errs, s.ReplicaGroups, s.Pod)
	}
}

// validateCounts records what is wrong with the number, roles and counts of groups, which documents and records have.
// It reports whether there are few enough to look at.
func validateCounts(errs *field.Errors, groups []ReplicaGroup) bool {
	if len(groups) > MaxGroups {
		errs.Add("replica_groups", field.Text(fmt.Sprintf("%d groups", len(groups))), fmt.Sprintf("1 to %d groups", MaxGroups))
		return false
	}
	seen, total := map[string]bool{}, 0
	for i, g := range groups {
		path := fmt.Sprintf("replica_groups[%d]", i)
		errs.CheckName(path+".role", g.Role)
		if g.Role != "" && seen[g.Role] {
			errs.Add(path+".role", g.Role, "a role that no other group has")
		}
		seen[g.Role] = true
		if g.Count == nil {
			errs.Missing(path+".count", CountAllowed)
			continue
		}
		checkCount(errs, path+".count", g.Count, "")
		total += max(0, min(*g.Count, MaxReplicas)) // one that is too large has its own error
	}
	if total > MaxReplicas {
		errs.Add("replica_groups", field.Text(fmt.Sprintf("%d replicas in all", total)), fmt.Sprintf("at most %d replicas in all groups together", MaxReplicas))
	}
	return true
}

// Apply writes what the document asks for over a record; digests are those of its manifests. The caller sets identity, generation and author.
func (s *Spec) Apply(r *RC, digests Digests) {
	r.Name, r.Labels, r.ManifestDigest, r.GroupManifests = s.Name, s.Labels, digests.Base, digests.Groups
	r.NodeSelector, r.PodLabels, r.Mode = strings.TrimSpace(s.NodeSelector), s.PodLabels, s.Mode
	if r.Mode == Replicas {
		r.Mode = "" // as older farms know it
	}
	switch r.ReplicaGroups = s.ReplicaGroups; {
	case r.EachNode():
		r.ReplicaGroups = nil
	case s.Replicas != nil:
		r.ReplicaGroups = []ReplicaGroup{{Role: DefaultRole, Count: s.Replicas}}
	}
	r.MaxPerNode, r.MinAvailable, r.MaxSurge = s.MaxPerNode, s.MinAvailable, s.MaxSurge
	r.Spread, r.Affinity, r.Placing = s.Spread, s.Affinity, s.Placing
	if r.Placing == PlaceSpread {
		r.Placing = ""
	}
	r.NodeLoss, r.Disabled, r.ProgressDeadline = s.NodeLoss, s.Disabled, s.ProgressDeadline
	r.Strategy = Allocation(s.Strategy, s.Mode, s.Pod)
}
