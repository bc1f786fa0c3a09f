package place

import (
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// viewOf returns what schedulers see of a snapshot for one lot. version is scheduler.View.Version.
func viewOf(s *reconcile.Facts, lot *reconcile.Lot, version uint64) *scheduler.View {
	claim, preferences := &lot.Rule.Ask, &lot.Preferences
	c := scheduler.Cluster{
		Ask: scheduler.Ask{
			RCID: s.RC.ID, RCName: s.RC.Name, Labels: s.RC.Labels, PodLabels: s.RC.PodLabels,
			Strategy: string(s.RC.Strategy), Selector: s.RC.NodeSelector,
			Spread: preferences.Spread.Label, SpreadSkew: preferences.Spread.Held(), SpreadRole: preferences.Alone,
			Placing: string(preferences.Placing), MaxPerNode: s.RC.MaxPerNode, Desired: s.RC.Desired(),
			CPU: claim.CPU, Memory: claim.Memory, Ports: claim.Ports,
		},
		Nodes: s.Nodes, Version: version,
		Pods: func(yield func(scheduler.Placed) bool) {
			for i := range s.Pods {
				p := &s.Pods[i]
				if !yield(scheduler.Placed{Pod: p.Identity, Node: p.Node, Stopping: p.RunState != pod.Running}) {
					return
				}
			}
		},
	}
	for _, p := range preferences.Affinity {
		c.Ask.Affinity = append(c.Ask.Affinity, scheduler.Affinity{Selector: p.Selector, Weight: p.Weight})
	}
	if m := lot.Manifest; m != nil {
		c.Ask.PodID, c.Ask.Manifest, c.Ask.DynamicPorts = m.ID, m.WithoutSecrets(), m.DynamicPorts()
	}
	if wanted := lot.Nodes; wanted != nil {
		c.Nodes, c.Version = map[string]*node.View{}, 0
		for _, name := range wanted {
			c.Nodes[name] = s.Nodes[name]
		}
	}
	c.Rule = &lot.Rule
	return scheduler.NewView(c)
}
