package inspect

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Explanation explains why a controller has not converged.
type Explanation struct {
	RCID    string  `json:"rc_id"`
	Name    string  `json:"name"`
	State   string  `json:"state"`
	Summary string  `json:"summary"`
	Causes  []Cause `json:"causes"` // the most urgent first
}

// Cause is one reason, and what to do about it.
type Cause struct {
	What string `json:"what"`
	Next string `json:"next,omitempty"`
}

// Situation is the input of an explanation.
type Situation struct {
	Now      time.Time
	RC       rc.RC
	Status   *rc.Status
	Manifest *manifest.Manifest // nil: missing or unreadable
	// the groups' own manifests that can be read, by digest
	Groups map[string]*manifest.Manifest
	Pods
	Nodes   map[string]*node.View
	Taken   map[string]node.Reservation
	Epoch   string // of the cluster
	Farms   []store.Member
	Owner   string         // farm that holds the lock; empty: none
	Rollout string         // the rollout in charge of the controller; empty: none
	Breaker *store.Breaker // nil: missing or unreadable
}

// Explain explains why a controller has not converged, and what to do.
func Explain(s *Situation) Explanation {
	as := *s
	as.RC = *counted(&s.RC, s.Status)
	s = &as
	e := Explanation{RCID: s.RC.ID, Name: s.RC.Name, State: StateOf(&s.RC, s.Status, s.Farms), Causes: []Cause{}}
	e.Summary = summary(s, e.State)
	for _, find := range []func(*Situation) []Cause{
		ownership, records, tripped, intended, conditions, shortage, upgrade, troubledPods,
	} {
		e.Causes = append(e.Causes, find(s)...)
	}
	if len(e.Causes) == 0 && e.State != string(rc.Converged) {
		what := "No obstacle is known."
		if reason := s.why(rc.Converged); reason != "" {
			what = "Its farm says: " + reason + "."
		}
		e.Causes = append(e.Causes,
			Cause{What: what, Next: "Wait: rcctl rc status " + s.RC.Name + " --watch --until Converged"})
	}
	return e
}

func summary(s *Situation, state string) string {
	available := 0
	if s.Status != nil {
		available = s.Status.Available
	}
	asItShould := state == string(rc.Converged) ||
		s.is(rc.Converged) && (state == string(rc.Misplaced) || state == string(rc.RequestVoid))
	if asItShould {
		return fmt.Sprintf("It has converged: %d of %s available.", available, field.Count(s.RC.Desired(), "replica"))
	}
	return fmt.Sprintf("It has not converged (%s): %d of %s available, %d placed.",
		state, available, field.Count(s.RC.Desired(), "replica"), s.running())
}

func (s *Situation) running() int {
	n := 0
	for i := range s.Placements {
		if s.Placements[i].RunState == pod.Running {
			n++
		}
	}
	return n
}

func ownership(s *Situation) []Cause {
	switch {
	case len(s.Farms) == 0:
		return []Cause{
			{"No farm is running, so nobody works on it. Its pods run on.", "Start a farm: farm --id farm-1"},
		}
	case Unclaimed(&s.RC, s.Farms):
		var selectors []string
		for _, m := range s.Farms {
			if m.RCID == "" {
				selectors = append(selectors, fmt.Sprintf("%s (%s)", m.RCSelector, m.ID))
			}
		}
		return []Cause{{
			fmt.Sprintf("No running farm selects it: its labels are %s, the farms select %s.",
				cmp.Or(LabelText(s.RC.Labels), "none"), strings.Join(selectors, ", ")),
			"Change its labels and apply it again, or start a farm whose --rc-selector matches it.",
		}}
	case s.Owner == "":
		return []Cause{{
			"No farm owns it at this moment, though one should.",
			"Wait a few seconds; if it stays so, look at the logs of the farms (rcctl farms).",
		}}
	case s.Status == nil || s.Status.ObservedGeneration < s.RC.Generation:
		seen := int64(0)
		if s.Status != nil {
			seen = s.Status.ObservedGeneration
		}
		return []Cause{{
			fmt.Sprintf("Farm %s owns it and has not reported on generation %d yet (it has seen %d).",
				s.Owner, s.RC.Generation, seen),
			"Wait a few seconds; if it stays so, look at the log of farm " + s.Owner + s.at(s.Owner) + ".",
		}}
	}
	return nil
}

func (s *Situation) at(farm string) string {
	if m := field.Find(s.Farms, func(m *store.Member) bool { return m.ID == farm && m.Address != "" }); m != nil {
		return ", or at its debug server " + m.Address
	}
	return ""
}

func records(s *Situation) []Cause {
	var causes []Cause
	if s.Manifest == nil {
		causes = append(causes, Cause{
			fmt.Sprintf("The manifest %s that it asks for is missing or unreadable, so no pod can be added.",
				Short(s.RC.ManifestDigest)),
			"Apply its document again: rcctl apply -f FILE",
		})
	}
	if s.Status == nil || s.Status.LastError == "" || s.Manifest == nil {
		return causes
	}
	if why, panicked := strings.CutPrefix(s.Status.LastError, rc.CannotWork); panicked {
		return append(causes, Cause{
			"Its farm cannot work on it: " + why + ".",
			"Its pods run on. Report the defect with the stack in the farm's log. Until then, undo the last change: " +
				"rcctl audit --rc " + s.RC.Name,
		})
	}
	return append(causes, Cause{
		"Its farm could not read all of its records: " + s.Status.LastError + ".",
		"Correct, remove or restore the record that is named.",
	})
}

func intended(s *Situation) []Cause {
	switch {
	case s.RC.DeletedAt != nil:
		return []Cause{{
			fmt.Sprintf("It was marked for deletion at %s; %s left, and its records are removed when the last stop is "+
				"confirmed.", At(*s.RC.DeletedAt), podsAre(len(s.Placements))),
			"Watch: rcctl rc status " + s.RC.Name + " --watch --until Gone",
		}}
	case s.RC.Disabled:
		return []Cause{{
			"It is disabled: nothing is placed and nothing is removed.",
			"To end that: rcctl rc enable " + s.RC.Name,
		}}
	}
	return nil
}

func podsAre(n int) string { return count(n, "pod is", "pods are") }

func count(n int, one, others string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, others)
}

// Explain calls tripped before intended, because a deletion waits until an operator resumes the farms.
func tripped(s *Situation) []Cause {
	if s.Breaker == nil {
		return []Cause{{
			"The record of the mass-stop breaker is missing or unreadable, so nothing is stopped.",
			"A running farm creates a missing record; if it is unreadable: rcctl farm resume",
		}}
	}
	if s.Breaker.Tripped && (s.is(rc.BreakerTripped) || s.RC.DeletedAt != nil || s.running() > s.RC.Desired()) {
		again := "repeat one that you mean with --allow-mass-stop"
		if s.RC.DeletedAt != nil {
			again += " (rcctl rc delete " + s.RC.Name + " --allow-mass-stop)"
		}
		return []Cause{{
			fmt.Sprintf("Farm %s tripped the mass-stop breaker at %s (%s), so nothing is stopped.",
				s.Breaker.By, At(s.Breaker.Since), s.Breaker.Reason),
			"Find out why (rcctl audit --since 1h). Take back a change that was a mistake, and " + again +
				"; then: rcctl farm resume",
		}}
	}
	return nil
}

func conditions(s *Situation) []Cause {
	var causes []Cause
	for _, k := range rc.Kinds {
		if k.What != "" && s.is(k.Type) {
			causes = append(causes,
				Cause{k.What + ": " + s.why(k.Type) + ".", s.advice(k.Next)})
		}
	}
	return causes
}

func (s *Situation) is(t rc.ConditionType) bool { return s.Status != nil && s.Status.Is(t) }

func (s *Situation) why(t rc.ConditionType) string {
	if c := field.Find(s.Status.Conditions, func(c *rc.Condition) bool { return c.Type == t }); c != nil {
		return strings.TrimSuffix(c.Reason, ".")
	}
	return ""
}

func upgrade(s *Situation) []Cause {
	var causes []Cause
	if s.is(rc.Blocked) {
		causes = append(causes, Cause{"It is blocked: " + s.why(rc.Blocked) + ".", unblock(s)})
	}
	if st := s.Status; s.RC.InStages() && s.Rollout != "" && st != nil && st.Placed != st.Desired {
		causes = append(causes, Cause{
			fmt.Sprintf("Its mode changes in stages: it has %d pods on the way to %d; rollout %s is in charge of that.",
				st.Placed, st.Desired, s.Rollout),
			"Look at the rollout.",
		})
	}
	outdated := 0
	for i := range s.Placements {
		if p := &s.Placements[i]; p.RunState == pod.Running && p.Digest != s.RC.ManifestOf(p.Role) {
			outdated++
		}
	}
	switch {
	case outdated > 0 && s.Rollout != "":
		causes = append(causes,
			Cause{
				fmt.Sprintf("%s on another manifest; rollout %s is in charge of that.", podsAre(outdated), s.Rollout),
				"Look at the rollout.",
			})
	case outdated > 0 && !s.is(rc.Blocked) && !s.is(rc.Regressed):
		causes = append(causes,
			Cause{
				fmt.Sprintf("%s still on another manifest; they are upgraded one at a time.", podsAre(outdated)),
				"Wait: rcctl rc status " + s.RC.Name + " --watch",
			})
	}
	return causes
}

func (s *Situation) advice(text string) string {
	text = strings.ReplaceAll(text, "{rc}", s.RC.Name)
	if s.RC.Service != nil {
		text = strings.ReplaceAll(text, "SERVICE", s.RC.Service.Name)
	}
	return text
}

func unblock(s *Situation) string {
	if p, r := Failing(&s.Pods, s.RC.Digests()); p != nil {
		next := "Apply a manifest that works"
		if severity(&r) <= sick {
			next += ", or give it more time with progress_deadline"
		}
		return next + "; its log: " + LogsOf(p, s.RC.Name)
	}
	switch mover := s.mover(); {
	case mover != nil && s.RC.Strategy == rc.Static:
		return fmt.Sprintf("rcctl node undrain %s, or stop it at a deadline: rcctl node drain %s --deadline 0s --force",
			mover.Node, mover.Node)
	case mover != nil && s.RC.EachNode():
		return fmt.Sprintf("Lower min_available, help the others to become available, or end the drain: rcctl node "+
			"undrain %s", mover.Node)
	case mover != nil && len(mover.Avoid) > 0:
		return fmt.Sprintf("Look at the nodes that are named, add one, or end the drain: rcctl node undrain %s",
			mover.Node)
	case mover != nil:
		return fmt.Sprintf("Lower min_available, allow a max_surge, or end the drain: rcctl node undrain %s",
			mover.Node)
	case s.Status.Available-1 < s.RC.MinimumAvailable():
		return "Lower min_available, or add replicas."
	default:
		return "Free capacity on the node that it needs: rcctl pods --node NODE"
	}
}

// deadline is how long a pod may take to become available, min_ready included.
func (s *Situation) deadline() time.Duration {
	if s.Manifest == nil {
		return s.RC.Deadline()
	}
	return s.RC.Deadline() + s.Manifest.ReadyAfter()
}
