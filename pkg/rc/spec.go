package rc

import (
	"fmt"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Limits on one controller. They keep a typing error from filling a cluster, and let a record fit into a transaction.
const (
	MaxReplicas      = pod.MaxReplicas // of all groups together
	MaxGroups        = 64
	MaxSelectorBytes = 4096
)

// CountAllowed describes the allowed number of replicas.
var CountAllowed = fmt.Sprintf("a whole number from 0 to %d", MaxReplicas)

// Spec is a user's document: the controller and, inline, its pods' manifest.
type Spec struct {
	Name         string            `json:"name"`
	Labels       map[string]string `json:"labels,omitempty"`
	NodeSelector string            `json:"node_selector,omitempty"`
	Mode         Mode              `json:"mode,omitempty" feature:"each-node"` // default: Replicas
	// Replicas is short for one group of DefaultRole.
	Replicas         *int               `json:"replicas,omitempty"`
	ReplicaGroups    []ReplicaGroup     `json:"replica_groups,omitempty"`
	PodLabels        map[string]string  `json:"pod_labels,omitempty"`
	MaxPerNode       int                `json:"max_per_node,omitempty"`
	Spread           Spread             `json:"spread,omitzero"` // label key, such as rack, or more
	Affinity         []Preference       `json:"affinity,omitempty"`
	Placing          Placing            `json:"placing,omitempty"` // default: PlaceSpread
	MinAvailable     *int               `json:"min_available,omitempty"`
	MaxSurge         *int               `json:"max_surge,omitempty"`
	NodeLoss         NodeLoss           `json:"node_loss,omitzero"`
	ProgressDeadline *field.Duration    `json:"progress_deadline,omitempty"`
	Strategy         Strategy           `json:"strategy,omitempty"`
	Disabled         bool               `json:"disabled,omitempty"`
	Pod              *manifest.Manifest `json:"pod"`
}

// SpecOf returns the document of a record, without defaults. m may be nil.
func SpecOf(r *RC, m *manifest.Manifest) *Spec {
	s := &Spec{
		Name: r.Name, Labels: r.Labels, NodeSelector: r.NodeSelector, Mode: r.Mode,
		ReplicaGroups: r.ReplicaGroups, PodLabels: r.PodLabels, MaxPerNode: r.MaxPerNode,
		Spread: r.Spread, Affinity: r.Affinity, Placing: r.Placing,
		MinAvailable: r.MinAvailable, MaxSurge: r.MaxSurge,
		NodeLoss: r.NodeLoss, ProgressDeadline: r.ProgressDeadline,
		Strategy: r.Strategy, Disabled: r.Disabled, Pod: m,
	}
	if g := r.ReplicaGroups; len(g) == 1 && g[0].Role == DefaultRole && !g[0].Differs() && !g[0].HasPreferences() &&
		!g[0].Ordered {
		s.Replicas, s.ReplicaGroups = g[0].Count, nil
	}
	if s.Strategy == Allocation("", s.Mode, m) {
		s.Strategy = ""
	}
	return s
}

// Allocation returns the named strategy, if there is one. The default is static for pods with volumes, because a pod
// must not move away from its data, else dynamic. With EachNode it is dynamic. m may be nil.
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

// DecodeSpec decodes a document strictly and validates it. Mistakes are returned as field.Errors.
func DecodeSpec(data []byte) (*Spec, error) { return field.Read[Spec](data) }

// Validate returns all mistakes.
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
		errs.Add("progress_deadline", field.Text(time.Duration(*d).String()),
			`a length of time with a unit, more than zero, such as "30s" or "2m"`)
	}
	if s.Pod == nil {
		errs.Missing("pod", "the pod's manifest")
	} else {
		errs.Nest("pod", s.Pod.Validate())
		checkReserved(&errs, "pod.labels", s.Pod.Labels)
	}
	return errs
}

// validateLimits checks the limits that records have, too, except the counts of groups.
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

// checkReserved refuses the two labels that every pod gets, because the controller's value would override them.
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

// validateCounts reports whether the groups are few enough to check them further.
func validateCounts(errs *field.Errors, groups []ReplicaGroup) bool {
	if len(groups) > MaxGroups {
		errs.Add("replica_groups", field.Text(fmt.Sprintf("%d groups", len(groups))),
			fmt.Sprintf("1 to %d groups", MaxGroups))
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
		total += max(0, min(*g.Count, MaxReplicas)) // a count that is too large is a mistake of its own
	}
	if total > MaxReplicas {
		errs.Add("replica_groups", field.Text(fmt.Sprintf("%d replicas in all", total)),
			fmt.Sprintf("at most %d replicas in all groups together", MaxReplicas))
	}
	return true
}

// Apply writes the document into a record. The caller sets identity, generation and author.
func (s *Spec) Apply(r *RC, digests Digests) {
	r.Name, r.Labels, r.ManifestDigest, r.GroupManifests = s.Name, s.Labels, digests.Base, digests.Groups
	r.NodeSelector, r.PodLabels, r.Mode = strings.TrimSpace(s.NodeSelector), s.PodLabels, s.Mode
	if r.Mode == Replicas {
		r.Mode = "" // the form that farms of older versions know
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
