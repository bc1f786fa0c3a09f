package rc

import (
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Status is what the owner farm reports, at status/<rc-id>.
type Status struct {
	RCID               string      `json:"rc_id"`
	ObservedGeneration int64       `json:"observed_generation"`
	Desired            int         `json:"desired"`
	Placed             int         `json:"placed"` // placements that are meant to run
	Available          int         `json:"available"`
	Stopping           int         `json:"stopping"` // asked to stop, not confirmed
	Lost               int         `json:"lost"`
	Unmanaged          int         `json:"unmanaged"` // on nodes whose preparer is away
	Conditions         []Condition `json:"conditions"`
	Owner              string      `json:"owner"` // farm id
	LastError          string      `json:"last_error,omitempty"`
	Incidents          []Incident  `json:"incidents,omitempty"` // what somebody is, or has to be, alerted to

	// MassStopUsed is the generation whose AllowMassStop lets no slip of a label pass any more: once it was converged (ADR 24).
	MassStopUsed int64 `json:"mass_stop_used,omitempty" feature:"each-node"`

	// What a rollout decides by (ADR 16).
	Epoch              string `json:"nonce,omitempty"`               // of the cluster, of revisions of a service whose nodes have said what they run in that world
	Ghosts             int    `json:"ghosts,omitempty"`              // copies elsewhere that have to stop and have not confirmed it, those on lost machines left out
	StoppingLost       int    `json:"stopping_lost,omitempty"`       // of Stopping, those on lost machines
	UnmanagedAvailable int    `json:"unmanaged_available,omitempty"` // of Available, those on nodes whose preparer is away
	Updated            int    `json:"updated,omitempty"`             // of Placed, those that are meant to run the record's manifest, of roles that the limit of an upgrade in place counts
	UpdatedAvailable   int    `json:"updated_available,omitempty"`   // of Updated, those that are available, on nodes with a preparer
	StandingBy         int    `json:"standing_by,omitempty"`         // of Placed, those that their nodes have registered as standing by
	// TriedElsewhere is when a pod that runs the record's manifest was last told to leave a node where it had never
	// become available. Each pod does that once; the timeout of a stage counts anew from then.
	TriedElsewhere *time.Time `json:"tried_elsewhere,omitempty" feature:"second-node"`
	// Hopeless: a pod that runs the record's manifest was never available, is hopeless, and gets no second node any more.
	Hopeless bool         `json:"hopeless,omitempty" feature:"second-node"`
	Failing  []PodFailure `json:"failing,omitempty"` // pods that run the record's manifest and fail, hopeless ones first; at most MaxFailing
}

// MaxFailing is how many failing pods a status names.
const MaxFailing = 5

// PodFailure is a pod that does not become available, and why.
type PodFailure struct {
	Pod      string `json:"pod"` // <role>.<index>
	Node     string `json:"node"`
	Reason   string `json:"reason"`             // at most MaxReason bytes of JSON
	Hopeless bool   `json:"hopeless,omitempty"` // waiting does not help: its artifact is refused, or its process ends again and again
}

// Texts in a status are short whatever they speak of: it is written in one transaction with changes, and read in one with
// others. MaxReason is in bytes of JSON, and MaxStatusBytes is more than all of a status takes.
const (
	MaxReason      = 1000
	MaxStatusBytes = 56 * 1024
)

// Condition is one thing that is true or not, why, and since when.
type Condition struct {
	Type   ConditionType `json:"type"`
	True   bool          `json:"true"`
	Reason string        `json:"reason,omitempty"` // a sentence
	Since  time.Time     `json:"since"`            // of the last change of True
}

// TakeNone is in the reason of InsufficientNodes before the number of nodes by why they take no pod.
const TakeNone = "these take none: "

// SetCondition returns the conditions with one replaced; Since is kept while True does not change. A condition that was
// never true is not listed as false, except Converged. A reason is cut to MaxReason.
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

// CarrySince gives each condition that has not changed since the previous status the time from there.
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

// Reason returns why a condition is true, "" where it is not.
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

// Incident is something about a controller that somebody should be told. It lives in the controller's status, so that
// the next owner knows what was told already.
type Incident struct {
	Key    string        `json:"key"` // the same for as long as the incident lasts, whoever owns the controller
	Type   ConditionType `json:"type"`
	Reason string        `json:"reason"` // when it began
	Since  time.Time     `json:"since"`
	// AlertedAt is when it was raised; nil: it is too young, or is being raised.
	AlertedAt *time.Time `json:"alerted_at,omitempty"`
	// ResolvedAt is when it was over. It stays in the status until that was told too.
	ResolvedAt *time.Time `json:"resolved_at,omitempty"`
}

// IncidentKey returns the key of an incident of a controller.
func IncidentKey(rcID string, t ConditionType, since time.Time) string {
	return fmt.Sprintf("%s/%s/%d", rcID, t, since.UnixMilli())
}
