package rcctl

import (
	"context"
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// serviceOf returns nil if the service has no record any more, because then no command about the service could change
// the controller.
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

// isInEffect is also true for the target of the service's rollout.
func (c *current) isInEffect() bool { return c.service.InEffect().RC == c.rc.ID }

// isLeftover reports whether it is an old revision without pods, which its service does not need.
func (c *current) isLeftover() bool {
	return !c.isInEffect() && !c.rc.EachNode() && c.rc.Desired() == 0
}

func (c *current) refuseApply() error {
	return c.refuse("deploy the service's document: rcctl deploy -f FILE")
}

func (c *current) refuseScale(role string, count int) error {
	if !c.isInEffect() {
		return c.refuseOld("")
	}
	args := []string{c.rc.Service.Name}
	if role != "" {
		args = append(args, "--role", role)
	}
	return c.refuse(fmt.Sprintf("scale the service: rcctl scale %s %d", strings.Join(args, " "), count))
}

func (c *current) refuseDelete() error {
	remove := "delete the service: rcctl service delete " + c.rc.Service.Name
	if !c.isInEffect() {
		return c.refuseOld(", or " + remove)
	}
	return c.refuse(remove)
}

// refuseOld does not advise to scale the service, because the number for one revision would be wrong for the service.
func (c *current) refuseOld(besides string) error {
	return c.refuse(
		"it is not the revision in effect; take the service to one revision: rcctl deploy -f FILE" + besides,
	)
}

func (c *current) refuse(instead string) error {
	of := c.rc.Service
	if r := c.service.Rollout; r != nil && (r.State == rollout.RollingBack || r.Resume == rollout.RollingBack) {
		instead = "its rollout is rolling back; wait until that has ended: rcctl rollout status " + of.Name + " -w"
	}
	return unwrittenf("rc %s is revision %d of service %s; %s", c.rc.Name, of.Revision, of.Name, instead)
}
