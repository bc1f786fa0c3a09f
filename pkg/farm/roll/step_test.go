package roll_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The controllers of a unit, and a time.
const (
	unit          = "01m82rq476dk3dzcatmcv2vmc4"
	web1, web2    = unit + "-1", unit + "-2"
	pre           = unit + "-2-pre"
	schemaIndex   = 11
	breakerIndex  = 12
	rolloutIndex  = 13
	troubleIndex  = 14
	theEpoch      = "epoch"
	watchedForAll = 7 * time.Second
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.FixedZone("elsewhere", 3600))

func controller(id string, rev, generation int64) rc.RC {
	return rc.RC{ID: id, Generation: generation, ChangedBy: "op", Service: &rc.Service{Name: "web", Revision: rev}}
}

func headOf(r rc.RC, st *rc.Status) *store.Head {
	return &store.Head{RC: store.Rec[rc.RC]{Value: r, Index: 20}, Status: st}
}

// seen returns a unit with two revisions and a rollout from the first to the second. Both have a stored status.
func seen() *roll.Seen {
	record := rollout.Record{ID: "one", Service: "web", State: rollout.Progressing, Revisions: []rollout.Revision{
		{RC: web1, Rev: 1, Direction: rollout.Down}, {RC: web2, Rev: 2, Direction: rollout.Up},
	}}
	return &roll.Seen{
		Unit: &store.Unit{
			ID: unit, Rollout: store.Rec[rollout.Record]{Value: record, Index: rolloutIndex},
			Heads: map[string]*store.Head{
				web1: headOf(controller(web1, 1, 4), &rc.Status{RCID: web1, Available: 1}),
				web2: headOf(controller(web2, 2, 5), &rc.Status{RCID: web2, Available: 2}),
			},
		},
		Schema:  store.Rec[store.Schema]{Value: store.Schema{Epoch: theEpoch}, Index: schemaIndex},
		Breaker: store.Rec[store.Breaker]{Index: breakerIndex},
		Found:   map[string]*rc.Status{}, Now: noon, Watched: watchedForAll,
	}
}

// A decision uses the status that the last pass computed rather than the stored one. A controller that is gone has an
// empty entry, and an unreadable controller has no entry.
func TestADecisionSeesEachRevision(t *testing.T) {
	t.Parallel()
	found := &rc.Status{RCID: web2, Available: 3}
	for name, tt := range map[string]struct {
		change func(*roll.Seen)
		want   *rollout.Seen // of the second revision; nil: it is missing
	}{
		"the stored status": {func(*roll.Seen) {}, &rollout.Seen{
			RC: controller(web2, 2, 5), Status: &rc.Status{RCID: web2, Available: 2},
		}},
		"the status of the last pass": {func(s *roll.Seen) { s.Found[web2] = found }, &rollout.Seen{
			RC: controller(web2, 2, 5), Status: found,
		}},
		"a pass without a status": {func(s *roll.Seen) { s.Found[web2] = nil }, &rollout.Seen{
			RC: controller(web2, 2, 5), Status: &rc.Status{RCID: web2, Available: 2},
		}},
		"no status": {
			func(s *roll.Seen) { s.Unit.Heads[web2].Status = nil }, &rollout.Seen{RC: controller(web2, 2, 5)},
		},
		"gone":      {func(s *roll.Seen) { delete(s.Unit.Heads, web2) }, &rollout.Seen{}},
		"only pods": {func(s *roll.Seen) { s.Unit.Heads[web2] = &store.Head{Err: store.ErrNotFound} }, &rollout.Seen{}},
		"unreadable": {func(s *roll.Seen) {
			s.Unit.Heads[web2].Err = &store.CorruptError{Key: "rcs/x", Err: errors.New("bad")}
		}, nil},
		"not in the rollout": {
			func(s *roll.Seen) { s.Unit.Rollout.Value.Revisions = s.Unit.Rollout.Value.Revisions[:1] }, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := seen()
			tt.change(s)
			o := roll.Observe(s)
			got, there := o.Revisions[web2]
			if there != (tt.want != nil) || there && !reflect.DeepEqual(got, *tt.want) {
				t.Errorf("the second revision is there: %t, as %+v", there, got)
			}
			if first := o.Revisions[web1]; first.RC.ID != web1 || first.Status.Available != 1 {
				t.Errorf("the first revision is %+v", first)
			}
			if o.Now != noon.UTC() || o.Now.Location() != time.UTC || *o.Watched != watchedForAll ||
				o.Epoch != theEpoch || o.Gate != nil {
				t.Errorf("observed %+v", o)
			}
		})
	}
}

// A rollout moves only if the breaker's record is readable and the breaker is not tripped.
func TestADecisionSeesTheBreaker(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		breaker store.Rec[store.Breaker]
		want    string
	}{
		"none":        {store.Rec[store.Breaker]{}, "its record is missing, or cannot be read"},
		"not tripped": {store.Rec[store.Breaker]{Index: 1}, ""},
		"tripped": {
			store.Rec[store.Breaker]{Index: 1, Value: store.Breaker{Tripped: true, Reason: "too many"}},
			"too many",
		},
		"tripped, no reason": {
			store.Rec[store.Breaker]{Index: 1, Value: store.Breaker{Tripped: true}}, "it is tripped",
		},
		"it was tripped": {store.Rec[store.Breaker]{Index: 1, Value: store.Breaker{Reason: "too many"}}, ""},
	} {
		s := seen()
		s.Breaker = tt.breaker
		if got := roll.Observe(s).Breaker; got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A decision sees the answer of the gate.
func TestADecisionSeesTheAnswerOfTheGate(t *testing.T) {
	t.Parallel()
	s := seen()
	s.Gate = &rollout.GateAnswer{Stage: 2, Error: "no"}
	if got := roll.Observe(s).Gate; got == nil || *got != *s.Gate {
		t.Errorf("%+v", got)
	}
}

// The result of the pod that runs once follows from its controller's status and its node's reports. A lost node comes
// first, because its last report may not be the end of the run.
func TestADecisionSeesTheResultOfThePreDeployPod(t *testing.T) {
	t.Parallel()
	ended := func(e pod.Exit) []pod.Reality {
		return []pod.Reality{{State: pod.StateStarting}, {LastExit: &e, LogTail: "the end"}}
	}
	failing := func(hopeless bool) *rc.Status {
		return &rc.Status{Failing: []rc.PodFailure{{Reason: "slow"}, {Reason: "no such artifact", Hopeless: hopeless}}}
	}
	for name, tt := range map[string]struct {
		status *rc.Status
		ran    []pod.Reality
		want   *rollout.PreDeployed
	}{
		"nothing yet":  {nil, nil, nil},
		"it is placed": {&rc.Status{Placed: 1}, nil, nil},
		"it runs":      {&rc.Status{Placed: 1}, []pod.Reality{{State: pod.StateReady}}, nil},
		"it succeeds":  {nil, ended(pod.Exit{}), &rollout.PreDeployed{Finished: true, Tail: "the end"}},
		"an exit code": {
			nil, ended(pod.Exit{Code: 3}), &rollout.PreDeployed{Finished: true, Exit: 3, Tail: "the end"},
		},
		"success, and an error": {
			failing(true), ended(pod.Exit{}), &rollout.PreDeployed{Finished: true, Tail: "the end"},
		},
		"a signal": {nil, ended(pod.Exit{Code: 0, Signal: "SIGKILL"}), &rollout.PreDeployed{
			Finished: true, Exit: -1, Tail: "the end", Failed: "it ended by SIGKILL",
		}},
		"an unknown end": {nil, ended(pod.Exit{Code: 0, Unknown: true}), &rollout.PreDeployed{
			Finished: true, Exit: -1, Tail: "the end",
			Failed: "it ended; how is not known, because an earlier supervisor had started it",
		}},
		"lost":             {&rc.Status{Lost: 1}, nil, &rollout.PreDeployed{Lost: true}},
		"lost, and ended":  {&rc.Status{Lost: 1}, ended(pod.Exit{}), &rollout.PreDeployed{Lost: true}},
		"it cannot run":    {failing(true), nil, &rollout.PreDeployed{Failed: "no such artifact"}},
		"it may still run": {failing(false), nil, nil},
	} {
		for _, of := range []string{"stored", "found", "not asked for"} {
			s := seen()
			s.Unit.Rollout.Value.PreDeploy = &rollout.PreDeploy{RC: pre}
			s.Ran = tt.ran
			want := tt.want
			switch of {
			case "stored":
				s.Unit.Heads[pre] = headOf(controller(pre, 0, 1), tt.status)
			case "found":
				s.Unit.Heads[pre] = headOf(controller(pre, 0, 1), nil)
				s.Found[pre] = tt.status
			default:
				s.Unit.Rollout.Value.PreDeploy, want = nil, nil
			}
			if got := roll.Observe(s).PreDeploy; !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: %+v, want %+v", name, of, got, want)
			}
		}
	}
}

// A decision without a change writes nothing. Each change is written, with the indices of the records that the decision
// has read.
func TestAStepWritesWhatTheDecisionChanges(t *testing.T) {
	t.Parallel()
	next := func(state rollout.State) rollout.Record {
		r := seen().Unit.Rollout.Value
		r.Stage, r.State = 2, state
		return r
	}
	progressing, done, aborted, failed := next(rollout.Progressing), next(rollout.Done), next(rollout.Aborted),
		next(rollout.Failed)
	changed := controller(web2, 2, 6)
	downward := next(rollout.RollingBack)
	downward.Revisions = []rollout.Revision{{RC: web1, Direction: rollout.Stay}, {RC: web2, Direction: rollout.Down}}
	type audit struct {
		what, rcID, changes string
	}
	for name, tt := range map[string]struct {
		decision rollout.Decision
		none     bool
		record   *rollout.Record
		ended    bool
		rcs      []string // id, and who changed it
		audit    audit
		trouble  *store.RolloutTrouble
	}{
		"nothing": {decision: rollout.Decision{Record: progressing}, none: true},
		"a look, a gate": {
			decision: rollout.Decision{Record: progressing, Again: 1, Gate: &rollout.GateCall{}}, none: true,
		},
		"the record": {decision: rollout.Decision{Record: progressing, Write: true}, record: &progressing},
		"a controller": {
			decision: rollout.Decision{Record: progressing, RCs: []rc.RC{changed}},
			rcs:      []string{web2 + " f"},
		},
		"a deletion": {
			decision: rollout.Decision{Record: progressing, Delete: []string{web1}},
			rcs:      []string{web1 + " f"},
		},
		"an audit line": {
			decision: rollout.Decision{Record: progressing, Audit: []string{"moved"}},
			audit:    audit{"rollout", web2, "moved"},
		},
		"an audit line, no revision goes up": {
			decision: rollout.Decision{Record: downward, Audit: []string{"moved"}},
			audit:    audit{"rollout", web2, "moved"},
		},
		"an alert": {
			decision: rollout.Decision{Record: progressing, Alert: "look"},
			trouble:  &store.RolloutTrouble{Rollout: "one", Reason: "look"},
		},
		"done": {
			decision: rollout.Decision{Record: done, Ended: true}, record: &done, ended: true,
			audit: audit{"rollout-succeeded", web2, ""},
		},
		"aborted": {
			decision: rollout.Decision{Record: aborted, Ended: true, Write: true, Audit: []string{"a"}},
			record:   &aborted,
			ended:    true,
			audit:    audit{"rollout-cancelled", web2, "a"},
		},
		"failed": {
			decision: rollout.Decision{Record: failed, Ended: true, Alert: strings.Repeat("x", rc.MaxReason+1)},
			record:   &failed, ended: true,
			audit: audit{"rollout-failed", web2, ""},
			trouble: &store.RolloutTrouble{
				Rollout: "one", Reason: strings.Repeat("x", rc.MaxReason-3) + "...", Ended: true,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := seen()
			step := roll.StepOf(s, &tt.decision, "f")
			if tt.none || step == nil {
				if !tt.none || step != nil {
					t.Errorf("the step is %+v", step)
				}
				return
			}
			if step.Unit != s.Unit || step.Schema != schemaIndex || step.Breaker != breakerIndex ||
				step.Ended != tt.ended {
				t.Errorf("%+v", step)
			}
			if !reflect.DeepEqual(step.Record, tt.record) {
				t.Errorf("the record is %+v, want %+v", step.Record, tt.record)
			}
			var rcs []string
			for i := range step.RCs {
				rcs = append(rcs, step.RCs[i].ID+" "+step.RCs[i].ChangedBy)
			}
			if !slices.Equal(rcs, tt.rcs) {
				t.Errorf("the step changes the controllers %q, want %q", rcs, tt.rcs)
			}
			got := audit{}
			if a := step.Audit; a != nil {
				got = audit{a.What, a.RCID, strings.Join(a.Changes, "; ")}
				if a.Who != "f" {
					t.Errorf("the audit record names %q, want f", a.Who)
				}
			}
			if got != tt.audit {
				t.Errorf("the audit record is %+v, want %+v", got, tt.audit)
			}
			if trouble := step.Trouble; trouble == nil || tt.trouble == nil {
				if trouble != tt.trouble {
					t.Errorf("the trouble is %+v, want %+v", trouble, tt.trouble)
				}
			} else if trouble.Rollout != "one" || trouble.Ended != tt.trouble.Ended ||
				len(trouble.Reason) > rc.MaxReason || trouble.Reason[:3] != tt.trouble.Reason[:3] {
				t.Errorf("the trouble is %+v", trouble)
			}
		})
	}
}

// If the version gate is known and does not allow the field stuck, a step leaves the field out. A step that would write
// only this field is nil then.
func TestStuckIsWrittenIfTheGateAllowsIt(t *testing.T) {
	t.Parallel()
	for gate, want := range map[string]string{"": "full", "0.1.0": "", "0.2.0": "full"} {
		for _, moves := range []bool{false, true} {
			s := seen()
			s.Version = gate
			d := rollout.Decision{Record: s.Unit.Rollout.Value, Write: true}
			if d.Record.Stuck = "full"; moves {
				d.Record.Stage++
			}
			step := roll.StepOf(s, &d, "f")
			if written := step != nil; written != (want != "" || moves) {
				t.Errorf("gate %q, moves %v: %+v", gate, moves, step)
			} else if written && step.Record.Stuck != want {
				t.Errorf("gate %q: stuck is %q, want %q", gate, step.Record.Stuck, want)
			}
		}
	}
}

// A step sets deleted_at of a controller once, with a new generation. If the generation of a controller is new, the
// step writes that the farm has changed it.
func TestAStepDeletesControllersOnce(t *testing.T) {
	t.Parallel()
	at := noon.Add(-time.Hour)
	marked := controller(web1, 1, 4)
	marked.DeletedAt = &at
	changed := controller(web2, 2, 6)
	for name, tt := range map[string]struct {
		change   func(*roll.Seen)
		decision rollout.Decision
		want     []rc.RC
	}{
		"one that exists": {func(*roll.Seen) {}, rollout.Decision{Delete: []string{web1}}, []rc.RC{func() rc.RC {
			r, now := controller(web1, 1, 5), noon.UTC()
			r.DeletedAt, r.ChangedBy = &now, "f"
			return r
		}()}},
		"one that is deleted": {
			func(s *roll.Seen) { s.Unit.Heads[web1] = headOf(marked, nil) },
			rollout.Decision{Delete: []string{web1}},
			nil,
		},
		"one that is gone": {
			func(s *roll.Seen) { delete(s.Unit.Heads, web1) },
			rollout.Decision{Delete: []string{web1}},
			nil,
		},
		"one without a record": {
			func(s *roll.Seen) { s.Unit.Heads[web1].Err = store.ErrNotFound },
			rollout.Decision{Delete: []string{web1}},
			nil,
		},
		"one that the decision deletes": {
			func(*roll.Seen) {}, rollout.Decision{RCs: []rc.RC{func() rc.RC {
				r := marked
				r.Generation = 5
				return r
			}()}, Delete: []string{web1}}, []rc.RC{func() rc.RC {
				r := marked
				r.Generation, r.ChangedBy = 5, "f"
				return r
			}()},
		},
		"another generation": {func(*roll.Seen) {}, rollout.Decision{RCs: []rc.RC{changed}}, []rc.RC{func() rc.RC {
			r := changed
			r.ChangedBy = "f"
			return r
		}()}},
		"the same generation": {
			func(*roll.Seen) {},
			rollout.Decision{RCs: []rc.RC{controller(web2, 2, 5)}},
			[]rc.RC{controller(web2, 2, 5)},
		},
		"changed by nobody": {func(*roll.Seen) {}, rollout.Decision{RCs: []rc.RC{func() rc.RC {
			r := controller(web2, 2, 5)
			r.ChangedBy = ""
			return r
		}()}}, []rc.RC{func() rc.RC {
			r := controller(web2, 2, 5)
			r.ChangedBy = "f"
			return r
		}()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := seen()
			tt.change(s)
			tt.decision.Record, tt.decision.Write = s.Unit.Rollout.Value, true
			before := slices.Clone(tt.decision.RCs)
			step := roll.StepOf(s, &tt.decision, "f")
			if !reflect.DeepEqual(step.RCs, tt.want) {
				t.Errorf("%+v, want %+v", step.RCs, tt.want)
			}
			if !reflect.DeepEqual(tt.decision.RCs, before) {
				t.Errorf("StepOf changed the decision to %+v", tt.decision.RCs)
			}
			if r := s.Unit.Heads[web1]; r != nil && r.RC.Value.DeletedAt != nil && *r.RC.Value.DeletedAt != at {
				t.Errorf("StepOf changed what was read to %+v", r.RC.Value)
			}
		})
	}
}
