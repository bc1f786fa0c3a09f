// Package placement decides which nodes get the pods of a controller. Package scheduler decides which nodes may take
// them. Package placement reads and writes nothing. Assign never gives a node more than its capacity (P3).
//
// Its files, in reading order: rank spread groups scarcity placement queue owner.
package placement

import (
	"iter"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Walk is an order of names, computed as they are asked for.
type Walk struct {
	names    []string
	at, step uint64
}

// InOrder keeps the order of the slice.
func InOrder(names []string) Walk { return Walk{names: names, step: 1} }

// NewWalk returns the order in which a farm with this seed tries the names, so that farms that place pods at the same
// time do not all start with the same node. The walk goes on in equal steps. That is cheap: every pass makes a walk,
// and most need only a few of thousands of names.
func NewWalk(names []string, seed uint64) Walk {
	at, step := stride(len(names), seed)
	return Walk{names: names, at: at, step: step}
}

// stride returns where to start, and a step that reaches every position.
func stride(number int, seed uint64) (at, step uint64) {
	n := uint64(number)
	if n == 0 {
		return 0, 1
	}
	seed = finish(seed)
	at, step = seed%n, 1+finish(seed)%n
	for gcd(step, n) != 1 {
		step++
	}
	return at, step
}

func nth(at, step uint64, i, number int) uint64 { return (at + uint64(i)*step) % uint64(number) }

// Len returns the number of names.
func (w Walk) Len() int { return len(w.names) }

func (w Walk) nth(i int) string { return w.names[nth(w.at, w.step, i, len(w.names))] }

// All yields the names in order.
func (w Walk) All() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range w.names {
			if !yield(w.nth(i)) {
				return
			}
		}
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Request asks for nodes for new pods of one controller, all with the same share.
type Request struct {
	Pods       []pod.Identity
	Want       node.Claim
	Dynamic    []string       // names of the dynamic ports; Want has the static ports
	MaxPerNode int            // zero: no limit
	PerNode    map[string]int // pods that this controller already has, by node
	// Avoid names, for a moving pod, the nodes where a copy of it is or was.
	Avoid map[pod.Identity][]string
	Order []string // candidates in order of preference
	// Strict: among nodes with equally many pods of the controller, only Order decides, not how full they are.
	Strict bool
	// Spread is the key of the label whose values make the groups over which pods are spread; empty: no spread.
	// PerGroup is how many pods this controller has already, by value.
	Spread   string
	PerGroup map[string]int
	// Tally counts these pods if a maximum skew is required; else nil.
	Tally *scheduler.Tally
	// Preferences come before the number of pods on a node and how full it is.
	Preferences scheduler.Preferences
	// Pack takes the fullest nodes first instead of the emptiest.
	Pack bool
	// Reluctant are candidates that are taken only if they are far less full than the others.
	Reluctant    map[string]bool
	Nodes        map[string]*node.View
	Reservations map[string]node.Reservation // of the candidates; missing: nothing is reserved there
}

// Assignment gives a pod to a node.
type Assignment struct {
	Pod  pod.Identity
	Node string
}

// reluctance is how many more pods a reluctant candidate is taken to have when candidates are compared.
const reluctance = 3

// Assign gives each pod a node if one of the candidates can take the pod. Of these candidates it takes, in this order
// of importance:
//   - a node in the group with the fewest pods of the controller, among the groups with capacity left; nodes without
//     the label that makes the groups come last;
//   - the node with the highest score of the preferences;
//   - the node with the fewest pods of the controller (with Pack: the most);
//   - the node that is least full by its scarcest resource (with Pack: fullest), unless Strict is set;
//   - the first node of the order.
//
// If some pods got no node, it also returns why the candidates refused. It changes none of its inputs.
func Assign(r Request) ([]Assignment, scheduler.Reasons) {
	r.Tally = r.Tally.Clone()
	out := make([]Assignment, 0, len(r.Pods))
	refused := scheduler.Reasons{}
	queue := newQueue(r.candidates(), r.PerGroup)
	for _, id := range r.Pods {
		c, avoided := r.pick(queue, id, refused)
		for _, other := range avoided {
			queue.push(other)
		}
		if c == nil {
			if most := max(refused[scheduler.Avoided], len(avoided)); most != 0 {
				refused[scheduler.Avoided] = most
			}
			continue // a pod that avoids fewer nodes may still find one
		}
		claim := r.Want
		claim.Pod = id
		if len(r.Dynamic) > 0 {
			claim, _, _ = scheduler.ClaimOn(c.view, c.res, claim, r.Dynamic, nil) // pick has seen that it fits
		}
		c.add(&r, claim)
		r.Tally.Add(c.group, 1)
		out = append(out, Assignment{Pod: id, Node: c.name})
		queue.placed(c)
	}
	if len(out) == len(r.Pods) {
		return out, nil
	}
	return out, refused
}

func (r *Request) candidates() []*candidate {
	each, all := make([]*candidate, len(r.Order)), make([]candidate, len(r.Order))
	for i, name := range r.Order {
		view := r.Nodes[name]
		all[i] = candidate{
			name: name, view: view, rank: i, strict: r.Strict, pack: r.Pack,
			res: r.Reservations[name].Clone(), used: scheduler.UsageOf(view, r.Reservations[name]),
			mine: r.PerNode[name], group: scheduler.GroupOf(view, r.Spread), score: r.Preferences.Score(view),
		}
		if r.Reluctant[name] {
			all[i].handicap = reluctance
		}
		all[i].weigh(r)
		each[i] = &all[i]
	}
	return each
}

func (r *Request) rule() scheduler.Rule {
	return scheduler.Rule{MaxPerNode: r.MaxPerNode, Ask: r.Want, Dynamic: r.Dynamic}
}

func (r *Request) found(c *candidate, id pod.Identity) scheduler.Candidate {
	return scheduler.Candidate{
		View: c.view, Reservation: c.res, Pods: c.mine,
		Avoid: slices.Contains(r.Avoid[id], c.name), Skewed: r.Tally.Refuses(c.view),
	}
}

// pick takes the best candidate for a pod off the queue. A candidate that refuses the pod would also refuse the next
// one, so pick drops it. avoided has the candidates that only this pod avoids.
func (r *Request) pick(q *queue, id pod.Identity, refused scheduler.Reasons) (best *candidate, avoided []*candidate) {
	rule := r.rule()
	for {
		c := q.pop()
		if c == nil {
			return nil, avoided
		}
		switch reason := rule.Refuses(r.found(c, id), id); reason {
		case "":
			return c, avoided
		case scheduler.Avoided:
			avoided = append(avoided, c)
		default:
			refused[reason]++
		}
	}
}
