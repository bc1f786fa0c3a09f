package farm

import (
	"cmp"

	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// tellNodes tells those nodes of a batch that has landed which have no standing query on their intents: each how many of
// its pods are to run there (ADR 26). Of one whose outcome is not known they are told once the fence was moved: see
// tellMissed.
func (ps *writer) tellNodes(b *batch) {
	if ps.kit.tell == nil || ps.snapshot == nil {
		return
	}
	untold := map[string]uint32{}
	for i := range b.Intents {
		in := &b.Intents[i]
		ps.tellOf(untold, in.Node, in.Intent != nil && in.Intent.State == pod.Running)
	}
	ps.tellAll(untold, b.Fence, b.Landed)
}

// tellMissed has nodes told of what they have not done yet, as far as a farm knows that has just taken the lock, or moved it: what was written before, by whomever, may
// have been told nobody, as where a farm was killed after its write. The revision is above the lock's, as a node asks of all requests, and so above that of each such
// write: the node reads, finds what it was to be told, and answers that there is nothing of that revision.
func (ps *writer) tellMissed() {
	if ps.kit.tell == nil || ps.snapshot == nil {
		return
	}
	missed := map[string]uint32{}
	for i := range ps.snapshot.Pods {
		p := &ps.snapshot.Pods[i]
		if p.Reality == nil || p.Reality.Revision < p.Revision {
			ps.tellOf(missed, p.Node, p.RunState == pod.Running)
		}
		for _, g := range p.Placement.Ghosts {
			if r := p.Ghosts[g.Node]; g.Revision != 0 && (r == nil || r.Revision < g.Revision) {
				ps.tellOf(missed, g.Node, false)
			}
		}
	}
	ps.tellAll(missed, ps.mem.fence, ps.mem.fence.Index+1)
}

// tellOf notes an intent of a node, where the node has no standing query on them.
func (ps *writer) tellOf(untold map[string]uint32, name string, running bool) {
	if n := ps.snapshot.Nodes[name]; n == nil || n.Intents != node.IntentsPush {
		return
	}
	count := untold[name]
	if running {
		count++
	}
	untold[name] = count
}

func (ps *writer) tellAll(untold map[string]uint32, fence store.Fence, revision uint64) {
	for name, pods := range untold {
		r := scale.New(cmp.Or(ps.head.RC.Value.Name, ps.id), pods)
		r.Epoch = &scale.Epoch{Cluster: ps.snapshot.Epoch, RCID: ps.id, Term: scale.Term(ps.snapshot.Epoch, fence.Index)}
		r.Revision = int64(revision)
		ps.kit.tell(push.Target{Node: name, API: ps.snapshot.Nodes[name].API}, r)
	}
}
