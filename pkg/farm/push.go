package farm

import (
	"cmp"

	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// pusher pushes to the nodes of a controller that do not watch their intents (ADR 26).
type pusher struct {
	push     func(push.Target, scale.Request) // nil: the farm pushes to no node
	id, name string                           // of the controller
	epoch    string
	nodes    map[string]*node.View // nil: the controller was not read, and nothing is pushed
}

func (p *pass) pusher() pusher {
	to := pusher{push: p.kit.push, id: p.id, name: cmp.Or(p.head.RC.Value.Name, p.id)}
	if p.snapshot != nil {
		to.epoch, to.nodes = p.snapshot.Epoch, p.snapshot.Nodes
	}
	return to
}

// pushIntents pushes to the nodes of a batch that has landed. The push has the number of the controller's pods that
// should run on the node.
func (p *pusher) pushIntents(b *batch) {
	if p.push == nil {
		return
	}
	unpushed := map[string]uint32{}
	for i := range b.Intents {
		in := &b.Intents[i]
		state := pod.Stopped // an intent that is removed
		if in.Intent != nil {
			state = in.Intent.State
		}
		p.count(unpushed, in.Node, state)
	}
	p.pushAll(unpushed, b.Fence, b.Landed)
}

// pushMissed pushes to each node whose report is behind its intents, under a new fence. The former owner may have ended
// before it pushed, and this farm has not pushed the intents of a write with an unknown outcome. The revision of the
// request is above the lock's index, and so above the revisions of the earlier writes: the node reads its intents, and
// answers that it has none with that revision.
func (p *pusher) pushMissed(pods []reconcile.Pod, fence store.Fence) {
	if p.push == nil {
		return
	}
	missed := map[string]uint32{}
	for i := range pods {
		one := &pods[i]
		if one.Reality == nil || one.Reality.Revision < one.Revision {
			p.count(missed, one.Node, one.RunState)
		}
		for _, g := range one.Placement.Ghosts {
			if r := one.Ghosts[g.Node]; g.Revision != 0 && (r == nil || r.Revision < g.Revision) {
				p.count(missed, g.Node, pod.Stopped)
			}
		}
	}
	p.pushAll(missed, fence, fence.Index+1)
}

func (p *pusher) count(unpushed map[string]uint32, name string, state pod.RunState) {
	if n := p.nodes[name]; n == nil || n.Intents != node.IntentsPush {
		return
	}
	count := unpushed[name]
	if state == pod.Running {
		count++
	}
	unpushed[name] = count
}

func (p *pusher) pushAll(unpushed map[string]uint32, fence store.Fence, revision uint64) {
	for name, pods := range unpushed {
		r := scale.New(p.name, pods)
		r.Epoch = &scale.Epoch{Cluster: p.epoch, RCID: p.id, Term: scale.Term(p.epoch, fence.Index)}
		r.Revision = int64(revision)
		p.push(push.Target{Node: name, API: p.nodes[name].API}, r)
	}
}
