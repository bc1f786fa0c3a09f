package rc

import (
	"fmt"
	"time"
)

// What is said of a controller by others than its owner.
const (
	// Unclaimed: no living farm works on the controller. No owner can say so: the farm with the lowest id does.
	Unclaimed ConditionType = "Unclaimed"
)

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
