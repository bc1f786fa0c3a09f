package inspect

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// -o json and -o yaml print the structs below; rcctl rc get -o yaml prints an RCDocument. Other programs read this
// output, so we add fields, but never rename or remove a field. Times are RFC 3339 in UTC, lengths of time are text
// with a unit. Lists are never null.

// RCView is one controller and its status.
type RCView struct {
	ID           string            `json:"id"`
	Name         string            `json:"name"`
	State        string            `json:"state"` // one word, see StateOf
	Generation   int64             `json:"generation"`
	ChangedBy    string            `json:"changed_by"`
	DeletedAt    *time.Time        `json:"deleted_at,omitempty"`
	Disabled     bool              `json:"disabled"`
	Labels       map[string]string `json:"labels,omitempty"`
	NodeSelector string            `json:"node_selector"` // empty selects every node
	PodLabels    map[string]string `json:"pod_labels,omitempty"`
	Mode         rc.Mode           `json:"mode,omitempty"` // empty: replicas
	// of all groups together; with the mode each-node, the number of matching nodes
	Replicas      int               `json:"replicas"`
	ReplicaGroups []rc.ReplicaGroup `json:"replica_groups"`
	MaxPerNode    int               `json:"max_per_node"`    // zero: no limit
	Spread        rc.Spread         `json:"spread,omitzero"` // over the values of a node label
	Affinity      []rc.Preference   `json:"affinity,omitempty"`
	Placing       rc.Placing        `json:"placing,omitempty"` // empty: spread
	MinAvailable  int               `json:"min_available"`     // in effect, default included
	// the minimum in the document, if it is higher than the number of replicas
	MinAvailableAsked *int         `json:"min_available_asked,omitempty"`
	MaxSurge          int          `json:"max_surge"` // in effect, default included
	NodeLoss          NodeLossView `json:"node_loss"`
	// how long an upgraded or moved pod may take to become available, default included
	ProgressDeadline field.Duration `json:"progress_deadline"`
	Strategy         rc.Strategy    `json:"strategy"`
	ManifestDigest   string         `json:"manifest_digest"`
	// digests by role, of the groups with a manifest of their own
	GroupManifests map[string]string  `json:"group_manifests,omitempty"`
	Manifest       *manifest.Manifest `json:"manifest,omitempty"` // only from rc get
	// the fields above that were filled in, as name=value
	Defaulted []string    `json:"defaulted"`
	Status    *StatusView `json:"status"` // null while no farm has reported
}

// NodeLossView is when the pods of a lost node are replaced, defaults included.
type NodeLossView struct {
	Action         string         `json:"action"`
	After          field.Duration `json:"after"`
	UnmanagedAfter field.Duration `json:"unmanaged_after"`
}

// counted returns a controller with the number of replicas that its farm uses. For each-node it is in the status.
func counted(r *rc.RC, st *rc.Status) *rc.RC {
	if !r.EachNode() {
		return r
	}
	if st == nil {
		st = &rc.Status{}
	}
	c := r.CountedBy(st.Desired)
	c.MaxPerNode = 1
	if least := max(0, st.Desired-st.Lost-1); r.MinAvailable == nil {
		c.MinAvailable = &least
	}
	return &c
}

// NewRCView joins a controller and its status. st may be nil.
func NewRCView(r *rc.RC, st *rc.Status, farms []store.Member) RCView {
	c, loss := counted(r, st), "replace"
	if r.EachNode() {
		loss = "keep"
	}
	v := RCView{
		ID: r.ID, Name: r.Name, State: StateOf(r, st, farms), Generation: r.Generation, ChangedBy: r.ChangedBy,
		DeletedAt: r.DeletedAt, Disabled: r.Disabled, Labels: r.Labels, NodeSelector: r.NodeSelector,
		PodLabels: r.PodLabels, Mode: r.Mode, Replicas: c.Desired(),
		ReplicaGroups: append([]rc.ReplicaGroup{}, r.ReplicaGroups...),
		MaxPerNode:    r.MaxPerNode, Spread: r.Spread, Affinity: r.Affinity, Placing: r.Placing,
		MinAvailable: c.MinimumAvailable(), MaxSurge: r.Surge(), Strategy: r.Strategy,
		ManifestDigest: r.ManifestDigest, GroupManifests: r.GroupManifests,
		ProgressDeadline: field.Duration(r.Deadline()),
		NodeLoss: NodeLossView{
			Action:         cmp.Or(r.NodeLoss.Action, loss),
			After:          field.Duration(r.NodeLoss.After.Or(rc.DefaultNodeLossAfter)),
			UnmanagedAfter: field.Duration(r.NodeLoss.UnmanagedAfter.Or(rc.DefaultUnmanagedAfter)),
		},
	}
	if r.MinAvailable != nil && *r.MinAvailable != v.MinAvailable {
		v.MinAvailableAsked = r.MinAvailable
	}
	v.Defaulted = defaulted(r, &v)
	if st != nil {
		view := NewStatusView(r, st, farms)
		v.Status = &view
	}
	return v
}

// JoinRCs joins controllers with their status, sorted by name.
func JoinRCs(recs []store.Rec[rc.RC], found []store.Rec[rc.Status], farms []store.Member) []RCView {
	statuses := make(map[string]*rc.Status, len(found))
	for i := range found {
		statuses[found[i].Value.RCID] = &found[i].Value
	}
	views := make([]RCView, 0, len(recs))
	for i := range recs {
		r := &recs[i].Value
		views = append(views, NewRCView(r, statuses[r.ID], farms))
	}
	slices.SortFunc(views, func(a, b RCView) int { return strings.Compare(a.Name, b.Name) })
	return views
}
