package register

import (
	"context"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
)

// A pod without a health check has the state that the preparer tells the agent when it changes: a service is registered
// as one that works, or as one that does not. That costs nothing while nothing changes, and therefore outlives the
// preparer. So one that works passes only while the node's own service does, which the preparer keeps up for all.
const (
	nodeTTL  = time.Minute    // longer than a restart of the preparer takes
	keepNode = nodeTTL / 6    // between two times that it is kept up
	nodeGone = 24 * time.Hour // after which the agent forgets a node that nobody keeps up
)

// nodeServiceID returns the id of the node's own service at the local agent.
func nodeServiceID(nodeName string) string { return "rcfarm-node-" + nodeName }

// keepNode keeps the node's own service passing, where a pod depends on it.
func (r *Registrar) keepNode(ctx context.Context, pods []Pod, now time.Time) error {
	if !slices.ContainsFunc(pods, func(p Pod) bool { return p.Up && p.told() }) || now.Sub(r.kept) < keepNode {
		return nil
	}
	id := nodeServiceID(r.cfg.Node.Name)
	err := r.cfg.Services.UpdateCheck(ctx, id, true, "")
	if err != nil { // it is not there, or the agent is away
		err = r.cfg.Services.RegisterService(ctx, consul.Service{
			ID: id, Name: consul.ServiceName("preparer"), Address: r.cfg.Node.Address, Check: &consul.Check{TTL: nodeTTL, GoneAfter: nodeGone, Passing: true},
		})
	}
	if err == nil {
		r.kept = now
	}
	return err
}

// told reports whether the pod's state at the agent is what the preparer tells of its processes.
func (p *Pod) told() bool { return p.Manifest != nil && p.Manifest.Health == nil }

// toldCheck returns the check of a pod that has none of its own.
func toldCheck(n *node.Node, p *Pod) *consul.Check {
	check := &consul.Check{Alias: nodeServiceID(n.Name)}
	if !p.Works {
		check.Down = "not all of its processes run, or one ends again and again"
	}
	return check
}

// tell has the agent say of pods without a check whether their processes run. It is told nothing that it says already.
func (r *Registrar) tell(ctx context.Context, pods []Pod, local map[string]consul.Health) (errs []error) {
	for i := range pods {
		p := &pods[i]
		said, has := local[serviceIDs(r.cfg.Node.Name, p.ID, nil, p.Standby)[0]]
		if says := !said.Down; !p.told() || !p.Up || !has || says == p.Works {
			continue
		}
		c := changeOf(&r.cfg.Node, p)
		c.services = c.services[:1] // on which the others depend
		c.pass(p.Works)
		_, err := r.register(ctx, c, true)
		errs = append(errs, err)
	}
	return errs
}
