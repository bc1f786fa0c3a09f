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
	res  node.Reservation // including what was assigned so far
	used scheduler.Usage  // the sum of res
	mine int              // pods of the controller
	rank int              // place in the order of preference
	load int              // see scheduler.Usage.Load: how full it would be with one more pod
	// handicap is how many pods are added to the load of a reluctant candidate.
	handicap int
	group    string // the node's value of the spread label; empty: it has none
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

func (c *candidate) weigh(r *Request) {
	if !c.strict {
		c.load = c.used.Load(c.view, r.Want, len(r.Dynamic), 1+c.handicap)
	}
}

func (c *candidate) add(r *Request, claim node.Claim) {
	c.res.Claims[claim.Pod.String()] = claim
	c.used.Add(claim)
	c.mine++
	c.weigh(r)
}

// queue hands out the best candidate of the group with the fewest pods.
type queue struct {
	heap   groupHeap // of the groups that have candidates
	groups map[string]*group
}

type group struct {
	value      string
	pods       int // of the controller
	at         int // index in the heap of groups; negative: it is not there
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

func (q *queue) push(c *candidate) {
	g := q.groups[c.group]
	heap.Push(&g.candidates, c)
	if g.at < 0 {
		heap.Push(&q.heap, g)
	} else {
		heap.Fix(&q.heap, g.at)
	}
}

func (q *queue) placed(c *candidate) {
	q.groups[c.group].pods++
	q.push(c)
}

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

func (c candidateHeap) Len() int { return len(c) }

func (c candidateHeap) Less(i, j int) bool { return c[i].compare(c[j]) < 0 }

func (c candidateHeap) Swap(i, j int) { c[i], c[j] = c[j], c[i] }

// Push is part of heap.Interface.
func (c *candidateHeap) Push(x any) { *c = append(*c, x.(*candidate)) }

// Pop is part of heap.Interface.
func (c *candidateHeap) Pop() any {
	old := *c
	last := old[len(old)-1]
	*c = old[:len(old)-1]
	return last
}

// groupHeap has only groups that have candidates.
type groupHeap []*group

func (g groupHeap) Len() int { return len(g) }

// Less puts the group without the label last, even if it has the fewest pods.
func (g groupHeap) Less(i, j int) bool {
	a, b := g[i], g[j]
	if (a.value == "") != (b.value == "") {
		return b.value == ""
	}
	return cmp.Or(cmp.Compare(a.pods, b.pods), a.candidates[0].compare(b.candidates[0])) < 0
}

func (g groupHeap) Swap(i, j int) {
	g[i], g[j] = g[j], g[i]
	g[i].at, g[j].at = i, j
}

// Push is part of heap.Interface.
func (g *groupHeap) Push(x any) {
	last := x.(*group)
	last.at = len(*g)
	*g = append(*g, last)
}

// Pop is part of heap.Interface.
func (g *groupHeap) Pop() any {
	old := *g
	last := old[len(old)-1]
	last.at = -1
	*g = old[:len(old)-1]
	return last
}
