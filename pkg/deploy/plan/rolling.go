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

// RollingType is the type of RollingStrategy.
const RollingType = "rolling"

// RollingStrategy replaces the pods of a service in stages, by a rollout that the farms carry out.
type RollingStrategy struct {
	State         *State // of the cluster, to see whether there is room; nil: nobody looks
	ForceRecreate bool   // a new revision even if the document is the same
	Override      string // the strategy of this rollout in place of the document's; empty: the document's
	SkipGates     bool
	Rollback      bool // larger steps, and neither canary, gates nor delay
	MassStop      bool // the breaker lets pass what a change without a rollout stops
	By            string
	Domain        *Domain          // that the document's host name is of; nil: the document depends on none
	Now           func() time.Time // nil: time.Now
}

// Type implements Strategy.
func (*RollingStrategy) Type() string { return RollingType }

// course is what becomes of a service.
type course int

const (
	nothing  course = iota
	first           // there is no such service yet
	update          // its controller changes, without a rollout
	recreate        // a new revision takes over
	inPlace         // its controller's pods are upgraded where they are
	rescale         // the rollout under way ends with other counts
	note            // the rollout under way goes on, and the next one has other knobs
	allow           // nothing changes, but the mass-stop breaker lets the stops pass that it withholds
)

// planner makes one plan.
type planner struct {
	*RollingStrategy
	client    Client
	svc       *record.Service
	base      record.Deployed    // what is in effect
	current   *record.Controller // of that; nil: it is gone, or there is no such service yet
	spec      *record.ServiceSpec
	knobs     rollout.Knobs // in effect
	change    SpecChange
	digests   rc.Digests
	canonical map[string][]byte // manifests by digest
	relimits  bool              // nothing changes of the pods but limits that their nodes can change while they run
	draft     *draft
	preDeploy *rollout.PreDeploy
	arrivals  *succession // nil: nobody has asked for it
}

// Plan implements Strategy.
func (r *RollingStrategy) Plan(_ context.Context, client Client, svc *record.Service, spec *record.ServiceSpec) (Plan, error) {
	out, err := r.attempt(client, svc, spec)
	if refused, is := errors.AsType[*RefusedError](err); is {
		r.advise(refused, client, svc, spec)
	}
	if out.stalls != nil {
		r.advise(out.stalls, client, svc, spec)
		out.Warnings = append(out.Warnings, fmt.Sprintf("the rollout would get stuck half-way: %s; %s", strings.TrimPrefix(out.stalls.Reason, noRoomMark), out.stalls.Do))
	}
	return out, err
}

// attempt is Plan without advice.
func (r *RollingStrategy) attempt(client Client, svc *record.Service, spec *record.ServiceSpec) (Plan, error) {
	p, err := r.planner(client, svc, spec)
	if err != nil {
		return Plan{}, err
	}
	out := Plan{ServiceID: p.base.ID, ServiceName: spec.Name, Change: p.change}
	c := p.course()
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
		out.Warnings = append(out.Warnings, fmt.Sprintf("the strategy of controller %s is %s, and becomes %s, as the document says or has by default",
			p.current.RC.Name, p.current.RC.Strategy, p.spec.Allocation()))
	}
	if len(p.change.Fields) == 1 && p.Domain.decides(p.change.Fields[0]) {
		out.Warnings = append(out.Warnings, "the document is as it was; its pods change because "+p.Domain.is()+" now")
	}
	out.Warnings = slices.Concat(out.Warnings, p.restarts(c), p.leftBehind(c), spec.Pod.Warnings())
	if out.Operations, err = p.operations(c); err != nil {
		return Plan{}, err
	}
	out.draft, out.ServiceID, out.Names = p.draft, p.draft.Deployed.ID, p.names()
	return out, nil
}

func (r *RollingStrategy) planner(client Client, svc *record.Service, spec *record.ServiceSpec) (*planner, error) {
	p := &planner{RollingStrategy: r, client: client, svc: svc, spec: spec}
	var before *record.ServiceSpec
	if svc != nil {
		p.base = svc.InEffect()
		before, p.current = &p.base.Spec, svc.Controller(p.base.RC)
	}
	if p.knobs = spec.KnobsAfter(before); r.Override != "" {
		p.knobs.Strategy, p.knobs.Order = r.Override, ""
	}
	if r.Rollback {
		p.knobs = hurried(p.knobs)
	}
	if before != nil {
		if before.Pod != nil && before.Pod.Same(spec.Pod) {
			stays := *spec
			stays.Pod = before.Pod // it is stored, and may be signed; no pod restarts
			p.spec, spec = &stays, &stays
		}
	}
	var err error
	if p.digests, p.canonical, err = rc.Manifests(spec.Pod, spec.Groups()); err != nil {
		return nil, err
	}
	if r.Rollback { // its document knew nothing of the pods that it replaces, and nobody has time to change it
		if takes := record.StageTakes(p.knobs.Kind(), p.base.Spec.Pod, spec.Pod); !takes.Within(&p.knobs) {
			longer := field.Duration(takes.Duration + rollout.DefaultStageTimeout)
			p.knobs.StageTimeout = &longer
		}
	}
	p.change = evalSpecChange(before, spec, p.knobs.Strategy == rollout.InPlaceStrategy)
	p.relimits = p.onlyRelimits()
	if p.chooseInPlace(); p.relimits && p.knobs.Kind() == rollout.InPlaceStrategy {
		p.change.relimit()
	}
	r.Domain.explain(p.change.Fields)
	return p, nil
}

// hurried returns the knobs of a way back: steps twice as large, and neither canary, gates nor delay.
func hurried(k rollout.Knobs) rollout.Knobs {
	if k.Kind() == rollout.CanaryStrategy {
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

// course decides what becomes of the service.
func (p *planner) course() course {
	if p.svc == nil {
		return first
	}
	isInPlace := p.knobs.Kind() == rollout.InPlaceStrategy
	switch {
	case p.current == nil || p.current.RC.DeletedAt != nil:
		return recreate
	case p.ForceRecreate || p.change.Kind == NeedsRecreate && !isInPlace:
		return recreate
	case isInPlace && p.otherPods() && p.unattached():
		return recreate
	case isInPlace && p.otherPods():
		return inPlace
	case p.svc.Rollout != nil:
		return p.midCourse()
	case slices.ContainsFunc(p.svc.Others(p.base.RC), func(c record.Controller) bool { return c.HasPods() && !leaves(&c) }):
		return recreate // a rollout was given up, and other revisions still have pods
	case p.current.RC.InPlace != nil:
		return inPlace // an upgrade was given up, and some pods have the former manifest
	case (!isInPlace || p.unattached()) && p.unfinished():
		return recreate
	case isInPlace && p.changesMode():
		return inPlace
	case p.change.Kind != UpToDate || p.drifted():
		return update
	case p.MassStop && slices.ContainsFunc(p.svc.Controllers, func(c record.Controller) bool { return withheld(&c) && !allowed(&c.RC) }):
		return allow
	default:
		return nothing
	}
}

// otherPods reports whether the controller's pods run other manifests than the document asks for.
func (p *planner) otherPods() bool { return !p.current.RC.Digests().Equal(p.digests) }

// changesMode reports whether the controller changes between counts and a pod on each node in stages, which a rollout
// sees to.
func (p *planner) changesMode() bool {
	if p.current == nil {
		return false
	}
	want := p.controller(p.current.RC)
	return want.EachNode() != p.current.RC.EachNode() && rollout.InStages(&p.current.RC, &want)
}

// unfinished reports whether the rollout to what is in effect failed, or was aborted before it had pods: another revision tries again, in stages and after
// pre_deploy. Pods that must stay where they are have no successors: where some have run, pre_deploy has, too.
func (p *planner) unfinished() bool {
	e := p.svc.Entry(p.base.Revision)
	if e == nil || !p.unattached() && (p.base.Spec.Anchored() != nil || p.spec.Anchored() != nil) {
		return false
	}
	return e.Outcome == rollout.Failed || e.Outcome == rollout.Aborted && !p.current.HasPods() && p.drifted()
}

// unattached reports whether the last rollout has left the service without pods, and without volumes of pods that it had: another controller
// may take the place of the one there is, whatever kind of pods it makes.
func (p *planner) unattached() bool {
	if p.current != nil && p.current.RC.EachNode() {
		return false // its nodes may get pods at any moment
	}
	if e := p.svc.Entry(p.base.Revision); e == nil || e.Rollout == "" || e.Outcome == rollout.Done {
		return false
	}
	return !slices.ContainsFunc(p.svc.Others(""), func(c record.Controller) bool {
		return c.HasPods() || len(p.base.Spec.Pod.Volumes) > 0 && c.RC.Generation-c.RC.Toggled > 1
	})
}

// midCourse decides what becomes of a rollout under way to the same pods.
func (p *planner) midCourse() course {
	if up := p.svc.Rollout.Upward(); p.change.Kind == UpToDate && up != nil && up.RC == p.base.RC {
		return nothing // it is on its way there
	}
	for _, f := range p.change.Fields {
		if !f.aboutRollouts() {
			return rescale
		}
	}
	return note
}

// drifted reports whether a controller does not ask for what its document says.
func (p *planner) drifted() bool {
	want, is := p.controller(p.current.RC), p.current.RC
	return p.otherPods() || want.Strategy != is.Strategy || !slices.EqualFunc(want.ReplicaGroups, is.ReplicaGroups, func(a, b rc.ReplicaGroup) bool {
		return a.Role == b.Role && a.Ordered == b.Ordered && a.Count != nil && b.Count != nil && *a.Count == *b.Count
	})
}

// controller returns a controller's record as the document wants it.
func (p *planner) controller(r rc.RC) rc.RC {
	p.spec.RCSpec(r.Name).Apply(&r, p.digests)
	r.Labels = field.Merge(r.Labels, map[string]string{record.ServiceLabel: p.spec.Name})
	r.MinAvailable = p.knobs.MinAvailable
	return r
}

// revision returns the controller of a new revision of the service with this id.
func (p *planner) revision(id string, number int64) rc.RC {
	name := fmt.Sprintf("%s-r%d", p.spec.Name, number)
	r := p.controller(rc.RC{ID: rc.RevisionID(id, number), Name: name})
	r.Generation, r.Service = 1, &rc.Service{Name: p.spec.Name, Revision: number}
	return r
}

// operations lists what happens, and fills the draft with what does not depend on when it does.
func (p *planner) operations(c course) ([]Operation, error) {
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
	case recreate, inPlace:
		number = p.svc.NextRevision()
	default: // it keeps its number
	}
	var target rc.RC
	if c == first || c == recreate {
		target = p.revision(id, number)
	} else {
		target = p.changed(p.current.RC, number)
	}
	p.record(id, number, &target)
	ops := p.writes(c, &target)
	if c == update || c == note {
		ops = append(ops, &CommitOperation{Service: p.draft.Service, Revision: number, draft: p.draft})
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
	ops = append(ops, &StartRolloutOperation{Strategy: started.Record.Strategy, verb: verb, summary: summary(&started), draft: p.draft})
	return append(ops, p.forecasts(c, p.scaled(c, &target), started.InPlace(), &p.draft.Deployed.Rollout)...), nil
}

// changed returns a controller that is there as the document wants it.
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

// record fills in what the service's own records say.
func (p *planner) record(id string, number int64, target *rc.RC) {
	now := p.now().UTC()
	p.draft.Deployed = record.Deployed{ID: id, Service: p.spec.Name, Revision: number, RC: target.ID, Spec: *p.spec, By: p.By, At: now}
	p.draft.Entry = record.Entry{
		Service: p.spec.Name, Revision: number, RC: target.ID, Name: target.Name, Manifest: p.digests.Base, Digests: record.DigestsOf(p.spec.Pod), Spec: *p.spec,
		By: p.By, At: now,
	}
	if p.svc != nil {
		if made := p.svc.Entry(number); made != nil { // the audit log says who changed it since
			p.draft.Entry.By, p.draft.Entry.At = made.By, made.At
			if made.Outcome == "" || made.Outcome == rollout.Done { // it says what the revision came back for
				p.draft.Entry.Reason = made.Reason
			}
		}
		if under := p.svc.Rollout; under != nil { // its end goes into the entry
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

// leftBecause says for the history of a way back why pods of the revision that it leaves are not available, "" where
// all are: they are gone when somebody else looks.
func (p *planner) leftBecause() string {
	if p.current == nil || p.current.Status == nil || p.current.Status.ObservedGeneration != p.current.RC.Generation {
		return ""
	}
	st := p.current.Status
	if st.Available >= st.Desired && len(st.Failing) == 0 {
		return ""
	}
	why := fmt.Sprintf("rolled back from revision %d while %d of %d of its pods were available", p.base.Revision, st.Available, st.Desired)
	for _, f := range st.Failing {
		why += fmt.Sprintf("; %s on %s: %s", f.Pod, f.Node, f.Reason)
	}
	return field.Cut(why, rc.MaxReason)
}

// forgotten lists the revisions whose history goes: the oldest beyond those that are kept besides the one in effect.
// The entry that a rollout may go back to stays. An entry with a higher number than the one in effect stays, too: the
// next revision must not get the number again, which is in the id of its controller.
func (p *planner) forgotten(number int64) []int64 {
	if p.svc == nil {
		return nil
	}
	keep := rollout.DefaultRevisionHistory
	if p.knobs.RevisionHistory != nil {
		keep = *p.knobs.RevisionHistory
	}
	expired := rollout.Expired(field.Each(p.svc.History, func(e record.Entry) int64 { return e.Revision }), number, keep)
	done := p.svc.LastDone(number)
	return slices.DeleteFunc(expired, func(r int64) bool { return r > number || done != nil && r == done.Revision })
}

// writes lists the operations that write, but the last of them.
func (p *planner) writes(c course, target *rc.RC) []Operation {
	var ops []Operation
	if c == first || c == recreate || p.otherPods() {
		for _, digest := range p.digests.All() {
			ops = append(ops, p.draft.createManifest(digest, p.spec.Pod.ID, p.canonical[digest]))
		}
	}
	if p.spec.PreDeploy != nil && (c == first || c == recreate || c == inPlace) {
		ops = append(ops, p.preDeployment(target)...)
	}
	switch c {
	case first, recreate:
		ops = append(ops, p.draft.createRC(target))
	case rescale:
		ops = append(ops, p.scales(p.scaled(c, target))...)
	case update:
		ops = append(ops, &ChangeControllerOperation{RC: target.ID, written: written{func() { p.draft.Change = append(p.draft.Change, *target) }}})
		ops = append(ops, p.scales(target)...)
	default: // the rollout changes the controller, or nothing does
	}
	return ops
}

// names returns the names of the controllers that the plan may speak of.
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

// summary says what a rollout is going to do.
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
