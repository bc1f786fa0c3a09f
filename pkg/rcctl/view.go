package rcctl

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The structs below are what -o json and -o yaml print; rcctl rc get -o yaml prints an RCDocument. They are an interface: fields are added, never renamed or
// removed. Times are RFC 3339 in UTC, lengths of time are text with a unit. Lists are never null.

// RCView is one controller: what it asks for, and its status.
type RCView struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	State         string            `json:"state"` // one word, see stateOf
	Generation    int64             `json:"generation"`
	ChangedBy     string            `json:"changed_by"`
	DeletedAt     *time.Time        `json:"deleted_at,omitempty"`
	Disabled      bool              `json:"disabled"`
	Labels        map[string]string `json:"labels,omitempty"`
	NodeSelector  string            `json:"node_selector"` // empty selects every node
	PodLabels     map[string]string `json:"pod_labels,omitempty"`
	Replicas      int               `json:"replicas"` // of all groups together
	ReplicaGroups []rc.ReplicaGroup `json:"replica_groups"`
	MaxPerNode    int               `json:"max_per_node"`     // zero: no limit
	Spread        string            `json:"spread,omitempty"` // key of the node label that pods are spread over
	MinAvailable  int               `json:"min_available"`    // in effect, default included
	// MinAvailableAsked is what was asked for, where there are fewer replicas.
	MinAvailableAsked *int         `json:"min_available_asked,omitempty"`
	MaxSurge          int          `json:"max_surge"` // in effect, default included
	NodeLoss          NodeLossView `json:"node_loss"`
	// ProgressDeadline is how long a pod that is upgraded or moved may take to become available, default included.
	ProgressDeadline field.Duration     `json:"progress_deadline"`
	Strategy         rc.Strategy        `json:"strategy"`
	Mutator          string             `json:"mutator,omitempty"` // rollout in charge
	ManifestDigest   string             `json:"manifest_digest"`
	Manifest         *manifest.Manifest `json:"manifest,omitempty"` // only from rc get
	Defaulted        []string           `json:"defaulted"`          // which of the above are not as a document has set them, as name=value
	Status           *StatusView        `json:"status"`             // null while no farm has reported
}

// NodeLossView says when the pods of a lost node are replaced, defaults included.
type NodeLossView struct {
	Action         string         `json:"action"`
	After          field.Duration `json:"after"`
	UnmanagedAfter field.Duration `json:"unmanaged_after"`
}

// StatusView is what the owner farm reports, with what rcctl itself can tell.
type StatusView struct {
	RCID               string         `json:"rc_id"`
	Name               string         `json:"name"`
	State              string         `json:"state"`
	Generation         int64          `json:"generation"`          // of the record
	ObservedGeneration int64          `json:"observed_generation"` // that the farm acts on; zero while none has reported
	Desired            int            `json:"desired"`
	Placed             int            `json:"placed"`
	Available          int            `json:"available"`
	Stopping           int            `json:"stopping"`
	Lost               int            `json:"lost"`
	Unmanaged          int            `json:"unmanaged"`
	Conditions         []rc.Condition `json:"conditions"`
	Owner              string         `json:"owner"` // farm id
	LastError          string         `json:"last_error,omitempty"`
	Incidents          []rc.Incident  `json:"incidents,omitempty"` // that somebody was, or is about to be, alerted to
}

// The states besides the names of conditions.
const (
	stateDeleting    = "Deleting"
	stateDisabled    = "Disabled"
	statePending     = "Pending"     // the farm has not seen this generation yet
	stateProgressing = "Progressing" // on the way, nothing in it
)

// alarms are the conditions that name a controller's state when they are true, the worst first.
var alarms = [...]rc.ConditionType{
	rc.Unreadable, rc.BreakerTripped, rc.CrashLooping, rc.Blocked, rc.InsufficientNodes, rc.NodeLost, rc.BooksDiffer, rc.Holding, rc.Regressed,
	rc.WaitsForService, rc.RolloutGone, rc.RequestVoid, rc.Misplaced,
}

// stateOf sums a controller up in one word: Deleting, Disabled, Unclaimed, Pending, the name of a condition that is
// in the way, Converged or Progressing.
func stateOf(r *rc.RC, st *rc.Status, farms []store.Member) string {
	switch {
	case r.DeletedAt != nil:
		return stateDeleting
	case r.Disabled:
		return stateDisabled
	case unclaimed(r, farms):
		return string(rc.Unclaimed)
	case st == nil || st.ObservedGeneration < r.Generation:
		return statePending
	}
	for _, alarm := range alarms {
		if st.Is(alarm) {
			return string(alarm)
		}
	}
	if st.Is(rc.Converged) {
		return string(rc.Converged)
	}
	return stateProgressing
}

// unclaimed reports whether no living farm works on controllers with these labels.
func unclaimed(r *rc.RC, farms []store.Member) bool {
	return !slices.ContainsFunc(farms, func(m store.Member) bool {
		sel, err := rc.ParseSelector(m.RCSelector)
		return err == nil && sel.Matches(labels.Set(r.Labels))
	})
}

func whyUnclaimed(farms []store.Member) string {
	if len(farms) == 0 {
		return "no farm is running"
	}
	ids := make([]string, len(farms))
	for i := range farms {
		ids[i] = farms[i].ID
	}
	return "no running farm selects this rc (running: " + strings.Join(ids, ", ") + ")"
}

// newRCView joins a controller and its status. st may be nil.
func newRCView(r *rc.RC, st *rc.Status, farms []store.Member) RCView {
	v := RCView{
		ID: r.ID, Name: r.Name, State: stateOf(r, st, farms), Generation: r.Generation, ChangedBy: r.ChangedBy,
		DeletedAt: r.DeletedAt, Disabled: r.Disabled, Labels: r.Labels, NodeSelector: r.NodeSelector,
		PodLabels: r.PodLabels, Replicas: r.Desired(), ReplicaGroups: r.ReplicaGroups, MaxPerNode: r.MaxPerNode, Spread: r.Spread,
		MinAvailable: r.MinimumAvailable(), MaxSurge: r.Surge(), Strategy: r.Strategy, Mutator: r.Mutator,
		ManifestDigest: r.ManifestDigest, ProgressDeadline: field.Duration(r.Deadline()),
		NodeLoss: NodeLossView{
			Action:         r.NodeLoss.Action,
			After:          field.Duration(r.NodeLoss.After.Or(rc.DefaultNodeLossAfter)),
			UnmanagedAfter: field.Duration(r.NodeLoss.UnmanagedAfter.Or(rc.DefaultUnmanagedAfter)),
		},
	}
	if v.NodeLoss.Action == "" {
		v.NodeLoss.Action = "replace"
	}
	if r.MinAvailable != nil && *r.MinAvailable != v.MinAvailable {
		v.MinAvailableAsked = r.MinAvailable
	}
	v.Defaulted = defaulted(r, &v)
	if st != nil {
		view := newStatusView(r, st, farms)
		v.Status = &view
	}
	return v
}

// newStatusView is the status of a controller, with the conditions that rcctl derives. st may be nil.
func newStatusView(r *rc.RC, st *rc.Status, farms []store.Member) StatusView {
	v := StatusView{RCID: r.ID, Name: r.Name, State: stateOf(r, st, farms), Generation: r.Generation, Desired: r.Desired(), Conditions: []rc.Condition{}}
	if st != nil {
		v.ObservedGeneration, v.Desired, v.Placed, v.Available = st.ObservedGeneration, st.Desired, st.Placed, st.Available
		v.Stopping, v.Lost, v.Unmanaged = st.Stopping, st.Lost, st.Unmanaged
		v.Owner, v.LastError, v.Incidents = st.Owner, st.LastError, st.Incidents
		v.Conditions = append(v.Conditions, st.Conditions...)
	}
	if unclaimed(r, farms) { // also where no farm is left that could say so
		v.Conditions = rc.SetCondition(v.Conditions, rc.Unclaimed, true, whyUnclaimed(farms), time.Time{})
	}
	return v
}
