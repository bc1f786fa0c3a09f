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
	bad     bool // no pod becomes available on it, and each is hopeless
	lost    bool // while it is dead: Consul takes its machine for lost
	tenure  int  // of its preparer: the store refuses writes of earlier tenures
	intents map[pod.Identity]simRecord
	runs    map[pod.Identity]*simCopy
	known   map[pod.Identity]simRecord // realities as last read or written
	counter *simRecord                 // of drops, as last known; nil: it must be read
	busy    bool                       // a report is in flight
}

// simCopy is a copy as the node runs it, or has stopped it.
type simCopy struct {
	digest    string
	revision  int64
	stopped   bool
	available bool
	served    bool // it has been available since it started
	standby   bool
}

// start begins a tenure of the preparer: it reads the store, and finds its pods as they are.
func (s *simNode) start() {
	s.tenure++
	s.busy, s.alive, s.lost = false, true, false
	s.hear()
	s.reread()
	s.store.set(simKeys.Nodes.Key(s.name), s.record())
	s.hold(s.name)
}

// record returns the node's own record.
func (s *simNode) record() node.Node {
	return node.Node{
		Name: s.name, ConsulNode: s.name, Capacity: node.Capacity{Slots: 50},
		Incarnation: fmt.Sprint(s.tenure), Epoch: s.epoch(),
		OrphanPages: &node.OrphanPages{},
	}
}

// dies ends the preparer, or the machine with all that runs on it.
func (s *simNode) dies(machine bool) {
	s.tenure++
	s.busy, s.alive, s.lost = false, false, machine
	key := simKeys.Nodes.Key(s.name)
	r := s.store.at[key]
	r.session, r.index = "", s.store.next()
	s.store.at[key] = r
	if machine {
		for _, c := range s.runs {
			c.available = false
		}
	}
}

// hear reads the node's intents.
func (s *simNode) hear() {
	s.intents = map[pod.Identity]simRecord{}
	for key, r := range s.store.at {
		if in, is := r.value.(pod.Intent); is && key == intentKey(store.At{Node: s.name, Identity: in.Identity}) {
			s.intents[in.Identity] = r
		}
	}
}

// reread reads the node's realities. Its counter is read when it is needed.
func (s *simNode) reread() {
	s.relist()
	s.counter = nil
}

// relist reads the node's realities, as a preparer does every minute, because a write with an unknown outcome may have
// landed.
func (s *simNode) relist() {
	s.known = map[pod.Identity]simRecord{}
	for _, r := range s.store.at {
		if re, is := r.value.(pod.Reality); is && re.Node == s.name {
			s.known[re.Identity] = r
		}
	}
}

// pods returns the pods that the node knows in any way.
func (s *simNode) pods() []pod.Identity {
	all := maps.Clone(s.runs)
	for id := range s.intents {
		all[id] = nil
	}
	return slices.SortedFunc(maps.Keys(all), pod.Identity.Compare)
}

// work carries out the intent of a pod. It accepts an intent only if its revision is higher than the revision of the
// last accepted intent (R3).
func (s *simNode) work(id pod.Identity) {
	c := s.runs[id]
	r, has := s.intents[id]
	if !has {
		if c != nil && c.stopped {
			delete(s.runs, id) // the intent was removed, so forget the copy
		}
		return
	}
	in := r.value.(pod.Intent)
	switch {
	case c == nil && in.State == pod.Stopped:
		s.runs[id] = &simCopy{digest: in.Digest, revision: in.Revision, stopped: true}
	case c == nil || c.revision < in.Revision:
		next := &simCopy{
			digest: in.Digest, revision: in.Revision, stopped: in.State == pod.Stopped,
			standby: in.Standby,
		}
		next.available = c != nil && !c.stopped && !next.stopped && c.digest == in.Digest && c.available
		next.served = next.available || c != nil && !c.stopped && !next.stopped && c.served
		s.runs[id] = next
	}
}

// turns makes a running pod available, or unavailable.
func (s *simNode) turns(id pod.Identity, available bool) {
	if c := s.runs[id]; c != nil && !c.stopped {
		c.available = available
		c.served = c.served || available
	}
}

// reality returns the node's report of a pod; nil: none.
func (s *simNode) reality(id pod.Identity) *pod.Reality {
	c := s.runs[id]
	if c == nil {
		return nil
	}
	r := &pod.Reality{
		Identity: id, Node: s.name, Digest: c.digest, Revision: c.revision,
		State: pod.StateRunning, Available: c.available, Standby: c.standby,
	}
	switch {
	case c.stopped:
		r.State = pod.StateStopped
	case c.available:
		r.State = pod.StateReady
	default:
		r.NeverAvailable = !c.served
		r.Hopeless = s.bad
	}
	return r
}

// report sends in one transaction what differs from the store as the node knows it, with the drops (ADR 11).
func (s *simNode) report() {
	if !s.alive || s.busy {
		return
	}
	t, dropped := &simTxn{}, int64(0)
	all := maps.Clone(s.runs)
	for id := range s.known {
		all[id] = nil
	}
	for _, id := range slices.SortedFunc(maps.Keys(all), pod.Identity.Compare) {
		was, known := s.known[id]
		next := s.reality(id)
		if !known && next == nil || known && next != nil && was.value.(pod.Reality) == *next {
			continue
		}
		key := realityKey(store.At{Node: s.name, Identity: id})
		t.check(onReality, key, was.index)
		if next == nil {
			t.set(key, nil)
			next = &pod.Reality{}
		} else {
			t.set(key, *next)
		}
		before, _ := was.value.(pod.Reality)
		in, has := s.intents[id]
		switch {
		case !known || !before.Drops(next):
		case has && (in.value.(pod.Intent).State == pod.Stopped || in.value.(pod.Intent).Standby):
			t.check(onStopIntent, intentKey(store.At{Node: s.name, Identity: id}), in.index)
		default:
			dropped++
		}
	}
	if len(t.writes) == 0 {
		return
	}
	counter := simKeys.Drops.Key(simUnit, s.name)
	if dropped > 0 {
		if s.counter == nil {
			r := s.store.at[counter]
			s.counter = &r
		}
		has, _ := s.counter.value.(simCounter)
		t.check(onCounter, counter, s.counter.index)
		t.set(counter, simCounter{node: s.name, drops: has.drops + dropped})
		t.set(simKeys.Drops.Key(simUnit), s.store.next())
	}
	s.send(t, dropped)
}

// send makes a report land now, later, or never. The node may not learn the outcome.
func (s *simNode) send(t *simTxn, dropped int64) {
	tenure, counter := s.tenure, simKeys.Drops.Key(simUnit, s.name)
	land := func() bool {
		if s.tenure != tenure || s.store.refuses(t) != nil {
			return false
		}
		s.store.land(t)
		s.store.ring()
		return true
	}
	learns := func(landed, unknown bool) {
		if s.tenure != tenure {
			return
		}
		s.busy = false
		was := s.counter
		s.reread()
		switch {
		case landed && !unknown && dropped > 0:
			r := s.store.at[counter]
			s.counter = &r
		case unknown && s.without(counterGuessed):
			s.counter = was // as if the report had not landed
		}
		s.hear()
	}
	s.logf("%s reports %d, %d dropped", s.name, len(t.writes), dropped)
	switch s.fate() {
	case lands:
		learns(land(), false)
	case landsUnheard:
		land()
		learns(true, true)
	case isLost:
		learns(false, true)
	default: // late
		s.busy = true
		s.later(func() { land() })
		if s.choose(2) == 0 {
			learns(false, true) // the node does not wait
		} else {
			s.flights = append(s.flights, simFlight{do: func() { learns(false, true) }, must: true})
		}
	}
}
