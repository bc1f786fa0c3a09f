package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// ServicePlanner plans a change of a service with any strategy. If pods must be replaced, the plan starts a rollout,
// which the farms carry out.
type ServicePlanner struct {
	State         *State // of the cluster, to check the capacity; nil: no check
	ForceRecreate bool   // a new revision even if the document is the same
	Override      string // the strategy of this rollout in place of the document's; empty: the document's
	SkipGates     bool
	Rollback      bool // larger steps, and neither canary, gates nor delay
	MassStop      bool // the breaker ignores the stops of a change without a rollout
	By            string
	Domain        *Domain          // of the document's host name; nil: the document depends on none
	Now           func() time.Time // nil: time.Now
}

type planner struct {
	*ServicePlanner
	client    Client
	svc       *record.Service
	base      record.Deployed    // in effect
	current   *record.Controller // the controller of base; nil: it is gone, or there is no such service yet
	spec      *record.ServiceSpec
	knobs     rollout.Knobs // in effect
	change    SpecChange
	digests   rc.Digests
	canonical map[string][]byte // manifests by digest
	draft     *draft
	preDeploy *rollout.PreDeploy
	arrivals  *succession // nil: not computed yet
}

// Plan implements Planner.
func (s *ServicePlanner) Plan(_ context.Context, client Client, svc *record.Service,
	spec *record.ServiceSpec,
) (Plan, error) {
	out, err := s.attempt(client, svc, spec)
	if refused, is := errors.AsType[*RefusedError](err); is {
		s.advise(refused, client, svc, spec)
	}
	if out.stalls != nil {
		s.advise(out.stalls, client, svc, spec)
		out.Warnings = append(out.Warnings,
			fmt.Sprintf("the rollout would get stuck half-way: %s; %s",
				strings.TrimPrefix(out.stalls.Reason, noRoomMark), out.stalls.Do))
	}
	return out, err
}

// attempt is Plan without advice.
func (s *ServicePlanner) attempt(client Client, svc *record.Service, spec *record.ServiceSpec) (Plan, error) {
	p, err := s.planner(client, svc, spec)
	if err != nil {
		return Plan{}, err
	}
	c := p.course()
	if c == relimit {
		p.knobs, p.change = inPlaceOf(p.knobs), p.change.relimited()
	}
	s.Domain.explain(p.change.Fields)
	out := Plan{ServiceID: p.base.ID, ServiceName: spec.Name, Change: p.change}
	if c == nothing {
		return out, nil
	}
	if err := p.refuse(c); err != nil {
		return Plan{}, err
	}
	p.chooseOrder(c)
	if err := p.room(c, &out); err != nil {
		return Plan{}, err
	}
	if was := p.moving(c); was != p.current {
		out.Warnings = append(out.Warnings, fmt.Sprintf(
			"the rollout goes back to %s: that gets the number of pods, and %s goes", was.RC.Name, p.current.RC.Name))
	}
	names := func(f FieldChange) bool { return f.Path == "strategy" }
	if c == update && p.spec.Allocation() != p.current.RC.Strategy && !slices.ContainsFunc(p.change.Fields, names) {
		out.Warnings = append(out.Warnings,
			fmt.Sprintf("the strategy of controller %s is %s, and becomes %s, from the document or by default",
				p.current.RC.Name, p.current.RC.Strategy, p.spec.Allocation()))
	}
	if len(p.change.Fields) == 1 && p.Domain.decides(p.change.Fields[0]) {
		out.Warnings = append(out.Warnings,
			"the document has not changed; its pods change because "+p.Domain.is()+" now")
	}
	out.Warnings = slices.Concat(out.Warnings, p.restarts(c), p.leftBehind(c), spec.Pod.Warnings())
	if out.Operations, err = p.operations(c); err != nil {
		return Plan{}, err
	}
	out.draft, out.ServiceID, out.Names = p.draft, p.draft.Deployed.ID, p.names()
	return out, nil
}

func (s *ServicePlanner) planner(client Client, svc *record.Service, spec *record.ServiceSpec) (*planner, error) {
	p := &planner{ServicePlanner: s, client: client, svc: svc, spec: spec}
	var before *record.ServiceSpec
	if svc != nil {
		p.base = svc.InEffect()
		before, p.current = &p.base.Spec, svc.Controller(p.base.RC)
	}
	if p.knobs = spec.KnobsAfter(before); s.Override != "" {
		p.knobs.Strategy, p.knobs.Order = s.Override, ""
	}
	if s.Rollback {
		p.knobs = hurried(p.knobs)
	}
	if before != nil {
		if before.Pod != nil && before.Pod.Same(spec.Pod) {
			stays := *spec
			stays.Pod = before.Pod // the former manifest is stored, and may be signed; no pod restarts
			p.spec, spec = &stays, &stays
		}
	}
	var err error
	if p.digests, p.canonical, err = rc.Manifests(spec.Pod, spec.Groups()); err != nil {
		return nil, err
	}
	// A rollback must work without an edit of its old document, even if the pods that it replaces need a longer stage.
	if s.Rollback {
		if takes := record.StageTakes(p.knobs.StrategyName(), p.base.Spec.Pod, spec.Pod); !takes.Within(&p.knobs) {
			longer := field.Duration(takes.Duration + rollout.DefaultStageTimeout)
			p.knobs.StageTimeout = &longer
		}
	}
	p.change = evalSpecChange(before, spec, p.knobs.Strategy)
	return p, nil
}

// hurried returns the knobs of a rollback.
func hurried(k rollout.Knobs) rollout.Knobs {
	if k.StrategyName() == rollout.CanaryStrategy {
		k.Strategy = ""
	}
	k.Canary, k.Delay, k.Gates = nil, nil, rollout.Gates{}
	step := rollout.Amount{Percent: true, N: rollout.DefaultStep}
	if k.Step != nil {
		step = *k.Step
	}
	if step.N *= 2; step.Percent {
		step.N = min(step.N, 100)
	}
	k.Step = &step
	return k
}

func (p *planner) controller(r rc.RC) rc.RC {
	p.spec.RCSpec(r.Name).Apply(&r, p.digests)
	r.Labels = field.Merge(r.Labels, map[string]string{record.ServiceLabel: p.spec.Name})
	r.MinAvailable = p.knobs.MinAvailable
	return r
}

func (p *planner) revision(id string, number int64) rc.RC {
	name := rc.RevisionName(p.spec.Name, number)
	r := p.controller(rc.RC{ID: rc.RevisionID(id, number), Name: name})
	r.Generation, r.Service = 1, &rc.Service{Name: p.spec.Name, Revision: number}
	return r
}

// operations returns the steps of the plan. It also fills the fields of the draft that are known before the steps are
// executed.
func (p *planner) operations(c course) ([]*Operation, error) {
	p.draft = &draft{Draft: record.Draft{Service: p.spec.Name, Seen: p.svc}}
	if p.Domain != nil {
		p.draft.Settings = &p.Domain.Index
	}
	if c == allow {
		p.draft.allows = true
		return p.allowances(), nil
	}
	id, number := p.base.ID, p.base.Revision
	switch c {
	case first:
		id, number = p.client.NewID(), 1
	case recreate, upgrade, relimit, remode:
		number = p.svc.NextRevision()
	default: // the revision keeps its number
	}
	var target rc.RC
	if c == first || c == recreate {
		target = p.revision(id, number)
	} else {
		target = p.changed(p.current.RC, number)
	}
	p.fillRecords(id, number, &target)
	ops := p.writes(c, &target)
	if c == update || c == note {
		ops = append(ops, p.draft.commitDraft(number))
		if c == update {
			ops = append(ops, p.forecasts(c, &target, nil, new(string))...)
		}
		return ops, nil
	}
	p.draft.start = func(ctx context.Context) (rollout.Started, error) { return p.start(ctx, c, target) }
	started, err := p.begin(p.svc, c, target)
	if err != nil {
		return nil, err
	}
	verb := "start rollout"
	switch {
	case c == rescale:
		verb = "redirect to other counts the rollout"
	case p.svc != nil && p.svc.Rollout != nil:
		verb = "replace the rollout under way by rollout"
	}
	ops = append(ops, p.draft.startRollout(fmt.Sprintf("%s %s: %s", verb, started.Record.Strategy, summary(&started))))
	return append(ops, p.forecasts(c, p.scaled(c, &target), started.InPlace(), &p.draft.Deployed.Rollout)...), nil
}

func (p *planner) changed(r rc.RC, number int64) rc.RC {
	r = p.controller(r)
	r.Service = &rc.Service{Name: p.spec.Name, Revision: number}
	r.Generation++
	r.AllowMassStop = 0
	if p.MassStop {
		r.AllowMassStop = r.Generation
	}
	return r
}

func (p *planner) fillRecords(id string, number int64, target *rc.RC) {
	now := p.now().UTC()
	p.draft.Deployed = record.Deployed{
		ID: id, Service: p.spec.Name, Revision: number, RC: target.ID, Spec: *p.spec, By: p.By, At: now,
	}
	p.draft.Entry = record.Entry{
		Service: p.spec.Name, Revision: number, RC: target.ID, Name: target.Name, Manifest: p.digests.Base,
		Digests: record.DigestsOf(p.spec.Pod), Spec: *p.spec,
		By: p.By, At: now,
	}
	if p.svc != nil {
		if made := p.svc.Entry(number); made != nil { // the audit log has the authors of later changes
			p.draft.Entry.By, p.draft.Entry.At = made.By, made.At
			// Without an outcome, or with done, the reason is why an earlier rollback restored the revision.
			if made.Outcome == "" || made.Outcome == rollout.Done {
				p.draft.Entry.Reason = made.Reason
			}
		}
		if under := p.svc.Rollout; under != nil { // the end of that rollout is written into the entry
			p.draft.Deployed.Rollout, p.draft.Entry.Rollout = under.ID, under.ID
		}
	}
	if p.Rollback {
		p.draft.Entry.Reason = cmp.Or(p.leftBecause(), p.draft.Entry.Reason)
	}
	for _, f := range p.change.Fields {
		p.draft.Audit = append(p.draft.Audit, f.String())
	}
	p.draft.Forget = p.forgotten(number)
}

// leftBecause returns why pods of the revision that a rollback replaces are not available, "" if all are or if that is
// not known. The history gets it, because these pods cannot be looked at later.
func (p *planner) leftBecause() string {
	if p.current == nil || p.current.Status == nil || p.current.Status.ObservedGeneration != p.current.RC.Generation {
		return ""
	}
	st := p.current.Status
	if st.Available >= st.Desired && len(st.Failing) == 0 {
		return ""
	}
	why := fmt.Sprintf("rolled back from revision %d while %d of %d of its pods were available",
		p.base.Revision, st.Available, st.Desired)
	for _, f := range st.Failing {
		why += fmt.Sprintf("; %s on %s: %s", f.Pod, f.Node, f.Reason)
	}
	return field.Cut(why, rc.MaxReason)
}

// forgotten lists the revisions whose history entries are removed. It keeps the entry that a rollout may go back to,
// and those with a higher number than the revision in effect: the next revision must not get such a number again,
// because the id of a controller has it.
func (p *planner) forgotten(number int64) []int64 {
	if p.svc == nil {
		return nil
	}
	keep := rollout.DefaultRevisionHistory
	if p.knobs.RevisionHistory != nil {
		keep = *p.knobs.RevisionHistory
	}
	expired := rollout.Expired(field.Each(p.svc.History, func(e record.Entry) int64 { return e.Revision }), number,
		keep)
	done := p.svc.LastDone(number)
	return slices.DeleteFunc(expired, func(r int64) bool { return r > number || done != nil && r == done.Revision })
}

// writes lists the operations that write, except the last one, which commits.
func (p *planner) writes(c course, target *rc.RC) []*Operation {
	var ops []*Operation
	if c == first || c == recreate || p.otherPods() {
		for _, digest := range p.digests.All() {
			ops = append(ops, p.draft.createManifest(digest, p.spec.Pod.ID, p.canonical[digest]))
		}
	}
	if p.spec.PreDeploy != nil && (c == first || c == recreate || c.inPlace()) {
		ops = append(ops, p.preDeployment(target)...)
	}
	switch c {
	case first, recreate:
		ops = append(ops, p.draft.createRC(target))
	case rescale:
		ops = append(ops, p.scales(p.scaled(c, target))...)
	case update:
		ops = append(ops, p.draft.changeRC(target))
		ops = append(ops, p.scales(target)...)
	default: // the rollout changes the controller, or nothing does
	}
	return ops
}

func (p *planner) names() Names {
	names := Names{}
	if p.svc != nil {
		for i := range p.svc.Controllers {
			names[p.svc.Controllers[i].RC.ID] = p.svc.Controllers[i].RC.Name
		}
	}
	if p.preDeploy != nil {
		names[p.preDeploy.RC] = p.preDeploy.Name
	}
	if d := &p.draft.Entry; d.RC != "" {
		names[d.RC] = d.Name
	}
	return names
}

func summary(started *rollout.Started) string {
	r, u := &started.Record, &started.Record.Update
	what := fmt.Sprint(r.Total())
	if ip := started.InPlace(); ip != nil && len(ip.Roles) > 0 {
		what = fmt.Sprintf("%d of %s", ip.Counted(r.Groups), field.Few(ip.Roles, 5, ", "))
	}
	text := fmt.Sprintf("%s in %s of up to %d", what, field.Count(r.Stages, "stage"), max(1, u.Step))
	text += fmt.Sprintf(", at least %d available, at most %d more than %d", u.Min, u.Surge, r.Total()+u.Keep)
	if r.PreDeploy != nil {
		text += ", after " + r.PreDeploy.Name + " has run"
	}
	return text
}

func (p *planner) now() time.Time {
	if p.Now != nil {
		return p.Now()
	}
	return time.Now()
}
