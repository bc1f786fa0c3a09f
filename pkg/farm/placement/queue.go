package placement

import (
	"cmp"
	"container/heap"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// candidate is a node while pods are being assigned.
type candidate struct {
	name string
	view *node.View
	res  node.Reservation // with what was assigned so far
	used scheduler.Usage  // the same, added up
	mine int              // pods of the controller
	rank int              // place in the order of preference
	load int              // see scheduler.Usage.Load: how full it would be with one more pod
	// handicap counts like pods that are there already.
	handicap int
	group    string // value of the label that the pods are spread over; empty: it has none
	strict   bool   // see Request.Strict
	score    int    // see Request.Preferences
	pack     bool   // see Request.Pack
}

// compare orders candidates of one group, the best first.
func (c *candidate) compare(other *candidate) int {
	if c.score != other.score {
		return cmp.Compare(other.score, c.score)
	}
	has := cmp.Or(cmp.Compare(c.mine, other.mine), cmp.Compare(c.load, other.load))
	if c.pack {
		has = -has
	}
	return cmp.Or(has, cmp.Compare(c.rank, other.rank))
}

// weigh finds out how full the candidate is, which counts besides the pods of the controller itself.
func (c *candidate) weigh(r *Request) {
	if !c.strict {
		c.load = c.used.Load(c.view, r.Want, len(r.Dynamic), 1+c.handicap)
	}
}

// add gives the candidate a pod.
func (c *candidate) add(r *Request, claim node.Claim) {
	c.res.Claims[claim.Pod.String()] = claim
	c.used.Add(claim)
	c.mine++
	c.weigh(r)
}

// queue hands out the best candidate first: the best of the group with the fewest pods. Without a label to spread over, all
// candidates are of one group.
type queue struct {
	heap   groupHeap // of the groups that have candidates
	groups map[string]*group
}

// group is the candidates with one value of the label.
type group struct {
	value      string
	pods       int // of the controller
	at         int // in the heap of groups; negative: it is not there
	candidates candidateHeap
}

func newQueue(cs []*candidate, pods map[string]int) *queue {
	q := &queue{groups: map[string]*group{}}
	for _, c := range cs {
		g := q.groups[c.group]
		if g == nil {
			g = &group{value: c.group, pods: pods[c.group], at: len(q.heap)}
			q.groups[c.group] = g
			q.heap = append(q.heap, g)
		}
		g.candidates = append(g.candidates, c)
	}
	for _, g := range q.heap {
		heap.Init(&g.candidates)
	}
	heap.Init(&q.heap)
	return q
}

// push brings a candidate back.
func (q *queue) push(c *candidate) {
	g := q.groups[c.group]
	heap.Push(&g.candidates, c)
	if g.at < 0 {
		heap.Push(&q.heap, g)
	} else {
		heap.Fix(&q.heap, g.at)
	}
}

// placed brings a candidate back that has got a pod.
func (q *queue) placed(c *candidate) {
	q.groups[c.group].pods++
	q.push(c)
}

// pop returns nil when no candidate is left.
func (q *queue) pop() *candidate {
	if len(q.heap) == 0 {
		return nil
	}
	g := q.heap[0]
	c := heap.Pop(&g.candidates).(*candidate)
	if len(g.candidates) == 0 {
		heap.Pop(&q.heap)
	} else {
		heap.Fix(&q.heap, 0)
	}
	return c
}

type candidateHeap []*candidate

func (h candidateHeap) Len() int { return len(h) }

func (h candidateHeap) Less(i, j int) bool { return h[i].compare(h[j]) < 0 }

func (h candidateHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push is part of heap.Interface.
func (h *candidateHeap) Push(x any) { *h = append(*h, x.(*candidate)) }

// Pop is part of heap.Interface.
func (h *candidateHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// groupHeap has only groups with candidates.
type groupHeap []*group

func (h groupHeap) Len() int { return len(h) }

// Less puts those without the label last, whatever they have.
func (h groupHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	if (a.value == "") != (b.value == "") {
		return b.value == ""
	}
	return cmp.Or(cmp.Compare(a.pods, b.pods), a.candidates[0].compare(b.candidates[0])) < 0
}

func (h groupHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push is part of heap.Interface.
func (h *groupHeap) Push(x any) {
	g := x.(*group)
	g.at = len(*h)
	*h = append(*h, g)
}

// Pop is part of heap.Interface.
func (h *groupHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	last.at = -1
	*h = old[:len(old)-1]
	return last
}
