package rcctl

import (
	"context"
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// serviceOf reads the service that a controller is a revision of. It returns nil where the controller belongs to none,
// or where its service has no record any more: no command about that service could change it then.
func (s *conn) serviceOf(ctx context.Context, r *rc.RC) (*record.Service, error) {
	if r.Service == nil {
		return nil, nil
	}
	switch there, err := s.Deployed.Exists(ctx, r.Service.Name); {
	case err != nil:
		return nil, fmt.Errorf("rc %s: %w", r.Name, err)
	case !there:
		return nil, nil
	}
	svc, err := s.Deployments.Service(ctx, r.Service.Name)
	if err != nil {
		return nil, fmt.Errorf("rc %s: %w", r.Name, err)
	}
	return svc, nil
}

// isInEffect reports whether the controller is the revision in effect of its service, or that a rollout goes to.
func (cur *current) isInEffect() bool { return cur.service.InEffect().RC == cur.rc.ID }

// isLeftover reports whether the controller is an old revision that asks for no pods: its service does without it.
func (cur *current) isLeftover() bool {
	return !cur.isInEffect() && !cur.rc.EachNode() && cur.rc.Desired() == 0
}

// refuseApply refuses what a document would change of a revision.
func (cur *current) refuseApply() error {
	return cur.refuse("deploy the service's document: rcctl deploy -f FILE")
}

// refuseScale refuses another number of replicas of a revision.
func (cur *current) refuseScale(role string, count int) error {
	if !cur.isInEffect() {
		return cur.refuseOld("")
	}
	args := []string{cur.rc.Service.Name}
	if role != "" {
		args = append(args, "--role", role)
	}
	return cur.refuse(fmt.Sprintf("scale the service: rcctl scale %s %d", strings.Join(args, " "), count))
}

// refuseDelete refuses the deletion of a revision.
func (cur *current) refuseDelete() error {
	remove := "delete the service: rcctl service delete " + cur.rc.Service.Name
	if !cur.isInEffect() {
		return cur.refuseOld(", or " + remove)
	}
	return cur.refuse(remove)
}

// refuseOld refuses a change of a revision that is not in effect. A number meant for it would be wrong for the service.
func (cur *current) refuseOld(besides string) error {
	return cur.refuse("it is not the one in effect; take the service to one revision: rcctl deploy -f FILE" + besides)
}

func (cur *current) refuse(instead string) error {
	of := cur.rc.Service
	if r := cur.service.Rollout; r != nil && (r.State == rollout.RollingBack || r.Resume == rollout.RollingBack) {
		instead = "its rollout is rolling back; wait until that has ended: rcctl rollout status " + of.Name + " -w"
	}
	return refusedf("rc %s is revision %d of service %s; %s; nothing was written", cur.rc.Name, of.Revision, of.Name, instead)
}
