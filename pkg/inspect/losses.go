package inspect

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Losses has the dead nodes, by name.
type Losses map[string]loss

type loss struct {
	state                     string // Away, Unmanaged or Lost
	lostSince, unmanagedSince *time.Time
}

// The states of a node, besides Lost.
const (
	Alive     = "alive"     // its preparer lives
	Away      = "away"      // its preparer is gone
	Unmanaged = "unmanaged" // its preparer is gone, and an owner of a pod has written that its machine is not lost
)

// Pods are the pods of a controller, with the last reports of their nodes.
type Pods struct {
	Placements []pod.Placement
	Realities  map[store.At]pod.Reality
	Losses     Losses
}

// LossesOf takes a machine for lost if an owner of a pod has written lost_since, or if its agent has failed in Consul.
// It ignores placements whose DeadIndex is from an earlier death of the node; zero fits any death.
func LossesOf(recs []store.Rec[node.Node], placements []pod.Placement, failedAgents map[string]bool) Losses {
	losses, deaths := Losses{}, map[string]uint64{}
	for i := range recs {
		if v := &recs[i].Value; recs[i].Session == "" {
			losses[v.Name], deaths[v.Name] = loss{state: Away}, recs[i].Index
			if failedAgents[v.ConsulNode] {
				losses[v.Name] = loss{state: Lost}
			}
		}
	}
	note := func(name string, death uint64, lost, unmanaged *time.Time) {
		was, dead := losses[name]
		if !dead || death != 0 && deaths[name] != death {
			return
		}
		now := loss{was.state, earlier(was.lostSince, lost), earlier(was.unmanagedSince, unmanaged)}
		switch {
		case now.lostSince != nil:
			now.state = Lost
		case now.unmanagedSince != nil && now.state == Away:
			now.state = Unmanaged
		}
		losses[name] = now
	}
	for i := range placements {
		p := &placements[i]
		note(p.Node, p.DeadIndex, p.LostSince, p.UnmanagedSince)
		for j := range p.Ghosts {
			if g := &p.Ghosts[j]; g.MachineLost {
				note(g.Node, g.DeadIndex, &g.Since, nil)
			}
		}
	}
	return losses
}

func (l Losses) lost(name string) bool { return l[name].state == Lost }

func (l Losses) gone(name string) string {
	if since := l[name].lostSince; since != nil {
		return "its node is gone since " + At(*since)
	}
	return "its node is gone"
}

// correct changes the view of a pod on a dead node. If the pod has no placement there, it is unknown whether it runs,
// because an operator may have declared it gone. Else its last report is used (P6).
func (l Losses) correct(v *PodView) {
	_, dead := l[v.Node]
	switch {
	case l.lost(v.Node) && v.State != Lost:
		v.State, v.Available = Lost, false
		v.note("%s", l.gone(v.Node))
	case dead && (v.Kind == Orphan || v.Kind == Local):
		v.State, v.Available = Unknown, false
		v.note("its node has no living preparer, and last reported that the pod was there")
	}
}
