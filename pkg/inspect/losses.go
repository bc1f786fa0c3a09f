package inspect

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Losses are the present deaths of nodes, by name, with what the owners of pods found out about them. A lost node stays lost until its preparer is back,
// also when its pods are placed elsewhere: their former copies bear it, too.
type Losses map[string]loss

type loss struct{ lostSince, unmanagedSince *time.Time }

// LossesOf returns what is known of the nodes whose records nobody holds. What placements say about earlier deaths does not count;
// zero names no death.
func LossesOf(recs []store.Rec[node.Node], placements []pod.Placement) Losses {
	losses, deaths := Losses{}, map[string]uint64{}
	for i := range recs {
		if recs[i].Session == "" {
			name := recs[i].Value.Name
			losses[name], deaths[name] = loss{}, recs[i].Index
		}
	}
	note := func(name string, death uint64, lost, unmanaged *time.Time) {
		if was, dead := losses[name]; dead && (death == 0 || deaths[name] == death) {
			losses[name] = loss{earlier(was.lostSince, lost), earlier(was.unmanagedSince, unmanaged)}
		}
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

// believe corrects what a node reported last by what is known of the node. On a lost machine nothing runs. Of a pod without a placement on a node without a
// preparer nobody knows whether it runs: an operator may have declared it gone. What is placed on such a node counts as it was reported last (P6).
func (l Losses) believe(v *PodView) {
	loss, dead := l[v.Node]
	switch {
	case loss.lostSince != nil && v.State != Lost:
		v.State, v.Available = Lost, false
		v.note("its node is gone since %s", loss.lostSince.UTC().Format(time.RFC3339))
	case dead && (v.Kind == Orphan || v.Kind == Local):
		v.State, v.Available = Unknown, false
		v.note("its node has no living preparer, and said last that it was there")
	}
}
