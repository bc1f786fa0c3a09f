package farm

import (
	"context"
	"errors"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

var errNotReady = errors.New("not all watches have delivered yet")

// Ready returns nil once the farm has seen the whole cluster. Then it works on controllers.
func (f *Farm) Ready() error {
	select {
	case <-f.cache.ready:
		return nil
	default:
		return errNotReady
	}
}

// Joined returns a channel that is closed once the farm has joined the members. From then on no other farm has its name
// while the session lives.
func (f *Farm) Joined() <-chan struct{} { return f.joined }

// Members returns the ids of the living farms, without programs that own one controller each.
func (f *Farm) Members() []string { return f.members() }

// Nodes returns all nodes as the watches saw them last, the cluster's epoch, and whether all living nodes have reported
// what they run in that epoch. The caller must not change the nodes.
func (f *Farm) Nodes() (nodes map[string]*node.View, epoch string, synced bool) {
	epoch = f.cache.present().schema.Value.Epoch
	nodes, _ = f.cache.nodesAt()
	return nodes, epoch, f.kit.nodeSync.synced(epoch)
}

// Synced reports whether the farm is ready, and all living nodes have reported what they run in this epoch.
func (f *Farm) Synced() bool {
	_, _, synced := f.Nodes()
	return synced && f.Ready() == nil
}

// WentBack makes the whole cluster start over, because another user of the session has seen that the store went back in
// time. It returns the error with which the farm must end.
func (f *Farm) WentBack(ctx context.Context) error { return f.cache.wentBack(ctx) }

// AlertDelivered asks for a look, which stores that an alert about the controller was sent.
func (f *Farm) AlertDelivered(rcID string) {
	if u, _ := f.roster.get(rc.UnitOf(rcID)); u != nil {
		u.looks.Ask()
		f.queue.Add(u.id)
	}
}

func (f *Farm) observe() {
	breaker := f.cache.present().breaker
	f.cfg.Metrics.owned.Set(float64(f.roster.count()))
	f.cfg.Metrics.synced.Set(obs.Flag(f.kit.nodeSync.synced(f.cache.present().schema.Value.Epoch)))
	f.cfg.Metrics.tripped.Set(obs.Flag(breaker.Index == 0 || breaker.Value.Tripped))
}
