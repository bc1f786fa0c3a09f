// Package rc has the replication controller: its record, the document of users, and the status that the owner reports.
package rc

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Strategy is whether a pod is moved off a node that it must leave, or whose machine is lost.
type Strategy string

// The strategies.
const (
	Dynamic Strategy = "dynamic" // it is moved
	Static  Strategy = "static"  // it is not moved
)

// DefaultRole is the role of a document that gives only a count.
const DefaultRole = "main"

// Defaults.
const (
	DefaultNodeLossAfter    = 30 * time.Second
	DefaultUnmanagedAfter   = 10 * time.Minute
	DefaultMaxSurge         = 1
	DefaultProgressDeadline = 2 * time.Minute
)

// RC is the record at rcs/<rc-id>.
type RC struct {
	ID             string            `json:"id"`
	Name           string            `json:"name"`
	Labels         map[string]string `json:"labels,omitempty"`
	ManifestDigest string            `json:"manifest"`
	NodeSelector   string            `json:"node_selector"`
	Mode           Mode              `json:"mode,omitempty" feature:"each-node"` // empty: Replicas
	PodLabels      map[string]string `json:"pod_labels,omitempty"`
	GroupManifests map[string]string `json:"group_manifests,omitempty" feature:"group-manifests"`
	ReplicaGroups  []ReplicaGroup    `json:"replica_groups"`         // none with EachNode
	MaxPerNode     int               `json:"max_per_node,omitempty"` // zero: no limit
	// Spread is over a node label; zero: over nodes only.
	Spread   Spread       `json:"spread,omitzero"`
	Affinity []Preference `json:"affinity,omitempty" feature:"placing"`
	Placing  Placing      `json:"placing,omitempty" feature:"placing"` // empty: PlaceSpread
	// See MinimumAvailable.
	MinAvailable *int `json:"min_available,omitempty"`
	// See Surge.
	MaxSurge *int     `json:"max_surge,omitempty"`
	NodeLoss NodeLoss `json:"node_loss,omitzero"`
	// See Deadline.
	ProgressDeadline *field.Duration `json:"progress_deadline,omitempty"`
	Strategy         Strategy        `json:"strategy"`
	Disabled         bool            `json:"disabled,omitempty"`
	DeletedAt        *time.Time      `json:"deleted_at,omitempty"` // deletion mark
	Generation       int64           `json:"generation"`           // grows with every change of the record
	// Toggled is how many changes only disabled or enabled the controller.
	Toggled       int64  `json:"toggled,omitempty"`
	ChangedBy     string `json:"changed_by"`
	AllowMassStop int64  `json:"allow_mass_stop,omitempty"` // the generation whose stops the breaker ignores
	// Service is nil for a controller without a service.
	Service *Service `json:"service,omitempty"`
	InPlace *InPlace `json:"in_place,omitempty"` // nil: every pod gets its role's manifest
	// MadeIn is the epoch of the controller's creation, set by the store. Empty: assumed to be an earlier epoch.
	MadeIn string `json:"made_in,omitempty" feature:"ordered"`
}

// MadeInEpoch is false if MadeIn is empty.
func (r *RC) MadeInEpoch(epoch string) bool { return r.MadeIn != "" && r.MadeIn == epoch }

// Service makes a controller a revision of a service (ADR 16).
type Service struct {
	Name     string `json:"name"`
	Revision int64  `json:"revision"` // from 1
	// Min is how many pods of all revisions together must stay available (P6). Max is how many they may have, including
	// pods that stop. The strictest value of the revisions that are not deleted applies.
	Min int `json:"min,omitempty"`
	Max int `json:"max,omitempty"`
	// Standby: its pods are not registered under the service's name, and are not available for the minimum.
	Standby bool `json:"standby,omitempty"`
}

// InPlace limits an upgrade in place. Of the Roles' pods, at most Limit get their role's manifest, and the others keep
// theirs. If more pods have their role's manifest, the surplus gets the former one again, if it is known and differs.
type InPlace struct {
	// From and FromGroups are the former digests.
	From       string            `json:"from,omitempty"`
	FromGroups map[string]string `json:"from_groups,omitempty" feature:"group-manifests"`
	// Roles are the roles to which Limit applies; none: all.
	Roles []string `json:"roles,omitempty" feature:"group-manifests"`
	Limit int      `json:"limit"`
	// Keep is set while a change of mode goes in stages (ADR 16). Then Limit applies to the pods that are where the new
	// mode wants them, and no pod is added beyond Limit. Keep is how many pods beyond the controller's count are kept.
	Keep *int `json:"keep,omitempty" feature:"mode-stages"`
}

// InStages reports whether Keep is set.
func (r *RC) InStages() bool { return r.InPlace != nil && r.InPlace.Keep != nil }

// ReplacesLost reports whether pods of a lost node are placed elsewhere.
func (r *RC) ReplacesLost() bool {
	return r.NodeLoss.Action != "keep" && r.Strategy != Static && !r.EachNode()
}

// NodeLoss is when the pods of a lost node are replaced.
type NodeLoss struct {
	Action         string          `json:"action,omitempty"`          // replace (default) or keep
	After          *field.Duration `json:"after,omitempty"`           // node gone
	UnmanagedAfter *field.Duration `json:"unmanaged_after,omitempty"` // preparer gone, agent alive
}

// Desired returns the sum of the counts.
func (r *RC) Desired() int { return Total(r.ReplicaGroups) }

// Total returns the sum of the counts.
func Total(groups []ReplicaGroup) int {
	n := 0
	for _, g := range groups {
		if g.Count != nil {
			n += *g.Count
		}
	}
	return n
}

// Asks is Desired, or 0 if the controller is deleted.
func (r *RC) Asks() int {
	if r.DeletedAt != nil {
		return 0
	}
	return r.Desired()
}

// MinimumAvailable is how many available pods the farm's own actions must keep (P6). It is at most Desired, because
// otherwise a controller could not be scaled below its minimum.
func (r *RC) MinimumAvailable() int {
	if r.MinAvailable != nil {
		return min(*r.MinAvailable, r.Desired())
	}
	return max(0, r.Desired()-1)
}

// Surge is how many pods beyond desired may exist during moves.
func (r *RC) Surge() int {
	switch {
	case r.EachNode(): // its pods are not moved
		return 0
	case r.MaxSurge != nil:
		return *r.MaxSurge
	default:
		return DefaultMaxSurge
	}
}

// Deadline is how long a pod that is upgraded or moved may take to become available.
func (r *RC) Deadline() time.Duration {
	if d := r.ProgressDeadline.Or(DefaultProgressDeadline); d > 0 {
		return d
	}
	return DefaultProgressDeadline
}

const (
	// MaxTries is how many nodes a pod is tried on. Then it waits until one of them is not avoided any more.
	MaxTries = 3
	// avoidDeadlines is for how many of RC.Deadline a node is avoided.
	avoidDeadlines = 10
)

// Avoided returns the nodes to which a pod is not moved, because it did not become available there. A change of the
// controller ends that. For the node of the first placement, only a change of the pod's digest ends it.
func (r *RC) Avoided(p *pod.Placement, now time.Time) []pod.Avoided {
	var counting []pod.Avoided
	for _, a := range p.Avoid {
		applies := a.Generation == r.Generation
		if a.Digest != "" {
			applies = a.Digest == p.Digest
		}
		if applies && now.Before(r.AvoidedUntil(a)) {
			counting = append(counting, a)
		}
	}
	return counting
}

// AvoidedUntil returns when avoiding a node ends.
func (r *RC) AvoidedUntil(a pod.Avoided) time.Time { return a.Since.Add(avoidDeadlines * r.Deadline()) }

// Selector parses the node selector.
func (r *RC) Selector() (labels.Selector, error) { return ParseSelector(r.NodeSelector) }

// ParseSelector parses a Kubernetes label selector; empty text selects everything.
func ParseSelector(text string) (labels.Selector, error) {
	sel, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("parse selector %q: %w", text, err)
	}
	return sel, nil
}

// PodLabelSet merges a pod's labels. Later ones win: the manifest's, the controller's, the pod's own, then the two
// labels that every pod has.
func (r *RC) PodLabelSet(podID string, manifestLabels, own map[string]string) map[string]string {
	set := field.Merge(manifestLabels, r.PodLabels, own)
	set[pod.RCIDLabel], set[pod.PodIDLabel] = r.ID, podID
	return set
}
