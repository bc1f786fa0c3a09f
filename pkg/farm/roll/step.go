package roll

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Seen is the input of a step.
type Seen struct {
	Unit    *store.Unit
	Schema  store.Rec[store.Schema]
	Breaker store.Rec[store.Breaker]
	// Found has the statuses that this look's passes computed, by controller. A pass that failed or ended early leaves
	// a status without a generation, so that no decision relies on it. For other controllers the stored status is used.
	Found map[string]*rc.Status
	// Ran is the nodes' reports of the pod that runs once before the deployment.
	Ran     []pod.Reality
	Now     time.Time
	Watched time.Duration // how long the owner has seen the rollout without progress
	Gate    *rollout.GateAnswer
	Version string // the version gate; "": not known
}

// Observe returns the input of a decision.
func Observe(s *Seen) rollout.Observed {
	r := &s.Unit.Rollout.Value
	o := rollout.Observed{
		Now: s.Now.UTC(), Watched: &s.Watched, Epoch: s.Schema.Value.Epoch, Gate: s.Gate,
		Revisions: map[string]rollout.Seen{},
	}
	switch b := &s.Breaker; {
	case b.Index == 0:
		o.Breaker = "its record is missing, or cannot be read"
	case b.Value.Tripped:
		o.Breaker = b.Value.Reason
		if o.Breaker == "" {
			o.Breaker = "it is tripped"
		}
	}
	ids := field.Each(r.Revisions, func(of rollout.Revision) string { return of.RC })
	for _, id := range ids { // a controller that is gone gets an empty entry; an unreadable controller gets none
		h := s.Unit.Heads[id]
		switch {
		case h == nil || !h.Exists():
			o.Revisions[id] = rollout.Seen{}
		case h.Err == nil:
			o.Revisions[id] = rollout.Seen{RC: h.RC.Value, Status: s.statusOf(id)}
		}
	}
	if r.PreDeploy != nil {
		o.PreDeploy = ranOnce(s.statusOf(r.PreDeploy.RC), s.Ran)
	}
	return o
}

func (s *Seen) statusOf(id string) *rc.Status {
	if st := s.Found[id]; st != nil {
		return st
	}
	if h := s.Unit.Heads[id]; h != nil {
		return h.Status
	}
	return nil
}

// StepOf returns the step that writes a decision, without the owner's fence; nil: there is nothing to write. It leaves
// out the field stuck if the version gate does not allow it.
func StepOf(s *Seen, d *rollout.Decision, who string) *store.RolloutStep {
	if f := feature.Known.Named("stuck"); d.Record.Stuck != "" && s.Version != "" && feature.After(f.Since, s.Version) {
		d.Record.Stuck = ""
		d.Write = d.Write && !reflect.DeepEqual(d.Record, s.Unit.Rollout.Value)
	}
	if !d.Write && !d.Ended && len(d.RCs)+len(d.Delete)+len(d.Audit) == 0 && d.Alert == "" {
		return nil
	}
	step := &store.RolloutStep{
		Unit: s.Unit, Schema: s.Schema.Index, Breaker: s.Breaker.Index, RCs: withDeleted(s, d, who), Ended: d.Ended,
	}
	if d.Write || d.Ended {
		step.Record, step.Over = &d.Record, goesOn(&d.Record)
	}
	if len(d.Audit) > 0 || d.Ended {
		a := store.NewAudit(who, deedOf(d), rcOf(d), d.Audit)
		step.Audit = &a
	}
	if d.Alert != "" {
		step.Trouble = &store.RolloutTrouble{
			Rollout: d.Record.ID, Reason: field.Cut(d.Alert, rc.MaxReason), Ended: d.Ended,
		}
	}
	return step
}

// withDeleted returns the controllers that a decision changes or deletes.
func withDeleted(s *Seen, d *rollout.Decision, who string) []rc.RC {
	all := slices.Clone(d.RCs)
	now := s.Now.UTC()
	for _, id := range d.Delete {
		h := s.Unit.Heads[id]
		changed := slices.ContainsFunc(d.RCs, func(r rc.RC) bool { return r.ID == id })
		if h == nil || h.Err != nil || h.RC.Value.DeletedAt != nil || changed {
			continue
		}
		gone := h.RC.Value
		gone.DeletedAt, gone.ChangedBy = &now, who
		gone.Generation++
		all = append(all, gone)
	}
	for i := range all {
		h := s.Unit.Heads[all[i].ID]
		if all[i].ChangedBy == "" || h == nil || all[i].Generation != h.RC.Value.Generation {
			all[i].ChangedBy = who
		}
	}
	return all
}

func deedOf(d *rollout.Decision) string {
	if !d.Ended {
		return "rollout"
	}
	switch d.Record.State {
	case rollout.Done:
		return "rollout-succeeded"
	case rollout.Aborted:
		return "rollout-cancelled"
	default:
		return "rollout-failed"
	}
}

// rcOf returns the controller that the audit record is about: the one that goes up, else the last.
func rcOf(d *rollout.Decision) string {
	if up := d.Record.Upward(); up != nil {
		return up.RC
	}
	return d.Record.Revisions[len(d.Record.Revisions)-1].RC
}

// ranOnce returns the result of a pod that runs once, nil for none yet.
func ranOnce(st *rc.Status, realities []pod.Reality) *rollout.PreDeployed {
	if st != nil && st.Lost > 0 {
		return &rollout.PreDeployed{Lost: true}
	}
	for i := range realities {
		reality := &realities[i]
		if exit := reality.LastExit; exit != nil {
			done := &rollout.PreDeployed{Finished: true, Exit: exit.Code, Tail: reality.LogTail}
			if exit.Unknown || exit.Signal != "" {
				done.Exit, done.Failed = -1, "it "+exit.String()
			}
			return done
		}
	}
	if st == nil {
		return nil
	}
	for _, f := range st.Failing {
		if f.Hopeless {
			return &rollout.PreDeployed{Failed: f.Reason}
		}
	}
	return nil
}

// Stopped returns the step that records why a rollout cannot be worked on, nil if it is recorded.
func Stopped(u *store.Unit, schema, breaker uint64, why string) *store.RolloutStep {
	reason := field.Cut(rc.CannotWork+why, rc.MaxReason)
	next := u.Rollout.Value
	if next.BlockedReason == reason {
		return nil
	}
	next.BlockedReason = reason
	return &store.RolloutStep{
		Unit: u, Schema: schema, Breaker: breaker, Record: &next,
		Trouble: &store.RolloutTrouble{Rollout: next.ID, Reason: reason},
	}
}

// Trouble returns the text with which to alert people about a unit's rollout, "" for none. Recorded trouble is valid
// while the rollout is paused, rolls back or cannot be worked on, and after its end until another rollout begins.
func Trouble(u *store.Unit) string {
	t, r := &u.Trouble, &u.Rollout.Value
	switch {
	case u.RolloutErr != nil:
		return u.RolloutErr.Error()
	case t.Index == 0:
		return ""
	case u.Rollout.Index == 0 && t.Value.Ended:
		return t.Value.Reason
	case u.Rollout.Index == 0 || r.ID != t.Value.Rollout || goesOn(r):
		return ""
	}
	return t.Value.Reason
}

// goesOn reports whether a rollout moves or waits as intended, so that people need not act.
func goesOn(r *rollout.Record) bool {
	return (r.State == rollout.Progressing || r.State == rollout.WaitingForPromote) &&
		!strings.HasPrefix(r.BlockedReason, rc.CannotWork)
}
