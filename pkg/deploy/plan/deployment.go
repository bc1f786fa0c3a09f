package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Plan lists what a deployment does.
type Plan struct {
	ServiceID, ServiceName string
	Operations             []*Operation // one after the other
	Names                  Names        // of its controllers

	Change   SpecChange
	Warnings []string      // possible problems of a plan that is not refused
	shrinks  bool          // no pod finds a node, or fewer than now although the document asks for them
	stalls   *RefusedError // why the rollout would get stuck midway; nil: it would not get stuck
	seen     *record.Service
	draft    *draft
}

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool { return len(p.Operations) == 0 }

// Rollout returns the id of the rollout that the plan has started, "" for none.
func (p *Plan) Rollout() string {
	if p.draft == nil || p.draft.Rollout == nil {
		return ""
	}
	return p.draft.Rollout.ID
}

// Changed returns the controllers whose pods the plan starts and stops, as the plan wrote them. A rollout changes them
// further.
func (p *Plan) Changed() []rc.RC {
	moves := func(f FieldChange) bool { return !f.aboutRollouts() }
	if p.draft == nil || p.Allows() || p.Change.Kind != UpToDate && !slices.ContainsFunc(p.Change.Fields, moves) {
		return nil
	}
	return p.draft.Change
}

// Allows reports whether the plan only makes the mass-stop breaker ignore the stops that it withholds.
func (p *Plan) Allows() bool { return p.draft != nil && p.draft.allows }

// Planner makes a plan for a service.
type Planner interface {
	// Plan makes the plan. svc is nil for a new service; spec is resolved. The error is a *RefusedError if the plan
	// cannot work.
	Plan(ctx context.Context, client Client, svc *record.Service, spec *record.ServiceSpec) (Plan, error)
}

// Deployment is one change of one service.
type Deployment struct {
	Service *record.Service // the plan was made from it; nil: the service is new, or nothing is planned yet
	Spec    record.ServiceSpec
	Planner Planner
	// Detach leaves out the operations that only wait.
	Detach bool
	// Report is called after each operation that succeeded; it may be nil.
	Report func(*Operation)

	client Client
	plan   *Plan
	ran    bool
}

// NewDeployment takes a resolved document. If planner is nil, it uses a ServicePlanner.
func NewDeployment(client Client, spec record.ServiceSpec, planner Planner) *Deployment {
	if planner == nil {
		planner = &ServicePlanner{}
	}
	return &Deployment{Spec: spec, Planner: planner, client: client}
}

// Plan reads the service and plans. Later calls return the same plan.
func (d *Deployment) Plan(ctx context.Context) (Plan, error) {
	if d.plan != nil {
		return *d.plan, nil
	}
	svc, err := d.client.Service(ctx, d.Spec.Name)
	if err != nil {
		return Plan{}, fmt.Errorf("read service %s: %w", d.Spec.Name, err)
	}
	p, err := d.Planner.Plan(ctx, d.client, svc, &d.Spec)
	if err != nil {
		return Plan{}, err
	}
	p.seen = svc
	d.Service, d.plan = svc, &p
	return p, nil
}

// ErrRan means that a deployment was run before.
var ErrRan = errors.New("this deployment has run already; make another one")

// Run plans if there is no plan, and executes it. The error is ErrRan for a second call, a *StaleError if records have
// changed since the plan, and a *RolloutError if the rollout does not reach its goal.
func (d *Deployment) Run(ctx context.Context) (Plan, error) {
	if d.ran {
		return Plan{}, ErrRan
	}
	p, err := d.Plan(ctx)
	if err != nil {
		return Plan{}, err
	}
	d.ran = true
	if p.Empty() {
		return p, nil
	}
	if err := d.fresh(ctx); err != nil {
		return p, err
	}
	if err = d.execute(ctx, &p); errors.Is(err, ErrChanged) {
		if stale := d.fresh(ctx); stale != nil {
			return p, stale
		}
	}
	return p, err
}

func (d *Deployment) execute(ctx context.Context, p *Plan) error {
	for _, o := range p.Operations {
		if d.Detach && o.awaited {
			continue
		}
		if err := o.Execute(ctx, d.client); err != nil {
			return fmt.Errorf("%s: %w", o.Text(p.Names), err)
		}
		if d.Report != nil {
			d.Report(o)
		}
	}
	return nil
}

// fresh returns a *StaleError if the service has changed since the plan.
func (d *Deployment) fresh(ctx context.Context) error {
	now, err := d.client.Service(ctx, d.Spec.Name)
	if err != nil {
		return fmt.Errorf("read service %s: %w", d.Spec.Name, err)
	}
	if changes := staleness(d.plan.seen, now); len(changes) > 0 {
		return &StaleError{Service: d.Spec.Name, Changes: changes}
	}
	return nil
}

// Lines returns the lines that show the plan. Operations of owners are one level below the operation that causes them.
func (p *Plan) Lines() []Line {
	return field.Each(p.Operations, func(o *Operation) Line {
		l := Line{Sign: o.Sign, Text: o.Text(p.Names), Where: o.Where}
		if o.awaited {
			l.Depth = 1
		}
		return l
	})
}
