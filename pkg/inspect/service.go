package inspect

import (
	"encoding/json"
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
	Change     ChangeView      `json:"change"`
	Operations []OperationView `json:"operations"`
	Warnings   []string        `json:"warnings"`
}

// ChangeView is what differs between two documents of a service, and what that takes.
type ChangeView struct {
	Kind   plan.ChangeKind `json:"kind"`
	Fields []FieldView     `json:"fields"` // by their paths
}

// FieldView is one field that differs.
type FieldView struct {
	Path   string          `json:"path"`
	From   json.RawMessage `json:"from,omitempty"`   // left out where there was none, or where it may not be shown
	To     json.RawMessage `json:"to,omitempty"`     // left out where there is none any more, or where it may not be shown
	Secret bool            `json:"secret,omitempty"` // the values may not be shown
	Kind   plan.ChangeKind `json:"kind"`
	Why    string          `json:"why"`
}

// valueOf is one side of a change: a scalar as JSON, or the order of a list, which is text.
func valueOf(text string) json.RawMessage {
	if text == "" || json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	quoted, _ := json.Marshal(text) // text can be encoded
	return quoted
}

// OperationView is one operation of a plan.
type OperationView struct {
	Sign  string `json:"sign"` // + - ~ or -/+
	Depth int    `json:"depth"`
	What  string `json:"what"`
}

// NewPlanView is a plan with its operations in the order in which they are shown.
func NewPlanView(p *plan.Plan) PlanView {
	v := PlanView{
		Service: p.ServiceName, Change: ChangeView{Kind: p.Change.Kind, Fields: []FieldView{}},
		Operations: []OperationView{}, Warnings: append([]string{}, p.Warnings...),
	}
	for _, f := range p.Change.Fields {
		shown := FieldView{Path: f.Path, Secret: f.Secret, Kind: f.Kind, Why: f.Why}
		if !f.Secret {
			shown.From, shown.To = valueOf(f.From), valueOf(f.To)
		}
		v.Change.Fields = append(v.Change.Fields, shown)
	}
	for _, l := range p.Format(0) {
		v.Operations = append(v.Operations, OperationView{Sign: string(l.Sign), Depth: l.Depth, What: l.Text})
	}
	return v
}

// ServiceView is one service.
type ServiceView struct {
	Service   string        `json:"service"`
	Revision  int64         `json:"revision"`
	Replicas  int           `json:"replicas"` // of the document
	Available int           `json:"available"`
	Rollout   rollout.State `json:"rollout"` // empty: none is under way
	By        string        `json:"by"`
	At        time.Time     `json:"at"`
}

// NewServiceView sums a service up.
func NewServiceView(svc *record.Service) ServiceView {
	d := svc.InEffect()
	v := ServiceView{Service: d.Service, Revision: d.Revision, Replicas: d.Spec.Total(), By: d.By, At: d.At}
	for _, one := range svc.Controllers {
		if one.Status != nil {
			v.Available += one.Status.Available
		}
	}
	if svc.Rollout != nil {
		v.Rollout = svc.Rollout.State
	}
	return v
}
