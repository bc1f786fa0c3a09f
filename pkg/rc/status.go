package rc

import (
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// CannotWork begins LastError, or a rollout's reason to be blocked, after the farm's code panicked.
const CannotWork = "it cannot be worked on: "

// Status is the owner's report, at status/<rc-id>.
type Status struct {
	RCID               string      `json:"rc_id"`
	ObservedGeneration int64       `json:"observed_generation"`
	Desired            int         `json:"desired"`
	Placed             int         `json:"placed"` // placements whose pods must run
	Available          int         `json:"available"`
	Stopping           int         `json:"stopping"` // asked to stop, not confirmed
	Lost               int         `json:"lost"`
	Unmanaged          int         `json:"unmanaged"` // on nodes without a preparer
	Conditions         []Condition `json:"conditions"`
	Owner              string      `json:"owner"`                // farm id
	LastError          string      `json:"last_error,omitempty"` // see CannotWork
	Incidents          []Incident  `json:"incidents,omitempty"`  // that people are, or must be, alerted to

	// MassStopUsed is the generation whose AllowMassStop is used up, because the controller has converged since (ADR
	// 24). A later mistake in a label must not stop many pods.
	MassStopUsed int64 `json:"mass_stop_used,omitempty" feature:"each-node"`

	// Rollouts decide by the fields from here on (ADR 16). Epoch is the present epoch, if all nodes have spoken in it.
	// Only revisions of a service have it.
	Epoch string `json:"nonce,omitempty"`
	// Ghosts are former copies without a confirmed stop. Copies on lost machines are left out.
	Ghosts       int `json:"ghosts,omitempty"`
	StoppingLost int `json:"stopping_lost,omitempty"` // how many of Stopping are on lost machines
	// UnmanagedAvailable is how many of Available are on nodes without a preparer.
	UnmanagedAvailable int `json:"unmanaged_available,omitempty"`
	// Updated is how many of Placed must run the record's manifest, in roles to which InPlace.Limit applies.
	Updated int `json:"updated,omitempty"`
	// UpdatedAvailable is how many of Updated are available, on nodes with a preparer.
	UpdatedAvailable int `json:"updated_available,omitempty"`
	// StandingBy is how many of Placed their nodes registered as standby.
	StandingBy int `json:"standing_by,omitempty"`
	// TriedElsewhere is when a pod with the record's manifest last began to leave its first node for a second. A
	// stage's timeout begins again then.
	TriedElsewhere *time.Time `json:"tried_elsewhere,omitempty" feature:"second-node"`
	// PullSeconds is the longest time that images of a pod that is not available have arrived, among pods with the
	// record's manifest. The timeout of a stage is longer by it.
	PullSeconds int64 `json:"pull_seconds,omitempty" feature:"images"`
	// Hopeless: a pod with the record's manifest was never available, is hopeless, and gets no second node.
	Hopeless bool `json:"hopeless,omitempty" feature:"second-node"`
	// Failing are pods with the record's manifest that fail, hopeless ones first.
	Failing []PodFailure `json:"failing,omitempty"`
}

// MaxFailing bounds Status.Failing.
const MaxFailing = 5

// PodFailure is a pod that does not become available.
type PodFailure struct {
	Pod    string `json:"pod"` // <role>.<index>
	Node   string `json:"node"`
	Reason string `json:"reason"` // at most MaxReason bytes of JSON
	// Hopeless: its artifact is refused, or its process ends again and again.
	Hopeless bool `json:"hopeless,omitempty"`
}

// Texts in a status are short, because one transaction writes a status with changes, and reads it with other records.
// MaxReason is in bytes of JSON. MaxStatusBytes is more than a whole status takes.
const (
	MaxReason      = 1000
	MaxStatusBytes = 56 * 1024
)

// Condition is whether something is true, why, and since when.
type Condition struct {
	Type   ConditionType `json:"type"`
	True   bool          `json:"true"`
	Reason string        `json:"reason,omitempty"` // a sentence
	Since  time.Time     `json:"since"`            // of the last change of True
}

// TakeNone is in the reason of InsufficientNodes. After it come the causes, each with a number of nodes.
const TakeNone = "these take none: "

// SetCondition replaces one condition. Since is kept while True does not change. Only Converged is listed as false if
// it was never true.
func SetCondition(conds []Condition, t ConditionType, isTrue bool, reason string, now time.Time) []Condition {
	i := slices.IndexFunc(conds, func(c Condition) bool { return c.Type == t })
	reason = field.Cut(reason, MaxReason)
	switch {
	case i < 0 && !isTrue && t != Converged:
		return conds
	case i < 0:
		return append(conds, Condition{Type: t, True: isTrue, Reason: reason, Since: now})
	}
	if conds[i].True != isTrue {
		conds[i].Since = now
	}
	field.NotAhead(&conds[i].Since, now)
	conds[i].True, conds[i].Reason = isTrue, reason
	return conds
}

// CarrySince takes Since of unchanged conditions from the previous status.
func (s *Status) CarrySince(previous *Status) {
	if previous == nil {
		return
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		for _, before := range previous.Conditions {
			if before.Type == c.Type && before.True == c.True {
				c.Since = before.Since
			}
		}
	}
}

// Reason returns why a condition is true; "" if it is not.
func (s *Status) Reason(t ConditionType) string {
	if c := field.Find(s.Conditions, func(c *Condition) bool { return c.Type == t && c.True }); c != nil {
		return c.Reason
	}
	return ""
}

// Is reports whether a condition is true.
func (s *Status) Is(t ConditionType) bool {
	return slices.ContainsFunc(s.Conditions, func(c Condition) bool { return c.Type == t && c.True })
}

// Incident is what people should be alerted to. It is in the status, because the next owner must know sent alerts.
type Incident struct {
	Key    string        `json:"key"` // does not change while the incident lasts, also under another owner
	Type   ConditionType `json:"type"`
	Reason string        `json:"reason"` // when it began
	Since  time.Time     `json:"since"`
	// AlertedAt is when the alert was raised; nil: not yet.
	AlertedAt *time.Time `json:"alerted_at,omitempty"`
	// ResolvedAt is when it was over. The incident is kept until its end was reported, too.
	ResolvedAt *time.Time `json:"resolved_at,omitempty"`
}

// IncidentKey returns Incident.Key.
func IncidentKey(rcID string, t ConditionType, since time.Time) string {
	return fmt.Sprintf("%s/%s/%d", rcID, t, since.UnixMilli())
}
