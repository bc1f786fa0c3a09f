// Package reconcile decides what the owner of a replication controller does next. Compute is a pure function of a
// Snapshot: no I/O, no clock, no randomness. The farm reads the snapshot, applies the plan and looks again.
package reconcile

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Snapshot is all that a decision about one controller depends on.
type Snapshot struct {
	Now      time.Time
	Owner    string // farm id, for the status
	RC       rc.RC
	Manifest *manifest.Manifest // of RC.ManifestDigest; nil while it cannot be read: then nothing is added or upgraded
	Pods     []Pod
	Orphans  []Orphan              // of this controller, on nodes whose preparer is alive
	Nodes    map[string]*node.View // by name
	Hold     string                // why nothing may be added yet (R1); empty when it may
	Breaker  string                // why nothing may be stopped (mass-stop breaker); empty when it may
	Previous *rc.Status
	Errors   []string // what could not be read, for the status
}

// Pod is one placement with what its nodes report.
type Pod struct {
	pod.Placement
	Index   uint64                  // Consul's modify index of the placement
	Reality *pod.Reality            // of Placement.Node; nil when there is none
	Ghosts  map[string]*pod.Reality // of former nodes, by name
	// Intents are those of Placement.Node and of the ghosts' nodes, by node; nil when they were not read. They are
	// read after a claim, where a node lists the pod as an orphan, and by the slow deep check.
	Intents map[string]*pod.Intent
}

// Orphan is a pod that a living node runs without a matching intent.
type Orphan struct {
	Node string
	pod.Orphan
}

// available reports whether the pod counts as available: what the node reports is about the digest that the placement
// asks for. (The revision may lag: a revision without a new digest restarts nothing.)
func (p *Pod) available() bool {
	return p.RunState == pod.Running && p.Reality != nil && p.Reality.Available && p.Reality.Digest == p.Digest
}

// confirmed reports whether a node's reality proves that a stop of at least this revision was carried out (P5).
func confirmed(r *pod.Reality, revision int64) bool {
	return r != nil && r.State == pod.StateStopped && r.Revision >= revision
}

// nextRevision returns a revision higher than all that the snapshot shows for the pod, and than those given.
func (p *Pod) nextRevision(now time.Time, more ...int64) int64 {
	seen := append(more, p.Revision)
	if p.Reality != nil {
		seen = append(seen, p.Reality.Revision)
	}
	for _, g := range p.Placement.Ghosts {
		seen = append(seen, g.Revision)
	}
	for _, r := range p.Ghosts {
		if r != nil {
			seen = append(seen, r.Revision)
		}
	}
	for _, in := range p.Intents {
		if in != nil {
			seen = append(seen, in.Revision)
		}
	}
	return pod.NextRevision(now, seen...)
}

// aliveOn reports whether the node's preparer is alive.
func (s *Snapshot) aliveOn(name string) bool {
	v := s.Nodes[name]
	return v != nil && v.Alive
}

// eligible reports whether new pods of the controller may still be placed on the node, as far as selector and operators
// are concerned.
func (s *Snapshot) eligible(name string) bool {
	v := s.Nodes[name]
	if v == nil || !v.Alive || !v.Open() {
		return false
	}
	sel, err := s.RC.Selector()
	return err == nil && sel.Matches(labels.Set(v.AllLabels()))
}
