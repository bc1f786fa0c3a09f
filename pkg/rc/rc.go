// Package rc holds the replication controller: the record that says how many replicas of which manifest run on which
// nodes, the document that users write, and the status that the owner farm reports.
package rc

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Strategy says what happens to a pod whose node stops matching the selector.
type Strategy string

// The allocation strategies.
const (
	Dynamic Strategy = "dynamic" // it may be moved
	Static  Strategy = "static"  // it stays where it is
)

// DefaultRole is the role of a controller's replicas when its document gives only a count.
const DefaultRole = "main"

// Defaults for fields that a document leaves out.
const (
	DefaultNodeLossAfter  = 30 * time.Second
	DefaultUnmanagedAfter = 10 * time.Minute
	DefaultMaxSurge       = 1
	// DefaultProgressDeadline is also what a length of zero stands for in a stored record.
	DefaultProgressDeadline = 2 * time.Minute
)

// RC is the record at rcs/<rc-id>.
type RC struct {
	ID             string            `json:"id"`
	Name           string            `json:"name"`
	Labels         map[string]string `json:"labels,omitempty"`
	ManifestDigest string            `json:"manifest"`
	NodeSelector   string            `json:"node_selector"`                      // Kubernetes label selector; empty selects every node
	Mode           Mode              `json:"mode,omitempty" feature:"each-node"` // empty: Replicas
	PodLabels      map[string]string `json:"pod_labels,omitempty"`
	GroupManifests map[string]string `json:"group_manifests,omitempty" feature:"group-manifests"` // digests by role, of the groups whose manifest is another
	ReplicaGroups  []ReplicaGroup    `json:"replica_groups"`                                      // none with EachNode
	MaxPerNode     int               `json:"max_per_node,omitempty"`                              // zero: no limit
	Spread         Spread            `json:"spread,omitzero"`                                     // over the values of a node label; zero: nodes count alone
	Affinity       []Preference      `json:"affinity,omitempty" feature:"placing"`                // which nodes come first
	Placing        Placing           `json:"placing,omitempty" feature:"placing"`                 // empty: PlaceSpread
	MinAvailable   *int              `json:"min_available,omitempty"`                             // nil: MinimumAvailable
	MaxSurge       *int              `json:"max_surge,omitempty"`                                 // nil: DefaultMaxSurge
	NodeLoss       NodeLoss          `json:"node_loss,omitzero"`
	// ProgressDeadline is how long a pod that is upgraded or moved may take to become available; nil: DefaultProgressDeadline.
	ProgressDeadline *field.Duration `json:"progress_deadline,omitempty"`
	Strategy         Strategy        `json:"strategy"`
	Disabled         bool            `json:"disabled,omitempty"`
	DeletedAt        *time.Time      `json:"deleted_at,omitempty"` // deletion mark
	Generation       int64           `json:"generation"`           // grows with every change of the record
	Toggled          int64           `json:"toggled,omitempty"`    // how many of these changes only disabled or enabled it; counts stayed as they were
	ChangedBy        string          `json:"changed_by"`
	AllowMassStop    int64           `json:"allow_mass_stop,omitempty"` // the generation that the breaker lets pass
	Service          *Service        `json:"service,omitempty"`         // nil: the controller is no revision of a service
	InPlace          *InPlace        `json:"in_place,omitempty"`        // nil: every pod gets what its role asks for
	// MadeIn is the epoch in which the controller was made, as the store says. Empty: it is not known, and the controller counts as older than
	// the present one.
	MadeIn string `json:"made_in,omitempty" feature:"ordered"`
}

// MadeInEpoch reports whether the controller was made in an epoch of the cluster.
func (r *RC) MadeInEpoch(epoch string) bool { return r.MadeIn != "" && r.MadeIn == epoch }

// Service makes a controller a revision of a service (ADR 16).
type Service struct {
	Name     string `json:"name"`
	Revision int64  `json:"revision"` // from 1
	// Min and Max count over all revisions that have a record, while there are several: Min available pods are left
	// (P6), and there are no more than Max, those that stop included. Of several revisions the stricter one holds;
	// those that are deleted have no say. While no rollout is in charge they follow the counts: Min is no more than what
	// the revisions that do not stand by ask for together, and Max no less than what all of them do.
	Min int `json:"min,omitempty"`
	Max int `json:"max,omitempty"`
	// Standby keeps the pods out of their service's name; they count for no minimum.
	Standby bool `json:"standby,omitempty"`
}

// InPlace limits an upgrade in place: of the roles that it counts at most Limit pods run the manifest that their role has, the others what
// they have. Pods beyond the limit get the former one again, unless there is none or it is the same. Pods of other roles have no limit.
type InPlace struct {
	From       string            `json:"from,omitempty"`                                  // digest of the controller's former manifest
	FromGroups map[string]string `json:"from_groups,omitempty" feature:"group-manifests"` // those of groups that had another, by role
	Roles      []string          `json:"roles,omitempty" feature:"group-manifests"`       // those that the limit counts, for their manifest changes; none: all
	Limit      int               `json:"limit"`
	// Keep is there while a change of mode goes in stages (ADR 16): the limit counts the pods that are where the mode asks
	// for them, no pod comes beyond it, and so many pods beyond those that the controller asks for stay. nil: none of
	// that.
	Keep *int `json:"keep,omitempty" feature:"mode-stages"`
}

// InStages reports whether a change of mode goes in stages.
func (r *RC) InStages() bool { return r.InPlace != nil && r.InPlace.Keep != nil }

// ReplacesLost reports whether pods of a lost node are placed elsewhere.
func (r *RC) ReplacesLost() bool {
	return r.NodeLoss.Action != "keep" && r.Strategy != Static && !r.EachNode()
}

// NodeLoss says when the pods of a lost node are replaced.
type NodeLoss struct {
	Action         string          `json:"action,omitempty"`          // replace (default) or keep
	After          *field.Duration `json:"after,omitempty"`           // node gone
	UnmanagedAfter *field.Duration `json:"unmanaged_after,omitempty"` // preparer gone, agent alive
}

// Desired returns how many replicas the controller asks for in all.
func (r *RC) Desired() int { return Total(r.ReplicaGroups) }

// Total returns how many replicas groups have together.
func Total(groups []ReplicaGroup) int {
	n := 0
	for _, g := range groups {
		if g.Count != nil {
			n += *g.Count
		}
	}
	return n
}

// Asks returns how many replicas there shall be: none of a controller that is deleted.
func (r *RC) Asks() int {
	if r.DeletedAt != nil {
		return 0
	}
	return r.Desired()
}

// MinimumAvailable returns how many available pods the farm's own actions must leave (P6). A minimum above the desired
// number follows it down; else nothing could ever be scaled below the minimum that a document names.
func (r *RC) MinimumAvailable() int {
	if r.MinAvailable != nil {
		return min(*r.MinAvailable, r.Desired())
	}
	return max(0, r.Desired()-1)
}

// Surge returns how many pods above the desired number may exist while pods are moved.
func (r *RC) Surge() int {
	switch {
	case r.EachNode(): // none is moved
		return 0
	case r.MaxSurge != nil:
		return *r.MaxSurge
	default:
		return DefaultMaxSurge
	}
}

// Deadline returns how long a pod that is upgraded or moved may take to become available.
func (r *RC) Deadline() time.Duration {
	if d := r.ProgressDeadline.Or(DefaultProgressDeadline); d > 0 {
		return d
	}
	return DefaultProgressDeadline
}

// Moves that do not get anywhere.
const (
	// MaxTries is on how many nodes a pod is tried within the time for which they are avoided.
	MaxTries = 3
	// avoidDeadlines is for how many deadlines a node is avoided.
	avoidDeadlines = 10
)

// Avoided returns the nodes that a pod is not moved to, because it did not become available there when it was: not for ten
// deadlines, unless the controller is changed meanwhile; or the pod's manifest is, where the pod was placed there
// first.
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

// AvoidedUntil returns when a node is not avoided any more.
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

// PodLabelSet returns the labels of a pod of the controller: the manifest's, the controller's on top, the pod's own on
// top of both, then those that every pod carries.
func (r *RC) PodLabelSet(podID string, manifestLabels, own map[string]string) map[string]string {
	set := field.Merge(manifestLabels, r.PodLabels, own)
	set[pod.RCIDLabel], set[pod.PodIDLabel] = r.ID, podID
	return set
}
