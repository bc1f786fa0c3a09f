package plan

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// start makes the rollout from the present records, because a rollout under way may have progressed since the plan.
func (p *planner) start(ctx context.Context, c course, target rc.RC) (rollout.Started, error) {
	now, err := p.client.Service(ctx, p.spec.Name)
	if err != nil {
		return rollout.Started{}, fmt.Errorf("read service %s: %w", p.spec.Name, err)
	}
	if changes := staleness(p.svc, now); len(changes) > 0 {
		return rollout.Started{}, &StaleError{Service: p.spec.Name, Changes: changes}
	}
	p.draft.Seen = now
	if c.inPlace() || c == rescale {
		target = p.changed(now.Controller(target.ID).RC, p.draft.Deployed.Revision)
	}
	return p.begin(now, c, target)
}

// begin makes the rollout to the target. Its error is a *RefusedError.
func (p *planner) begin(svc *record.Service, c course, target rc.RC) (started rollout.Started, err error) {
	s := rollout.Start{
		ID: p.client.NewID(), Service: p.spec.Name, By: p.By, Now: p.now().UTC(), Knobs: p.knobs, New: target,
		InEffect:  p.base.Revision,
		SkipGates: p.SkipGates || p.Rollback, PreDeploy: p.preDeploy,
	}
	if p.State != nil {
		s.Epoch = p.State.Epoch
	}
	if p.State != nil && c.inPlace() && p.changesMode() {
		stay, _, more := p.reshaped(c)
		s.Nodes = len(stay) + more.Pods
		if !p.otherPods() {
			s.Correct = len(stay)
		}
	}
	if svc != nil {
		for _, o := range svc.Controllers {
			if o.RC.DeletedAt == nil {
				s.Old = append(s.Old, rollout.Seen{RC: o.RC, Status: o.Status})
			}
		}
	}
	switch {
	case c == rescale:
		seen := rollout.Observed{Now: s.Now, Epoch: s.Epoch, Revisions: map[string]rollout.Seen{}}
		for _, o := range s.Old {
			seen.Revisions[o.RC.ID] = o
		}
		started, err = rollout.Rescale(*svc.Rollout, target.ReplicaGroups, seen, p.By)
	case svc != nil && svc.Rollout != nil:
		started, err = rollout.Retarget(*svc.Rollout, s)
	default:
		started, err = rollout.Begin(s)
	}
	if err != nil {
		return started, &RefusedError{Service: p.spec.Name, Reason: err.Error(), Do: "nothing was written"}
	}
	return started, nil
}

func (p *planner) preDeployment(target *rc.RC) []*Operation {
	number := target.Service.Revision
	m := oneShot(p.spec)
	canonical, _ := m.Canonical() // it is made of plain fields
	digest, one := manifest.Digest(canonical), 1
	r := rc.RC{
		ID:             rc.PreDeployID(p.draft.Deployed.ID, number),
		Name:           rc.PreDeployName(p.spec.Name, number),
		Labels:         maps.Clone(target.Labels),
		ManifestDigest: digest, NodeSelector: target.NodeSelector,
		ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &one}},
		NodeLoss:      rc.NodeLoss{Action: "keep"}, Strategy: rc.Static, Generation: 1,
	}
	delete(r.Labels, record.ServiceLabel)
	p.preDeploy = &rollout.PreDeploy{RC: r.ID, Name: r.Name}
	return []*Operation{
		p.draft.createManifest(digest, m.ID, canonical),
		p.draft.createRC(&r),
	}
}

// oneShot returns the manifest of pre_deploy's pod: the service's first process, in a pod without a service.
func oneShot(spec *record.ServiceSpec) *manifest.Manifest {
	l := spec.Pod.Launchables[0]
	if d := spec.PreDeploy; d.Command != "" {
		l.Command, l.Args = d.Command, nil
	}
	if spec.PreDeploy.Args != nil {
		l.Args = slices.Clone(spec.PreDeploy.Args)
	}
	l.Env = field.Merge(l.Env, spec.PreDeploy.Env)
	l.Restart = &manifest.Restart{Policy: manifest.RestartNever}
	return &manifest.Manifest{
		Version: spec.Pod.Version, ID: spec.Pod.ID + "-pre-deploy",
		Launchables: []manifest.Launchable{l}, Config: spec.Pod.Config, Labels: spec.Pod.Labels,
	}
}
