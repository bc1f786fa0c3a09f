package farm

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// simNode is a node with its preparer: what it has accepted and runs, and what it knows of the store.
type simNode struct {
	*history
	name    string
	alive   bool
	bad     bool // no pod becomes available on it, and each says that waiting does not help
	lost    bool // while it is not alive: its machine, as Consul says
	tenure  int  // of its preparer: what one sent is refused once the next one is there
	told    map[pod.Identity]simRecord
	runs    map[pod.Identity]*simCopy
	known   map[pod.Identity]simRecord // realities, as read or written last
	counter *simRecord                 // of drops, as known; nil: it must be read
	busy    bool                       // a report is on its way
}

// simCopy is a pod as the node runs it, or has stopped it.
type simCopy struct {
	digest    string
	revision  int64
	stopped   bool
	available bool
	served    bool // it has been available since it began
	standby   bool
}

// start begins a tenure of the preparer: it reads what the store has, and finds its pods as they are.
func (n *simNode) start() {
	n.tenure++
	n.busy, n.alive, n.lost = false, true, false
	n.hear()
	n.reread()
	n.store.set(simKeys.Nodes.Key(n.name), n.record())
	n.hold(n.name)
}

// record is the node's own record.
func (n *simNode) record() node.Node {
	return node.Node{
		Name: n.name, ConsulNode: n.name, Capacity: node.Capacity{Slots: 50},
		Incarnation: fmt.Sprint(n.tenure), Epoch: n.epoch(),
		OrphanPages: &node.OrphanPages{},
	}
}

// dies ends the preparer, or the machine with all that runs on it.
func (n *simNode) dies(machine bool) {
	n.tenure++
	n.busy, n.alive, n.lost = false, false, machine
	key := simKeys.Nodes.Key(n.name)
	r := n.store.at[key]
	r.session, r.index = "", n.store.next()
	n.store.at[key] = r
	if machine {
		for _, c := range n.runs {
			c.available = false
		}
	}
}

// hear reads the node's intents.
func (n *simNode) hear() {
	n.told = map[pod.Identity]simRecord{}
	for key, r := range n.store.at {
		if in, is := r.value.(pod.Intent); is && key == intentKey(store.At{Node: n.name, Identity: in.Identity}) {
			n.told[in.Identity] = r
		}
	}
}

// reread reads the node's realities. Its counter is read when it is needed.
func (n *simNode) reread() {
	n.relist()
	n.counter = nil
}

// relist reads the node's realities, as a preparer does every minute. A write whose outcome was unknown may have landed
// since.
func (n *simNode) relist() {
	n.known = map[pod.Identity]simRecord{}
	for _, r := range n.store.at {
		if re, is := r.value.(pod.Reality); is && re.Node == n.name {
			n.known[re.Identity] = r
		}
	}
}

// pods are those that the node knows anything of.
func (n *simNode) pods() []pod.Identity {
	all := maps.Clone(n.runs)
	for id := range n.told {
		all[id] = nil
	}
	return slices.SortedFunc(maps.Keys(all), pod.Identity.Compare)
}

// work does what the node was told about a pod: it accepts an intent only at a higher revision than it has accepted
// (R3).
func (n *simNode) work(id pod.Identity) {
	c := n.runs[id]
	r, told := n.told[id]
	if !told {
		if c != nil && c.stopped {
			delete(n.runs, id) // it is forgotten
		}
		return
	}
	in := r.value.(pod.Intent)
	switch {
	case c == nil && in.State == pod.Stopped:
		n.runs[id] = &simCopy{digest: in.Digest, revision: in.Revision, stopped: true}
	case c == nil || c.revision < in.Revision:
		next := &simCopy{digest: in.Digest, revision: in.Revision, stopped: in.State == pod.Stopped, standby: in.Standby}
		next.available = c != nil && !c.stopped && !next.stopped && c.digest == in.Digest && c.available
		next.served = next.available || c != nil && !c.stopped && !next.stopped && c.served
		n.runs[id] = next
	}
}

// turns makes a pod that runs available, or not.
func (n *simNode) turns(id pod.Identity, available bool) {
	if c := n.runs[id]; c != nil && !c.stopped {
		c.available = available
		c.served = c.served || available
	}
}

// reality is what the node reports of a pod; nil: nothing.
func (n *simNode) reality(id pod.Identity) *pod.Reality {
	c := n.runs[id]
	if c == nil {
		return nil
	}
	r := &pod.Reality{
		Identity: id, Node: n.name, Digest: c.digest, Revision: c.revision,
		State: pod.StateRunning, Available: c.available, Standby: c.standby,
	}
	switch {
	case c.stopped:
		r.State = pod.StateStopped
	case c.available:
		r.State = pod.StateReady
	default:
		r.NeverAvailable = !c.served
		r.Hopeless = n.bad
	}
	return r
}

// report sends what differs from what the store has, as the node knows it: one transaction, with the drops (ADR 11).
func (n *simNode) report() {
	if !n.alive || n.busy {
		return
	}
	t, dropped := &simTxn{}, int64(0)
	all := maps.Clone(n.runs)
	for id := range n.known {
		all[id] = nil
	}
	for _, id := range slices.SortedFunc(maps.Keys(all), pod.Identity.Compare) {
		was, known := n.known[id]
		next := n.reality(id)
		if !known && next == nil || known && next != nil && was.value.(pod.Reality) == *next {
			continue
		}
		key := realityKey(store.At{Node: n.name, Identity: id})
		t.check(onReality, key, was.index)
		if next == nil {
			t.set(key, nil)
			next = &pod.Reality{}
		} else {
			t.set(key, *next)
		}
		before, _ := was.value.(pod.Reality)
		in, told := n.told[id]
		switch {
		case !known || !before.Drops(next):
		case told && (in.value.(pod.Intent).State == pod.Stopped || in.value.(pod.Intent).Standby):
			t.check(onTold, intentKey(store.At{Node: n.name, Identity: id}), in.index)
		default:
			dropped++
		}
	}
	if len(t.writes) == 0 {
		return
	}
	counter := simKeys.Drops.Key(simUnit, n.name)
	if dropped > 0 {
		if n.counter == nil {
			r := n.store.at[counter]
			n.counter = &r
		}
		has, _ := n.counter.value.(simCounter)
		t.check(onCounter, counter, n.counter.index)
		t.set(counter, simCounter{node: n.name, drops: has.drops + dropped})
		t.set(simKeys.Drops.Key(simUnit), n.store.next())
	}
	n.send(t, dropped)
}

// send has a report land now, or later, or never; the node may not learn which.
func (n *simNode) send(t *simTxn, dropped int64) {
	tenure, counter := n.tenure, simKeys.Drops.Key(simUnit, n.name)
	land := func() bool {
		if n.tenure != tenure || n.store.refuses(t) != nil {
			return false
		}
		n.store.land(t)
		n.store.ring()
		return true
	}
	learns := func(landed, unknown bool) {
		if n.tenure != tenure {
			return
		}
		n.busy = false
		was := n.counter
		n.reread()
		switch {
		case landed && !unknown && dropped > 0:
			r := n.store.at[counter]
			n.counter = &r
		case unknown && n.without(counterGuessed):
			n.counter = was // as if it had not landed
		}
		n.hear()
	}
	n.say("%s reports %d, %d dropped", n.name, len(t.writes), dropped)
	switch n.fate() {
	case lands:
		learns(land(), false)
	case landsUnheard:
		land()
		learns(true, true)
	case isLost:
		learns(false, true)
	default: // late
		n.busy = true
		n.later(func() { land() })
		if n.choose(2) == 0 {
			learns(false, true) // it does not wait
		} else {
			n.flights = append(n.flights, simFlight{do: func() { learns(false, true) }, must: true})
		}
	}
}
