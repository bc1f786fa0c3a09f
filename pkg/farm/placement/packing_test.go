package placement_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// yard is a set of nodes on which the pods of a trace come and go.
type yard struct {
	nodes map[string]*node.View
	order []string
	taken map[string]node.Reservation
	where map[pod.Identity]string
	size  node.Capacity
}

func newYard(n int, size node.Capacity) *yard {
	y := &yard{
		nodes: map[string]*node.View{}, taken: map[string]node.Reservation{},
		where: map[pod.Identity]string{}, size: size,
	}
	for i := range n {
		name := fmt.Sprintf("n%02d", i)
		y.order = append(y.order, name)
		y.nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: size}, Alive: true}
		y.taken[name] = node.Reservation{Claims: map[string]node.Claim{}}
	}
	return y
}

// spread finds a node as farms do with `placing: spread`.
func (y *yard) spread(want node.Claim) string { return y.assign(want, false) }

// pack finds a node as farms do with `placing: pack`.
func (y *yard) pack(want node.Claim) string { return y.assign(want, true) }

func (y *yard) assign(want node.Claim, pack bool) string {
	got, _ := placement.Assign(placement.Request{
		Pods: []pod.Identity{want.Pod}, Want: want, Order: y.order, Nodes: y.nodes, Reservations: y.taken, Pack: pack,
	})
	if len(got) == 0 {
		return ""
	}
	return got[0].Node
}

// firstFit finds the first node in order that can take the pod.
func (y *yard) firstFit(want node.Claim) string {
	for _, name := range y.order {
		if scheduler.Fits(y.nodes[name], y.taken[name], want.Pod, want) == "" {
			return name
		}
	}
	return ""
}

// used returns the fraction of all CPU or of all memory that pods have, whichever is larger.
func (y *yard) used() float64 {
	var cpu, memory int64
	for _, res := range y.taken {
		for _, h := range res.Claims {
			cpu, memory = cpu+h.CPU, memory+h.Memory
		}
	}
	n := int64(len(y.order))
	return max(float64(cpu)/float64(n*y.size.CPU), float64(memory)/float64(n*y.size.Memory))
}

// trace lets pods of five sizes come and go, so that the nodes are nearly full. It returns the fraction of pods that
// found a node, and which fraction of the nodes was used when the first pod found none.
func (y *yard) trace(seed uint64, find func(node.Claim) string) (served, first float64) {
	sizes := []node.Claim{
		{CPU: 100, Memory: 1},
		{CPU: 250, Memory: 1},
		{CPU: 500, Memory: 4},
		{CPU: 1000, Memory: 2},
		{CPU: 1500, Memory: 8},
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	asked, got := 0, 0
	var lives []pod.Identity
	for i := range 4000 {
		if y.used() > 0.95 || i%3 == 2 && len(lives) > 0 { // a pod goes
			at := rng.IntN(len(lives))
			id := lives[at]
			delete(y.taken[y.where[id]].Claims, id.String())
			lives[at] = lives[len(lives)-1]
			lives = lives[:len(lives)-1]
			continue
		}
		want := sizes[rng.IntN(len(sizes))]
		want.Pod = identity("rc", i)
		asked++
		name := find(want)
		if name == "" {
			if first == 0 {
				first = y.used()
			}
			continue
		}
		got++
		y.taken[name].Claims[want.Pod.String()], y.where[want.Pod] = want, name
		lives = append(lives, want.Pod)
	}
	return float64(got) / float64(asked), first
}

// The test measures how much of the nodes is used when the first pod finds no node. It compares this with first-fit,
// and with the ideal: one node that has the capacity of all nodes. Farms spread pods, so that the loss of one node
// takes few pods away. With spread pods, a large pod may find no node while less is used than with first-fit. With
// pack, as many pods find a node as with first-fit.
func TestPackingIsAsGoodAsFirstFit(t *testing.T) {
	t.Parallel()
	const nodes = 50
	size := node.Capacity{Slots: 1000, CPU: 4000, Memory: 16}
	for seed := range uint64(3) {
		trace := func(name string, y *yard, find func(node.Claim) string) (served, first float64) {
			served, first = y.trace(seed, find)
			until := "none was refused"
			if first > 0 {
				until = fmt.Sprintf("the first was refused with %.1f %% used", 100*first)
			}
			t.Logf("seed %d: %s: %.1f %% of the pods found a node at once, %s", seed, name, 100*served, until)
			return served, first
		}
		spread, packed, fitted := newYard(nodes, size), newYard(nodes, size), newYard(nodes, size)
		all := node.Capacity{Slots: nodes * size.Slots, CPU: nodes * size.CPU, Memory: nodes * size.Memory}
		whole := newYard(1, all)
		served, full := trace("spread", spread, spread.spread)
		packServed, packFull := trace("packed", packed, packed.pack)
		firstServed, firstFull := trace("first-fit", fitted, fitted.firstFit)
		ideal, _ := trace("ideal", whole, whole.firstFit)
		if served < 0.6 || full < 0.6 {
			t.Errorf("seed %d: spread pods: %.2f found a node, the first was refused with %.2f used",
				seed, served, full)
		}
		if packServed < firstServed-0.01 || packFull < firstFull-0.01 {
			t.Errorf("seed %d: packed pods: %.2f found a node, first refusal with %.2f used; first-fit: %.2f, %.2f",
				seed, packServed, packFull, firstServed, firstFull)
		}
		if max(served, packServed, firstServed) > ideal {
			t.Errorf("seed %d: more pods found a node than on the ideal node: %.2f, %.2f, %.2f of %.2f",
				seed, served, packServed, firstServed, ideal)
		}
	}
}
