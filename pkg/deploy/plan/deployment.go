package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Plan is what a deployment does.
type Plan struct {
	ServiceID, ServiceName string
	SequenceOperation
	Change   SpecChange
	Warnings []string      // what may go wrong all the same
	shrinks  bool          // no pod finds a place, or fewer than have one now and are asked for
	stalls   *RefusedError // why the rollout would get stuck half-way; nil: it would not
	seen     *record.Service
	draft    *draft
}

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool { return len(p.Operations) == 0 }

// Rollout returns the id of the rollout that the plan has started, "" where it started none.
func (p *Plan) Rollout() string {
	if p.draft == nil || p.draft.Rollout == nil {
		return ""
	}
	return p.draft.Rollout.ID
}

// Changed returns the controllers whose pods come and go because of the plan, as they were written. Where a rollout has
// begun, that changes them further.
func (p *Plan) Changed() []rc.RC {
	moves := func(f FieldChange) bool { return !f.aboutRollouts() }
	if p.draft == nil || p.Allows() || p.Change.Kind != UpToDate && !slices.ContainsFunc(p.Change.Fields, moves) {
		return nil
	}
	return p.draft.Change
}

// Allows reports whether the plan changes nothing, but lets the mass-stop breaker pass what it withholds.
func (p *Plan) Allows() bool { return p.draft != nil && p.draft.allows }

// Strategy makes a plan for a service.
type Strategy interface {
	Type() string
	// Plan makes it. svc is nil where there is no such service yet; spec is resolved. The error is a *RefusedError where it cannot work.
	Plan(ctx context.Context, client Client, svc *record.Service, spec *record.ServiceSpec) (Plan, error)
}

// Deployment is one change of one service.
type Deployment struct {
	Service  *record.Service // as planned from; nil: it is new, or nothing is planned yet
	Spec     record.ServiceSpec
	Strategy Strategy
	// Detach leaves out the operations that only wait.
	Detach bool
	// Report is called after each operation that has succeeded; nil: by nothing.
	Report func(Operation)

	client Client
	plan   *Plan
	ran    bool
}

// NewDeployment returns the deployment of a resolved document. strategy nil is a RollingStrategy.
func NewDeployment(client Client, spec record.ServiceSpec, strategy Strategy) *Deployment {
	if strategy == nil {
		strategy = &RollingStrategy{}
	}
	return &Deployment{Spec: spec, Strategy: strategy, client: client}
}

// Plan reads the service and plans. Called again it returns the same plan.
func (d *Deployment) Plan(ctx context.Context) (Plan, error) {
	if d.plan != nil {
		return *d.plan, nil
	}
	svc, err := d.client.Service(ctx, d.Spec.Name)
	if err != nil {
		return Plan{}, fmt.Errorf("read service %s: %w", d.Spec.Name, err)
	}
	p, err := d.Strategy.Plan(ctx, d.client, svc, &d.Spec)
	if err != nil {
		return Plan{}, err
	}
	p.seen = svc
	d.Service, d.plan = svc, &p
	return p, nil
}

// ErrRan says that a deployment was run before.
var ErrRan = errors.New("this deployment has run already; make another one")

// Run plans, where there is no plan yet, and executes it. A second run is ErrRan. The error is a *StaleError where the plan is not of
// what is there any more, and a *RolloutError where the rollout ends otherwise than planned.
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
	sequence := p.SequenceOperation
	sequence.Report = d.Report
	if d.Detach {
		sequence.Operations = slices.DeleteFunc(slices.Clone(sequence.Operations), func(op Operation) bool {
			_, awaited := op.(Awaited)
			return awaited
		})
	}
	if err = sequence.Execute(ctx, d.client); errors.Is(err, ErrChanged) {
		if stale := d.fresh(ctx); stale != nil {
			return p, stale
		}
	}
	return p, err
}

// fresh returns a *StaleError where the service is not as the plan saw it.
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

// Lines returns the lines that show the plan, with the names of its controllers.
func (p *Plan) Lines() []Line { return p.Format(p.Names) }
