package placement

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Shape is everything that decides which nodes can take a pod. If one pod of a shape finds no node, no other pod of the
// shape finds one.
type Shape struct {
	Selector    string // of nodes
	CPU, Memory int64
	Ports       string // numbers of the static ports
	Dynamic     int    // how many dynamic ports
	// RCID is set if a setting of the controller keeps nodes from taking the pod, for example a limit for each node:
	// pods of other controllers may then find a node.
	RCID string
	// Avoid names nodes to which some of the pods were moved in vain, and with a required skew how many pods each group
	// has.
	Avoid string
}

// ShapeOf returns the shape of pods with this share and number of dynamic ports.
func ShapeOf(selector string, claim node.Claim, dynamic int) Shape {
	return Shape{
		Selector: selector, CPU: claim.CPU, Memory: claim.Memory, Ports: fmt.Sprint(claim.Ports), Dynamic: dynamic,
	}
}

// The pause after a search of all nodes without a result doubles each time. Its maximum grows with the number of nodes,
// as the cost of a search does: ten thousand nodes are searched every two minutes.
const (
	FirstPause   = 15 * time.Second
	longestPause = 2 * time.Minute
	pausePerNode = 12 * time.Millisecond
	// forgetAfter is how long a shape is remembered after a pass has asked for it.
	forgetAfter = time.Hour
)

// Scarcity remembers the shapes for which no node had capacity. A node that changes is tried again at once, and all
// nodes after a growing pause, because no event reports that another farm gave capacity back. Call Mark before the
// snapshot of a look is taken. The zero value is ready. It is not safe for concurrent use.
type Scarcity struct {
	shapes  map[Shape]*shortage
	at      uint64            // number of calls of Changed and Reset
	reset   uint64            // at of the last Reset
	changed map[string]uint64 // at of the last Changed with that node
}

type shortage struct {
	pause   time.Duration     // zero: no look at all nodes has ended without capacity yet
	due     time.Time         // when all nodes may be looked at again
	asked   time.Time         // when a pass asked for the shape last
	reasons scheduler.Reasons // of the last look at all nodes
	mark    uint64            // changes of nodes up to this mark have been looked at
}

// Look is at which nodes to look for capacity.
type Look struct {
	All     bool              // at all nodes
	Nodes   map[string]bool   // if not All: only at these, because something about them has changed
	Wait    time.Duration     // until all nodes may be looked at again
	Reasons scheduler.Reasons // why no node had capacity
}

// None reports whether there is no node to look at.
func (l Look) None() bool { return !l.All && len(l.Nodes) == 0 }

// Mark returns the number of changes so far. A snapshot that is taken later has them all.
func (s *Scarcity) Mark() uint64 { return s.at }

// Known is Begin without beginning a look.
func (s *Scarcity) Known(shape Shape, now time.Time) Look {
	k := s.shapes[shape]
	if k == nil || !now.Before(k.due) || k.mark < s.reset {
		return Look{All: true}
	}
	return Look{Nodes: s.since(k.mark), Wait: k.due.Sub(now), Reasons: k.reasons}
}

func (s *Scarcity) since(mark uint64) map[string]bool {
	if mark == s.at {
		return nil
	}
	changed := map[string]bool{}
	for name, at := range s.changed {
		if at > mark {
			changed[name] = true
		}
	}
	return changed
}

// Begin begins a look for a shape. mark is the Mark from before the snapshot; the next look also tries nodes that
// changed since.
func (s *Scarcity) Begin(shape Shape, now time.Time, mark uint64) Look {
	look := s.Known(shape, now)
	k := s.shapes[shape]
	if k == nil {
		if s.shapes == nil {
			s.shapes = map[Shape]*shortage{}
		}
		k = &shortage{}
		s.shapes[shape] = k
	}
	if look.All && k.pause > 0 {
		k.due = now.Add(FirstPause) // other pods of the shape wait for the result of this look
	}
	k.mark, k.asked = max(k.mark, mark), now
	return look
}

// NoneFound ends a look at all nodes (nodes is their number) that left pods without a node. It returns the wait before
// the next look. mark is what Begin got.
func (s *Scarcity) NoneFound(
	shape Shape, now time.Time, mark uint64, nodes int, reasons scheduler.Reasons,
) time.Duration {
	maps.DeleteFunc(s.shapes, func(_ Shape, k *shortage) bool { return now.Sub(k.asked) > forgetAfter })
	k := s.shapes[shape]
	if k == nil { // another look has found capacity meanwhile, and its pods have taken it
		s.Begin(shape, now, mark)
		k = s.shapes[shape]
	}
	longest := min(max(FirstPause, time.Duration(nodes)*pausePerNode), longestPause)
	k.pause = min(max(FirstPause, 2*k.pause), longest)
	k.due, k.reasons = now.Add(k.pause), maps.Clone(reasons)
	return k.pause
}

// Found ends a look after which every pod had a node. It also forgets a result of NoneFound that has become void.
func (s *Scarcity) Found(shape Shape) { delete(s.shapes, shape) }

// Changed records nodes that may have capacity now: those that joined, whose records changed, or where a share was
// released.
func (s *Scarcity) Changed(nodes []string) {
	s.at++
	if s.changed == nil {
		s.changed = map[string]uint64{}
	}
	for _, name := range nodes {
		s.changed[name] = s.at
	}
}

// Reset forgets everything, for example because the nodes belong to another cluster. Results of looks that began before
// become void.
func (s *Scarcity) Reset() {
	s.at++
	s.reset = s.at
	clear(s.shapes)
	clear(s.changed)
}

// Names returns which of the given nodes to look at.
func (l Look) Names(from []string) []string {
	if l.All {
		return from
	}
	return slices.DeleteFunc(slices.Clone(from), func(name string) bool { return !l.Nodes[name] })
}
