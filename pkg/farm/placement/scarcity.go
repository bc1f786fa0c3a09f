package placement

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Shape is what decides which nodes have room for a pod: where one of a shape finds none, no other does.
type Shape struct {
	Selector    string // of nodes
	CPU, Memory int64
	Ports       string // the static ones
	Dynamic     int    // how many dynamic ones
	// RCID is set where the controller itself keeps nodes from taking the pod, as by a limit for each node: then others may
	// find room.
	RCID string
	// Avoid names nodes to which some of the pods were moved in vain.
	Avoid string
}

// ShapeOf returns the shape of pods that want a claim besides some dynamic ports.
func ShapeOf(selector string, claim node.Claim, dynamic int) Shape {
	return Shape{Selector: selector, CPU: claim.CPU, Memory: claim.Memory, Ports: fmt.Sprint(claim.Ports), Dynamic: dynamic}
}

// How long nobody looks at all nodes for a shape that found no room. The pause doubles up to what the look has cost: some time for
// each node, so that a small cluster is looked at often, and one of ten thousand nodes every other minute.
const (
	FirstPause   = 15 * time.Second
	longestPause = 2 * time.Minute
	pausePerNode = 12 * time.Millisecond
	// forgetAfter is when a shape that nobody asks for any more is forgotten.
	forgetAfter = time.Hour
)

// Scarcity remembers the shapes for which no node had room, and what has happened to nodes since. All nodes are looked at again after a
// growing pause, since nothing tells when another farm gives room back, and a node at once when something about it changes. A look
// knows what was so when its snapshot was taken: Mark is asked before that. The zero value is ready. It is not safe for concurrent use.
type Scarcity struct {
	shapes  map[Shape]*shortage
	at      uint64            // counts what is told by Changed and Reset
	reset   uint64            // when everything was forgotten
	changed map[string]uint64 // when a node changed last, of all nodes that ever did
}

// shortage is what is known of one shape.
type shortage struct {
	pause   time.Duration     // zero: no look has ended without room yet
	due     time.Time         // of the next look at all nodes
	asked   time.Time         // when somebody asked for the shape last
	reasons scheduler.Reasons // of the last look at all nodes
	mark    uint64            // what had happened to nodes until then has been looked at
}

// Look says where a pod may find room.
type Look struct {
	All     bool              // any node may have room
	Nodes   map[string]bool   // otherwise these: something about them has changed since they had none
	Wait    time.Duration     // until all nodes are to be looked at again
	Reasons scheduler.Reasons // why none had room
}

// None reports whether there is nothing to look at.
func (l Look) None() bool { return !l.All && len(l.Nodes) == 0 }

// Mark tells the moment. What is told of nodes later is not in a snapshot that was taken earlier.
func (s *Scarcity) Mark() uint64 { return s.at }

// Known returns what Begin would.
func (s *Scarcity) Known(shape Shape, now time.Time) Look {
	k := s.shapes[shape]
	if k == nil || !now.Before(k.due) || k.mark < s.reset {
		return Look{All: true}
	}
	return Look{Nodes: s.since(k.mark), Wait: k.due.Sub(now), Reasons: k.reasons}
}

// since returns the nodes that have changed since a moment.
func (s *Scarcity) since(mark uint64) map[string]bool {
	if mark == s.at {
		return nil
	}
	news := map[string]bool{}
	for name, at := range s.changed {
		if at > mark {
			news[name] = true
		}
	}
	return news
}

// Begin begins a look for a shape at the nodes of a snapshot, before which the mark was asked for. What is told of nodes since then is for
// the next look, too.
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
		k.due = now.Add(FirstPause) // others of the shape wait for what comes of this look
	}
	k.mark, k.asked = max(k.mark, mark), now
	return look
}

// Short ends a look at all of some nodes after which pods were left over, and returns how long to wait. The mark is that with which the look began.
func (s *Scarcity) Short(shape Shape, now time.Time, mark uint64, nodes int, reasons scheduler.Reasons) time.Duration {
	maps.DeleteFunc(s.shapes, func(_ Shape, k *shortage) bool { return now.Sub(k.asked) > forgetAfter })
	k := s.shapes[shape]
	if k == nil { // room was found meanwhile, and taken
		s.Begin(shape, now, mark)
		k = s.shapes[shape]
	}
	longest := min(max(FirstPause, time.Duration(nodes)*pausePerNode), longestPause)
	k.pause = min(max(FirstPause, 2*k.pause), longest)
	k.due, k.reasons = now.Add(k.pause), maps.Clone(reasons)
	return k.pause
}

// Found ends a look after which no pod was left over.
func (s *Scarcity) Found(shape Shape) { delete(s.shapes, shape) }

// Changed notes nodes that may have room now: one that joined, whose record or operators' side has changed, or where something was given
// back.
func (s *Scarcity) Changed(nodes []string) {
	s.at++
	if s.changed == nil {
		s.changed = map[string]uint64{}
	}
	for _, name := range nodes {
		s.changed[name] = s.at
	}
}

// Reset forgets everything, as when the nodes are those of another cluster. What a look finds at the nodes of before is forgotten as well.
func (s *Scarcity) Reset() {
	s.at++
	s.reset = s.at
	clear(s.shapes)
	clear(s.changed)
}

// Names returns the nodes to look at, of those given.
func (l Look) Names(from []string) []string {
	if l.All {
		return from
	}
	return slices.DeleteFunc(slices.Clone(from), func(name string) bool { return !l.Nodes[name] })
}
