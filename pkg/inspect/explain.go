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

// Explanation is why a controller is as it is, in sentences.
type Explanation struct {
	RCID    string  `json:"rc_id"`
	Name    string  `json:"name"`
	State   string  `json:"state"`
	Summary string  `json:"summary"`
	Causes  []Cause `json:"causes"` // the one to look at first, first
}

// Cause is one thing that keeps a controller from being as it should, and what to do about it.
type Cause struct {
	What string `json:"what"`
	Next string `json:"next,omitempty"`
}

// Situation is everything that an explanation follows from.
type Situation struct {
	Now      time.Time
	RC       rc.RC
	Status   *rc.Status
	Manifest *manifest.Manifest            // nil: missing or unreadable
	Groups   map[string]*manifest.Manifest // manifests of groups of their own, by digest; those that cannot be read are not there
	Pods
	Nodes   map[string]*node.View
	Taken   map[string]node.Reservation
	Epoch   string // of the cluster
	Farms   []store.Member
	Owner   string         // farm that holds the lock; empty: none
	Rollout string         // that is in charge of the controller; empty: none
	Breaker *store.Breaker // nil: missing or unreadable
}

// Explain says why a controller is not converged, and what to do. It is computed without I/O.
func Explain(s *Situation) Explanation {
	as := *s
	as.RC = *counted(&s.RC, s.Status)
	s = &as
	e := Explanation{RCID: s.RC.ID, Name: s.RC.Name, State: StateOf(&s.RC, s.Status, s.Farms), Causes: []Cause{}}
	e.Summary = summary(s, e.State)
	for _, look := range []func(*Situation) []Cause{
		ownership, records, intended, withheld, shortage,
		upgrade, troubledPods,
	} {
		e.Causes = append(e.Causes, look(s)...)
	}
	if len(e.Causes) == 0 && e.State != string(rc.Converged) {
		what := "Nothing is in its way."
		if reason := s.why(rc.Converged); reason != "" {
			what = "Its farm says: " + reason + "."
		}
		e.Causes = append(e.Causes, Cause{What: what, Next: "Wait: rcctl rc status " + s.RC.Name + " --watch --until Converged"})
	}
	return e
}

func summary(s *Situation, state string) string {
	available := 0
	if s.Status != nil {
		available = s.Status.Available
	}
	asItShould := state == string(rc.Converged) || s.is(rc.Converged) && (state == string(rc.Misplaced) || state == string(rc.RequestVoid))
	if asItShould {
		return fmt.Sprintf("It has converged: %d of %s available.", available, field.Count(s.RC.Desired(), "replica"))
	}
	return fmt.Sprintf("It has not converged (%s): %d of %s available, %d placed.", state, available, field.Count(s.RC.Desired(), "replica"), s.running())
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

// ownership looks for a farm that works on it.
func ownership(s *Situation) []Cause {
	switch {
	case len(s.Farms) == 0:
		return []Cause{{"No farm is running, so nobody works on it. Its pods run on.", "Start a farm: farm --id farm-1"}}
	case Unclaimed(&s.RC, s.Farms):
		var selectors []string
		for _, m := range s.Farms {
			if m.RCID == "" {
				selectors = append(selectors, fmt.Sprintf("%s (%s)", m.RCSelector, m.ID))
			}
		}
		return []Cause{{
			fmt.Sprintf("No running farm selects it: its labels are %s, the farms select %s.", cmp.Or(LabelText(s.RC.Labels), "none"), strings.Join(selectors, ", ")),
			"Change its labels and apply it again, or start a farm whose --rc-selector matches it.",
		}}
	case s.Owner == "":
		return []Cause{{"No farm owns it at this moment, though one should.", "Wait a few seconds; if it stays so, look at the logs of the farms (rcctl farms)."}}
	case s.Status == nil || s.Status.ObservedGeneration < s.RC.Generation:
		seen := int64(0)
		if s.Status != nil {
			seen = s.Status.ObservedGeneration
		}
		return []Cause{{
			fmt.Sprintf("Farm %s owns it and has not reported on generation %d yet (it has seen %d).", s.Owner, s.RC.Generation, seen),
			"Wait a few seconds; if it stays so, look at the log of farm " + s.Owner + s.at(s.Owner) + ".",
		}}
	}
	return nil
}

// at says where a farm's debug server is.
func (s *Situation) at(farm string) string {
	if m := field.Find(s.Farms, func(m *store.Member) bool { return m.ID == farm && m.Address != "" }); m != nil {
		return ", or at its debug server " + m.Address
	}
	return ""
}

// records looks for what cannot be read.
func records(s *Situation) []Cause {
	var causes []Cause
	if s.Manifest == nil {
		causes = append(causes, Cause{
			fmt.Sprintf("The manifest %s that it asks for is missing or unreadable, so that no pod can be added.", Short(s.RC.ManifestDigest)),
			"Apply its document again: rcctl apply -f FILE",
		})
	}
	if s.Status != nil && s.Status.LastError != "" && s.Manifest != nil {
		causes = append(causes, Cause{"Its farm could not read all of it: " + s.Status.LastError + ".", "Mend or remove the record that is named, or restore it."})
	}
	return causes
}

// intended looks at what it was asked to be.
func intended(s *Situation) []Cause {
	switch {
	case s.RC.DeletedAt != nil:
		return []Cause{{
			fmt.Sprintf("It is marked for deletion since %s; %s left, and it goes when the last one's stop is confirmed.", s.RC.DeletedAt.UTC().Format(time.RFC3339), podsAre(len(s.Placements))),
			"Watch: rcctl rc status " + s.RC.Name + " --watch --until Gone",
		}}
	case s.RC.Disabled:
		return []Cause{{"It is disabled: nothing is placed and nothing is removed.", "When that is over: rcctl rc enable " + s.RC.Name}}
	}
	return nil
}

func podsAre(n int) string { return count(n, "pod is", "pods are") }

// count says how many there are, with the word and the verb for one or for others.
func count(n int, one, others string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, others)
}

// withheld looks at what keeps farms from acting at all.
func withheld(s *Situation) []Cause {
	var causes []Cause
	if s.Breaker == nil {
		causes = append(causes, Cause{"The record of the mass-stop breaker is missing or unreadable, so that nothing is stopped.", "A running farm makes a missing one; where it is unreadable: rcctl farm resume"})
	} else if s.Breaker.Tripped && (s.is(rc.BreakerTripped) || s.RC.DeletedAt != nil || s.running() > s.RC.Desired()) {
		causes = append(causes, Cause{
			fmt.Sprintf("The mass-stop breaker was tripped by %s at %s (%s), so that nothing is stopped.", s.Breaker.By, s.Breaker.Since.UTC().Format(time.RFC3339), s.Breaker.Reason),
			"Find out why (rcctl audit --since 1h). Ask again for what is meant, with --allow-mass-stop, take back what is not; then: rcctl farm resume",
		})
	}
	for _, k := range rc.Kinds {
		if k.What != "" && s.is(k.Type) {
			causes = append(causes, Cause{k.What + ": " + s.why(k.Type) + ".", strings.ReplaceAll(k.Next, "{rc}", s.RC.Name)})
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

// upgrade looks at a new manifest that does not get through.
func upgrade(s *Situation) []Cause {
	var causes []Cause
	if s.is(rc.Blocked) {
		causes = append(causes, Cause{"It is blocked: " + s.why(rc.Blocked) + ".", unblock(s)})
	}
	if st := s.Status; s.RC.InStages() && s.Rollout != "" && st != nil && st.Placed != st.Desired {
		causes = append(causes, Cause{
			fmt.Sprintf("Its mode changes in stages: it has %d pods on the way to %d; rollout %s is in charge of that.", st.Placed, st.Desired, s.Rollout),
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
		causes = append(causes, Cause{fmt.Sprintf("%s on another manifest; rollout %s is in charge of that.", podsAre(outdated), s.Rollout), "Look at the rollout."})
	case outdated > 0 && !s.is(rc.Blocked) && !s.is(rc.Regressed):
		causes = append(causes, Cause{fmt.Sprintf("%s still on another manifest; they are upgraded one at a time.", podsAre(outdated)), "Wait: rcctl rc status " + s.RC.Name + " --watch"})
	}
	return causes
}

// unblock says what helps where something is blocked: what only another manifest mends is said to need one.
func unblock(s *Situation) string {
	if p, r := Failing(&s.Pods, s.RC.Digests()); p != nil {
		next := "Apply a manifest that works"
		if severity(&r) <= sick {
			next += ", or give it more time with progress_deadline"
		}
		return next + "; what it wrote: " + LogsOf(p)
	}
	switch mover := s.mover(); {
	case mover != nil && s.RC.Strategy == rc.Static:
		return fmt.Sprintf("rcctl node undrain %s, or stop it at a deadline: rcctl node drain %s --deadline 0s --force", mover.Node, mover.Node)
	case mover != nil && s.RC.EachNode():
		return fmt.Sprintf("Lower min_available, help the others to become available, or let it stay: rcctl node undrain %s", mover.Node)
	case mover != nil && len(mover.Avoid) > 0:
		return fmt.Sprintf("Look at the nodes that are named, add one, or let it stay: rcctl node undrain %s", mover.Node)
	case mover != nil:
		return fmt.Sprintf("Lower min_available, allow a max_surge, or let it stay: rcctl node undrain %s", mover.Node)
	case s.Status.Available-1 < s.RC.MinimumAvailable():
		return "Lower min_available, or add replicas."
	default:
		return "Free room where it is wanted: rcctl pods --node NODE"
	}
}

// deadline is how long a pod may take to become available, min_ready included.
func (s *Situation) deadline() time.Duration {
	if s.Manifest == nil {
		return s.RC.Deadline()
	}
	return s.RC.Deadline() + s.Manifest.ReadyAfter()
}
