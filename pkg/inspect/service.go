package inspect

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// HistoryView is one revision of a service.
type HistoryView struct {
	record.Entry
	Outcome  string `json:"outcome"` // done, failed, aborted, or what its rollout does
	InEffect bool   `json:"in_effect"`
}

// NewHistoryView says what came of a revision of a service.
func NewHistoryView(svc *record.Service, e *record.Entry) HistoryView {
	v := HistoryView{Entry: *e, Outcome: string(e.Outcome), InEffect: e.Revision == svc.InEffect().Revision}
	switch {
	case v.Outcome != "":
	case svc.Rollout != nil && svc.Rollout.ID == e.Rollout:
		v.Outcome = string(svc.Rollout.State)
	case e.Rollout == "":
		v.Outcome = "done"
	default:
		v.Outcome = "replaced" // by another rollout before it ended
	}
	return v
}

// PlanView is the plan of one service.
type PlanView struct {
	Service    string          `json:"service"`
	Change     plan.SpecChange `json:"change"`
	Operations []plan.Line     `json:"operations"` // in the order in which they are shown
	Warnings   []string        `json:"warnings"`
}

// NewPlanView is a plan as it is shown. Lists are never null.
func NewPlanView(p *plan.Plan) PlanView {
	change := plan.SpecChange{Kind: p.Change.Kind, Fields: append([]plan.FieldChange{}, p.Change.Fields...)}
	return PlanView{Service: p.ServiceName, Change: change, Operations: append([]plan.Line{}, p.Lines()...), Warnings: append([]string{}, p.Warnings...)}
}

// ServiceView is one service.
type ServiceView struct {
	Service   string        `json:"service"`
	Revision  int64         `json:"revision"`
	Replicas  int           `json:"replicas"` // of the document
	Available int           `json:"available"`
	Rollout   rollout.State `json:"rollout"` // of the one under way; else how that to the revision ended, if not well; empty: all is done
	By        string        `json:"by"`      // who made the revision
	At        time.Time     `json:"at"`      // when that was
}

// NewServiceView sums a service up.
func NewServiceView(svc *record.Service) ServiceView {
	d := svc.InEffect()
	v := ServiceView{Service: d.Service, Revision: d.Revision, Replicas: d.Spec.Total(), By: d.By, At: d.At}
	made := svc.Entry(d.Revision)
	if made != nil {
		v.By, v.At = made.By, made.At
	}
	for _, one := range svc.Controllers {
		if one.Status != nil {
			if one.RC.ID == d.RC && one.RC.EachNode() {
				v.Replicas = one.Status.Desired
			}
			v.Available += one.Status.Available
		}
	}
	if svc.Rollout != nil {
		v.Rollout = svc.Rollout.State
	} else if made != nil && made.Outcome != rollout.Done {
		v.Rollout = made.Outcome
	}
	return v
}
