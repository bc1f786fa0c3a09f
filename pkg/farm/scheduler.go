package farm

import (
	"fmt"
	"hash/fnv"
	"maps"

	"github.com/rcfarm/rcfarm/pkg/placement"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// candidatesOf returns the nodes for a pass as the built-in scheduler has them, tried in an order that other farms do not share. The version
// is that of the snapshot's nodes; zero: not known.
func candidatesOf(by *scheduler.ByLabel, farmID string, snap *reconcile.Snapshot, version uint64) (*candidates, error) {
	e, err := by.Select(scheduler.Query{
		Selector: snap.RC.NodeSelector, Spread: snap.RC.Spread, Nonce: snap.Nonce, Nodes: snap.Nodes, Version: version,
	})
	if err != nil {
		return nil, err
	}
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, farmID, snap.RC.ID, snap.Now.UnixNano()) // writing to a hash cannot fail
	found := newCandidates(snap, maps.Clone(e.Others), snap.RC.Spread)
	if snap.RC.Spread != "" {
		found.spreadOver(e.Groups, h.Sum64())
		found.mine = by.First
	} else if len(e.Groups) > 0 {
		found.inOrder(placement.NewWalk(e.Groups[0].First, h.Sum64()), placement.NewWalk(e.Groups[0].Rest, h.Sum64()))
	}
	return found, nil
}

// preferNodes has each node tried first by one of the farms that live now: those that place at the same time rarely meet then.
func (f *Farm) preferNodes() {
	members := f.Members()
	f.kit.byLabel.Prefer(func(name string) bool { return placement.PreferredOwner(name, members) == f.cfg.ID })
}

// viewOf returns a snapshot as schedulers see it. The version is that of its nodes; zero: not known.
func viewOf(s *reconcile.Snapshot, version uint64) *scheduler.View {
	share := reconcile.NewHolder(s, pod.Identity{})
	c := scheduler.Cluster{
		Ask: scheduler.Ask{
			RCID: s.RC.ID, RCName: s.RC.Name, Labels: s.RC.Labels, PodLabels: s.RC.PodLabels, Strategy: string(s.RC.Strategy),
			Selector: s.RC.NodeSelector, Spread: s.RC.Spread, MaxPerNode: s.RC.MaxPerNode, Desired: s.RC.Desired(),
			CPU: share.CPU, Memory: share.Memory, Ports: share.Ports,
		},
		Nodes: s.Nodes, Version: version,
		Pods: func(yield func(scheduler.Placed) bool) {
			for i := range s.Pods {
				if !yield(scheduler.Placed{Pod: s.Pods[i].Identity, Node: s.Pods[i].Node}) {
					return
				}
			}
		},
	}
	if m := s.Placing(); m != nil {
		c.Ask.PodID, c.Ask.DynamicPorts = m.ID, m.DynamicPorts()
	}
	var err error
	if c.Rule, err = s.Rule(); err != nil {
		c.Rule = &scheduler.Rule{} // what nobody can read selects nothing
	}
	return scheduler.NewView(c)
}
