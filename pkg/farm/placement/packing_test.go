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

// yard is nodes on which a trace of pods comes and goes.
type yard struct {
	nodes map[string]*node.View
	order []string
	taken map[string]node.Reservation
	where map[pod.Identity]string
	size  node.Capacity
}

func newYard(n int, size node.Capacity) *yard {
	y := &yard{nodes: map[string]*node.View{}, taken: map[string]node.Reservation{}, where: map[pod.Identity]string{}, size: size}
	for i := range n {
		name := fmt.Sprintf("n%02d", i)
		y.order = append(y.order, name)
		y.nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: size}, Alive: true}
		y.taken[name] = node.Reservation{Claims: map[string]node.Claim{}}
	}
	return y
}

// ranked finds a node as farms do, of all nodes.
func (y *yard) ranked(want node.Claim) string {
	got, _ := placement.Assign(placement.Request{Pods: []pod.Identity{want.Pod}, Want: want, Order: y.order, Nodes: y.nodes, Reservations: y.taken})
	if len(got) == 0 {
		return ""
	}
	return got[0].Node
}

// firstFit finds the first node in order that has room.
func (y *yard) firstFit(want node.Claim) string {
	for _, name := range y.order {
		if scheduler.Fits(y.nodes[name], y.taken[name], want.Pod, want) == "" {
			return name
		}
	}
	return ""
}

// used is the part of what there is most of taken, of CPU and memory, that pods have.
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

// trace has pods of five sizes come and go, about as much as there is, and returns the part of what was asked for at each moment that had a node, and of what there is
// that was taken when the first pod had none.
func (y *yard) trace(seed uint64, find func(node.Claim) string) (served, first float64) {
	sizes := []node.Claim{{CPU: 100, Memory: 1}, {CPU: 250, Memory: 1}, {CPU: 500, Memory: 4}, {CPU: 1000, Memory: 2}, {CPU: 1500, Memory: 8}}
	rng := rand.New(rand.NewPCG(seed, 1))
	asked, got := 0, 0
	var lives []pod.Identity
	for i := range 4000 {
		if y.used() > 0.95 || i%3 == 2 && len(lives) > 0 { // one goes
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

// How much of the nodes can be used before a pod finds none, beside first-fit and what there is. Farms spread pods, so that a node that is lost takes few
// with it; a large pod then finds no node earlier than with first-fit.
func TestPackingBesideFirstFit(t *testing.T) {
	t.Parallel()
	size := node.Capacity{Slots: 1000, CPU: 4000, Memory: 16}
	for seed := range uint64(3) {
		ranked, fitted := newYard(50, size), newYard(50, size)
		served, full := ranked.trace(seed, ranked.ranked)
		firstServed, firstFull := fitted.trace(seed, fitted.firstFit)
		t.Logf("seed %d: farms placed %.1f %% of the pods, the first was refused with %.1f %% taken; first-fit %.1f %%, %.1f %%; ideal: 100 %%, 100 %%",
			seed, 100*served, 100*full, 100*firstServed, 100*firstFull)
		if full < 0.6 || served < 0.6 {
			t.Errorf("seed %d: farms use %.2f of what there is before a pod finds no node, first-fit %.2f; they placed %.2f of the pods, first-fit %.2f", seed, full, firstFull, served, firstServed)
		}
	}
}
