package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// StatusView is the report of the owner, with what rcctl derives.
type StatusView struct {
	RCID       string `json:"rc_id"`
	Name       string `json:"name"`
	State      string `json:"state"`
	Generation int64  `json:"generation"` // of the record
	// the generation on which the owner acts; zero before the first report
	ObservedGeneration int64          `json:"observed_generation"`
	Desired            int            `json:"desired"`
	Placed             int            `json:"placed"`
	Available          int            `json:"available"`
	Stopping           int            `json:"stopping"`
	Lost               int            `json:"lost"`
	Unmanaged          int            `json:"unmanaged"`
	Conditions         []rc.Condition `json:"conditions"`
	Owner              string         `json:"owner"` // farm id
	LastError          string         `json:"last_error,omitempty"`
	Incidents          []rc.Incident  `json:"incidents,omitempty"` // of which people were, or will be, alerted
}

// The states besides the names of conditions.
const (
	Deleting    = "Deleting"
	Disabled    = "Disabled"
	Pending     = "Pending"     // the farm has not seen this generation yet
	Progressing = "Progressing" // not converged, without a known obstacle
)

// Alarms are the conditions that become a controller's state, the worst first. StateOf derives Unclaimed itself.
var Alarms = field.Each(slices.DeleteFunc(slices.Clone(rc.Kinds), func(k rc.Kind) bool {
	return k.Severity <= rc.Good || k.Type == rc.Unclaimed
}), func(k rc.Kind) rc.ConditionType { return k.Type })

// StateOf sums a controller up in one word: a condition, or one of the states above.
func StateOf(r *rc.RC, st *rc.Status, farms []store.Member) string {
	switch {
	case r.DeletedAt != nil:
		return Deleting
	case r.Disabled:
		return Disabled
	case Unclaimed(r, farms):
		return string(rc.Unclaimed)
	case st == nil || st.ObservedGeneration < r.Generation:
		return Pending
	}
	for _, alarm := range Alarms {
		if st.Is(alarm) {
			return string(alarm)
		}
	}
	if st.Is(rc.Converged) {
		return string(rc.Converged)
	}
	return Progressing
}

// Unclaimed reports whether no living farm works on the controller.
func Unclaimed(r *rc.RC, farms []store.Member) bool {
	return !slices.ContainsFunc(farms, func(m store.Member) bool {
		if m.RCID != "" {
			return m.RCID == r.ID
		}
		sel, err := rc.ParseSelector(m.RCSelector)
		return err == nil && sel.Matches(labels.Set(r.Labels))
	})
}

func whyUnclaimed(farms []store.Member) string {
	if len(farms) == 0 {
		return "no farm is running"
	}
	ids := field.Each(farms, func(m store.Member) string { return m.ID })
	return "no running farm selects this rc (running: " + strings.Join(ids, ", ") + ")"
}

// NewStatusView joins a controller and its status. st may be nil.
func NewStatusView(r *rc.RC, st *rc.Status, farms []store.Member) StatusView {
	v := StatusView{
		RCID: r.ID, Name: r.Name, State: StateOf(r, st, farms), Generation: r.Generation,
		Desired: r.Desired(), Conditions: []rc.Condition{},
	}
	if st != nil {
		v.ObservedGeneration, v.Desired, v.Placed, v.Available = st.ObservedGeneration, st.Desired, st.Placed,
			st.Available
		v.Stopping, v.Lost, v.Unmanaged = st.Stopping, st.Lost, st.Unmanaged
		v.Owner, v.LastError, v.Incidents = st.Owner, st.LastError, st.Incidents
		v.Conditions = append(v.Conditions, st.Conditions...)
	}
	if Unclaimed(r, farms) { // maybe no farm is left that could report this
		v.Conditions = rc.SetCondition(v.Conditions, rc.Unclaimed, true, whyUnclaimed(farms), time.Time{})
	}
	return v
}

// Line sums a status up.
func (s *StatusView) Line() string {
	parts := []string{fmt.Sprintf("%s: generation %d of %d, %d desired, %d placed, %d available",
		s.State, s.ObservedGeneration, s.Generation, s.Desired, s.Placed, s.Available)}
	for _, n := range []struct {
		count int
		what  string
	}{{s.Stopping, "stopping"}, {s.Lost, "lost"}, {s.Unmanaged, "unmanaged"}} {
		if n.count > 0 {
			parts[0] += fmt.Sprintf(", %d %s", n.count, n.what)
		}
	}
	for _, c := range s.Conditions {
		switch {
		case c.Type == rc.Converged && !c.True:
			parts = append(parts, "not Converged: "+c.Reason)
		case c.Type != rc.Converged && c.True:
			parts = append(parts, string(c.Type)+": "+c.Reason)
		}
	}
	if s.LastError != "" {
		parts = append(parts, "error: "+s.LastError)
	}
	return strings.Join(parts, "; ")
}
