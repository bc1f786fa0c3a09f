package farm

import (
	"cmp"

	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// untold returns the nodes that a batch has intents for, and that have no standing query on them, each with how many of its pods are to
// run there (ADR 26).
func (ps *writer) untold(b *batch) map[string]uint32 {
	if ps.kit.tell == nil || ps.snapshot == nil {
		return nil
	}
	var untold map[string]uint32
	for i := range b.Intents {
		in := &b.Intents[i]
		if n := ps.snapshot.Nodes[in.Node]; n == nil || n.Intents != node.IntentsPush {
			continue
		}
		if untold == nil {
			untold = map[string]uint32{}
		}
		count := untold[in.Node]
		if in.Intent != nil && in.Intent.State == pod.Running {
			count++
		}
		untold[in.Node] = count
	}
	return untold
}

// tellNodes has nodes told of a batch that has landed. An outcome that is not known is told nobody: those nodes read by themselves.
func (ps *writer) tellNodes(b *batch, untold map[string]uint32) {
	if b.Landed == 0 {
		return
	}
	for name, pods := range untold {
		r := scale.New(cmp.Or(ps.head.RC.Value.Name, ps.id), pods)
		r.Epoch = &scale.Epoch{Cluster: ps.snapshot.Epoch, RCID: ps.id, Term: scale.Term(ps.snapshot.Epoch, b.Fence.Index)}
		r.Revision = int64(b.Landed)
		ps.kit.tell(push.Target{Node: name, API: ps.snapshot.Nodes[name].API}, r)
	}
}
