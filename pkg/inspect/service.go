package inspect

import (
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// HistoryView is one revision of a service.
type HistoryView struct {
	record.Entry
	Outcome  string `json:"outcome"` // done, failed, aborted, replaced, or the state of its rollout
	InEffect bool   `json:"in_effect"`
}

// NewHistoryView returns a revision of a service with its outcome.
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

// NewPlanView returns the view of a plan.
func NewPlanView(p *plan.Plan) PlanView {
	change := plan.SpecChange{Kind: p.Change.Kind, Fields: append([]plan.FieldChange{}, p.Change.Fields...)}
	return PlanView{
		Service: p.ServiceName, Change: change, Operations: append([]plan.Line{}, p.Lines()...),
		Warnings: append([]string{}, p.Warnings...),
	}
}

// ServiceView is one service.
type ServiceView struct {
	Service   string `json:"service"`
	Revision  int64  `json:"revision"`
	Replicas  int    `json:"replicas"` // of the document
	Available int    `json:"available"`
	// state of the rollout under way, or else the outcome of the last rollout; empty: done
	Rollout rollout.State `json:"rollout"`
	By      string        `json:"by"` // who made the revision
	At      time.Time     `json:"at"` // when that was
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

// DomainView is the cluster's domain, and the host names of services.
type DomainView struct {
	Domain   string     `json:"domain"` // empty: there is none
	By       string     `json:"by,omitempty"`
	At       time.Time  `json:"at,omitzero"`
	Services []HostView `json:"services"`
}

// HostView is the host name of a service.
type HostView struct {
	Service string `json:"service"`
	Host    string `json:"host"` // empty: it has none
	// Next is the host name after the next deploy, if it changes; empty: none. It is nil if the document names the
	// host. We assume this if the host name does not begin with the service's name.
	Next *string `json:"next,omitempty"`
}

// NewDomainView returns the host names that services have, and will get.
func NewDomainView(s store.Settings, deployed []record.Deployed) DomainView {
	v := DomainView{Domain: s.Domain, By: s.By, At: s.At}
	v.Services = field.Each(deployed, func(d record.Deployed) HostView {
		h := HostView{Service: d.Service, Host: d.Spec.Host()}
		next := record.HostOf(d.Service, s.Domain)
		if own := h.Host != "" && !strings.HasPrefix(h.Host, d.Service+"."); !own && h.Host != next {
			h.Next = &next
		}
		return h
	})
	if v.Services == nil {
		v.Services = []HostView{}
	}
	return v
}
