package register

import (
	"context"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
)

// A pod without a health check passes while its processes work. The preparer registers this only when it changes. So
// that the pod does not pass after the preparer has ended, its check is an alias of the node's own service, which the
// preparer renews for all pods.
const (
	nodeTTL  = time.Minute    // longer than a restart of the preparer takes
	keepNode = nodeTTL / 6    // between two renewals
	nodeGone = 24 * time.Hour // the agent removes a node's service that was not renewed for so long
)

func nodeServiceID(nodeName string) string { return "rcfarm-node-" + nodeName }

// keepNode renews the node's own service if a pod depends on it.
func (r *Registrar) keepNode(ctx context.Context, pods []Pod, now time.Time) error {
	if !slices.ContainsFunc(pods, func(p Pod) bool { return p.Up && p.checkless() }) || now.Sub(r.kept) < keepNode {
		return nil
	}
	id := nodeServiceID(r.cfg.Node.Name)
	err := r.cfg.Services.UpdateCheck(ctx, id, true, "")
	if err != nil { // the service is missing, or the agent does not answer
		err = r.cfg.Services.RegisterService(ctx, consul.Service{
			ID: id, Name: consul.ServiceName("preparer"), Address: r.cfg.Node.Address,
			Check: &consul.Check{TTL: nodeTTL, GoneAfter: nodeGone, Passing: true},
		})
	}
	if err == nil {
		r.kept = now
	}
	return err
}

func (p *Pod) checkless() bool { return p.Manifest != nil && p.Manifest.Health == nil }

func processCheck(n *node.Node, p *Pod) *consul.Check {
	check := &consul.Check{Alias: nodeServiceID(n.Name)}
	if !p.Works {
		check.Down = "not all of its processes run, or one ends again and again"
	}
	return check
}

// reportWorks registers, for pods without a health check, whether the processes work. It writes only differences.
func (r *Registrar) reportWorks(ctx context.Context, pods []Pod, local map[string]consul.Health) (errs []error) {
	for i := range pods {
		p := &pods[i]
		health, has := local[serviceIDs(r.cfg.Node.Name, p.ID, nil, p.Standby)[0]]
		if !p.checkless() || !p.Up || !has || !health.Down == p.Works {
			continue
		}
		c := changeOf(&r.cfg.Node, p)
		c.services = c.services[:1] // the checks of the other services depend on this one
		c.pass(p.Works)
		_, err := r.register(ctx, c, true)
		errs = append(errs, err)
	}
	return errs
}
