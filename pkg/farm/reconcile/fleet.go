package reconcile

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

type fleet struct {
	views map[string]*node.View  // by name
	lost  map[DeadNode]time.Time // see lostMachines
	rule  scheduler.Rule         // which nodes may take pods of the controller
}

// lostMachines returns the deaths of nodes whose machines are lost according to the placements. The value is the latest
// time of the loss in a placement, zero for none.
func lostMachines(s *Snapshot) map[DeadNode]time.Time {
	lost := map[DeadNode]time.Time{}
	note := func(death DeadNode, since time.Time) {
		if known, is := lost[death]; !is || since.After(known) {
			lost[death] = since
		}
	}
	remember := func(pods []Pod) {
		for i := range pods {
			p := &pods[i]
			if p.LostSince != nil && (p.RunState == pod.Running || s.ordered(p.Role)) {
				note(DeadNode{Name: p.Node, Index: p.DeadIndex}, *p.LostSince)
			}
			for _, g := range p.Placement.Ghosts {
				if g.MachineLost {
					note(DeadNode{Name: g.Node, Index: g.DeadIndex}, time.Time{})
				}
			}
		}
	}
	remember(s.Pods)
	for i := range s.Companions {
		remember(s.Companions[i].Pods)
	}
	return lost
}

func (f *fleet) aliveOn(name string) bool {
	v := f.views[name]
	return v != nil && v.Alive
}

// machineLost reports whether the machine is known to be lost. It stays lost until a preparer holds the node again,
// because Consul forgets failed agents after some time. A node without a record is not lost: a record can vanish while
// its machine lives.
func (f *fleet) machineLost(name string) bool {
	v := f.views[name]
	if v == nil || v.Alive {
		return false
	}
	_, recorded := f.lost[f.death(name)]
	return v.MachineLost || recorded
}

// silent reports whether the machine is lost and its agent was not alive in the last query. If the agent lives, a
// preparer may reach Consul without its lock, and the node's pods may run.
func (f *fleet) silent(name string) bool { return f.machineLost(name) && !f.views[name].AgentLives }

// death names the present death of a node that has a record and whose preparer is dead.
func (f *fleet) death(name string) DeadNode {
	return DeadNode{Name: name, Index: f.views[name].FreeIndex}
}

// sinceDeath reports whether the placement's times of the loss belong to the node's present death. The node must have a
// record.
func (f *fleet) sinceDeath(p *pod.Placement) bool { return f.views[p.Node].FreeIndex == p.DeadIndex }

func (f *fleet) mustLeave(name string) bool {
	v := f.views[name]
	return v != nil && v.MustLeave()
}

func (f *fleet) drained(name string) bool { return f.aliveOn(name) && f.mustLeave(name) }

// matches reports whether the controller selects the node. It is also true if the operators' settings of the node
// cannot be read and the selector may match it.
func (f *fleet) matches(v *node.View) bool {
	return f.rule.Selector != nil && v.MayMatch(f.rule.Selector)
}

// eligible reports whether the node may take pods of the controller. It does not look at the capacity that is left.
func (f *fleet) eligible(name string) bool {
	v := f.views[name]
	return v != nil && f.rule.Excludes(v) == ""
}
