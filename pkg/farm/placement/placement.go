// Package placement decides which of the nodes that may take pods (see package scheduler) get them. Everything here is a pure function of node records and reservations.
// The farm's passes call Assign; no node is ever given more than it has (P3).
package placement

import (
	"iter"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Walk is an order of names that is not written down: each is found when it is asked for.
type Walk struct {
	names    []string
	at, step uint64
}

// InOrder walks the names as they stand.
func InOrder(names []string) Walk { return Walk{names: names, step: 1} }

// NewWalk returns the order in which a farm with this seed should try the names. Different seeds give different
// orders, so that farms that place at the same time do not all start with the same node. It goes through the names in equal
// steps from some place on: this is done for each pass of each controller, and most passes need a few of thousands.
func NewWalk(names []string, seed uint64) Walk {
	at, step := stride(len(names), seed)
	return Walk{names: names, at: at, step: step}
}

// stride returns where to begin with a number of things and in which steps to go on, so that none is missed.
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

// nth returns the position of the i-th of a number of things.
func nth(at, step uint64, i, number int) uint64 { return (at + uint64(i)*step) % uint64(number) }

// Len returns how many names there are.
func (w Walk) Len() int { return len(w.names) }

// nth returns the i-th name; there must be one.
func (w Walk) nth(i int) string { return w.names[nth(w.at, w.step, i, len(w.names))] }

// All yields the names in their order.
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

// Request asks for nodes for new pods of one controller. All pods want the same claim.
type Request struct {
	Pods       []pod.Identity
	Want       node.Claim
	Dynamic    []string       // names of the ports that a node is to give a number each, besides those in Want
	MaxPerNode int            // zero: no limit
	PerNode    map[string]int // pods of this controller by node, before
	// Avoid names, for pods that move, the nodes where a copy is or was: an identity must not come back there.
	Avoid map[pod.Identity][]string
	Order []string // candidates in order of preference
	// Strict: the order decides among nodes with equally many pods of the controller, however full they are.
	Strict bool
	// Spread is the key of the label over whose values the pods are spread; empty: over none. PerGroup are the pods of this
	// controller by value, before.
	Spread   string
	PerGroup map[string]int
	// Tally counts those pods where a skew between groups is required; nil: none is.
	Tally *scheduler.Tally
	// Preferences are which nodes come first, before all that is counted on them.
	Preferences scheduler.Preferences
	// Pack takes the nodes first that have most, in place of those that have least.
	Pack bool
	// Reluctant are candidates that are taken only where they are far less full than the others.
	Reluctant    map[string]bool
	Nodes        map[string]*node.View
	Reservations map[string]node.Reservation // of the candidates; none: nothing is taken there
}

// Assignment gives a pod to a node.
type Assignment struct {
	Pod  pod.Identity
	Node string
}

// reluctance is how many pods fewer a reluctant candidate must have.
const reluctance = 3

// Assign spreads the pods over the candidates: always to the group with the fewest pods of the controller that has room, and
// there, of those that are preferred most, to a node with the fewest pods of the controller, then to the one that is least full by what it has least of unless the order is strict, then in
// order of preference. Nodes
// without the label that groups are made by are taken when no other has room. It returns what it could place and, for what it
// could not, why each candidate refused. It changes none of its inputs.
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
			continue // a pod that avoids less may still find a node
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

// candidates returns the nodes in their order, as they are before anything is assigned.
func (r *Request) candidates() []*candidate {
	each, all := make([]*candidate, len(r.Order)), make([]candidate, len(r.Order))
	for i, name := range r.Order {
		view := r.Nodes[name]
		all[i] = candidate{
			name: name, view: view, res: r.Reservations[name].Clone(), used: scheduler.UsageOf(view, r.Reservations[name]), mine: r.PerNode[name], rank: i,
			group: scheduler.GroupOf(view, r.Spread), strict: r.Strict, score: r.Preferences.Score(view), pack: r.Pack,
		}
		if r.Reluctant[name] {
			all[i].handicap = reluctance
		}
		all[i].weigh(r)
		each[i] = &all[i]
	}
	return each
}

// rule is what the pods ask of nodes that may take pods of the controller at all.
func (r *Request) rule() scheduler.Rule {
	return scheduler.Rule{MaxPerNode: r.MaxPerNode, Ask: r.Want, Dynamic: r.Dynamic}
}

// found is a candidate as a pod finds it.
func (r *Request) found(c *candidate, id pod.Identity) scheduler.Candidate {
	return scheduler.Candidate{View: c.view, Reservation: c.res, Pods: c.mine, Avoid: slices.Contains(r.Avoid[id], c.name), Skewed: r.Tally.Refuses(c.view)}
}

// pick takes the best candidate for a pod off the queue. Candidates that will not fit later either (all pods want the
// same) are dropped and counted; those that only this pod avoids come back in avoided.
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
