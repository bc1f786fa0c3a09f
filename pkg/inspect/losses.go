package inspect

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Losses are the present deaths of nodes, by name, with what is known of their machines. A lost node stays lost until
// its preparer is back, also when its pods are placed elsewhere, because their former copies bear it, too. When these
// are forgotten, Consul still knows that its agent has failed.
type Losses map[string]loss

type loss struct {
	state                     string // Away, Unmanaged or Lost
	lostSince, unmanagedSince *time.Time
}

// What is known of a node. It is Lost, too, when its machine is gone.
const (
	Alive     = "alive"     // its preparer lives
	Away      = "away"      // its preparer is gone
	Unmanaged = "unmanaged" // and the owner of a pod has noted that its machine is not
)

// Pods are the pods of a controller, with what their nodes reported last, and what is known of these nodes.
type Pods struct {
	Placements []pod.Placement
	Realities  map[store.At]pod.Reality
	Losses     Losses
}

// LossesOf returns what is known of the nodes whose records nobody holds. A machine is lost when the owner of one of
// its pods has noted so, or when Consul calls its agent failed. What placements say about earlier deaths does not
// count; zero names no death.
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

// lost reports whether the machine of a node is gone.
func (l Losses) lost(name string) bool { return l[name].state == Lost }

// gone says of a lost machine since when it is gone, where an owner has noted that.
func (l Losses) gone(name string) string {
	if since := l[name].lostSince; since != nil {
		return "its node is gone since " + since.UTC().Format(time.RFC3339)
	}
	return "its node is gone"
}

// believe corrects what a node reported last by what is known of the node. On a lost machine nothing runs. Of a pod
// without a placement on a node without a preparer nobody knows whether it runs: an operator may have declared it gone.
// What is placed on such a node counts as it was reported last (P6).
func (l Losses) believe(v *PodView) {
	_, dead := l[v.Node]
	switch {
	case l.lost(v.Node) && v.State != Lost:
		v.State, v.Available = Lost, false
		v.note("%s", l.gone(v.Node))
	case dead && (v.Kind == Orphan || v.Kind == Local):
		v.State, v.Available = Unknown, false
		v.note("its node has no living preparer, and said last that it was there")
	}
}
