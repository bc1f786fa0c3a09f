package placement

import (
	"cmp"
	"container/heap"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// candidate is a node while pods are being assigned.
type candidate struct {
	name string
	view *node.View
	res  node.Reservation // with what was assigned so far
	mine int              // pods of the controller
	rank int              // place in the order of preference
	// handicap counts like pods that are there already.
	handicap int
}

// queue hands out the best candidate first.
type queue struct{ heap candidateHeap }

func newQueue(cs []*candidate) *queue {
	q := &queue{heap: cs}
	heap.Init(&q.heap)
	return q
}

func (q *queue) push(c *candidate) { heap.Push(&q.heap, c) }

// pop returns nil when no candidate is left.
func (q *queue) pop() *candidate {
	if len(q.heap) == 0 {
		return nil
	}
	return heap.Pop(&q.heap).(*candidate)
}

type candidateHeap []*candidate

func (h candidateHeap) Len() int { return len(h) }

func (h candidateHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(
		cmp.Compare(a.mine, b.mine),
		cmp.Compare(len(a.res.Holders)+a.handicap, len(b.res.Holders)+b.handicap),
		cmp.Compare(a.rank, b.rank),
	) < 0
}

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
