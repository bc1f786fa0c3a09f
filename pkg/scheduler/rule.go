package scheduler

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Reason is why a node does not take a pod.
type Reason string

// The reasons. Their texts appear in statuses and metrics.
const (
	Selector   Reason = "selector"     // its labels do not match
	NotAlive   Reason = "not alive"    // no preparer holds its record
	NotSynced  Reason = "not settled"  // it has not yet said what it runs in this cluster (R1)
	Drained    Reason = "drained"      // operators closed it
	Unread     Reason = "unreadable"   // what operators said of it cannot be read
	Relabelled Reason = "relabelled"   // its labels are not those that were looked at
	Avoided    Reason = "avoided"      // the pod that moves is or was there
	Resources  Reason = "resources"    // slots, CPU or memory
	Ports      Reason = "ports"        // a static port is taken or in use on the machine, or too few dynamic ones are free
	MaxPerNode Reason = "max_per_node" // the controller has enough pods there
	Skew       Reason = "spread"       // its group would have more pods than the required skew lets it, or it has no group
)

// Reasons counts nodes by why they take no pod.
type Reasons map[Reason]int

// String lists the reasons with their counts of nodes, in a stable order. It is empty when there is none.
func (r Reasons) String() string {
	parts := make([]string, 0, len(r))
	for _, reason := range slices.Sorted(maps.Keys(r)) {
		parts = append(parts, fmt.Sprintf("%s: %d", reason, r[reason]))
	}
	return strings.Join(parts, ", ")
}

// Rule is the one rule that says whether a node may take a pod of a controller. The farm that places, the status that says why
// nothing is placed, the decision that moves a pod away and rcctl that explains all of it ask this rule: two answers to one question
// would send operators to look for room that no farm uses.
//
// It has two parts. Excludes is about the node alone, so that farms ask it once for each change of a node and each selector.
// Refuses is about what is taken there, and is asked for each pod.
//
// It is what a controller asks of the nodes for its pods. Its selector is parsed once, so that asking costs little.
type Rule struct {
	Selector   labels.Selector // see rc.ParseSelector; nil matches no node
	Epoch      string          // of the cluster: what a node must have seen (R1)
	MaxPerNode int             // pods of the controller; zero: no limit
	Ask        node.Claim      // what each pod takes
	Dynamic    []string        // names of the ports that a node is to give a number each, besides those of the claim
}

// Candidate is a node as one pod finds it.
type Candidate struct {
	View        *node.View
	Reservation node.Reservation // what is taken there
	Pods        int              // of the controller
	Avoid       bool             // the pod that moves is or was there: an identity must not come back
	Skewed      bool             // with one more pod its group would exceed a required skew; see Tally
}

// Excludes returns why a node takes no pod of the controller, whatever is taken there, or "" when it may.
func (r *Rule) Excludes(v *node.View) Reason {
	switch {
	case v.OpsUnread != "":
		return Unread
	case r.Selector == nil || !v.Matches(r.Selector):
		return Selector
	case !v.Alive:
		return NotAlive
	case !v.Spoke(r.Epoch):
		return NotSynced
	case !v.Eligible():
		return Drained
	default:
		return ""
	}
}

// Refuses returns why a node that the rule does not exclude has no room for a pod, or "" when it has. What the identity
// holds there already does not count against it.
func (r *Rule) Refuses(c Candidate, id pod.Identity) Reason {
	switch {
	case c.Avoid:
		return Avoided
	case r.MaxPerNode > 0 && c.Pods >= r.MaxPerNode:
		return MaxPerNode
	case c.Skewed:
		return Skew
	case Outdated(c.View, c.Reservation):
		return Relabelled
	}
	want := r.Ask
	want.Pod = id
	_, _, reason := ClaimOn(c.View, c.Reservation, want, r.Dynamic, nil)
	return reason
}

// Check returns why a node does not take a pod, or "" when it does: both parts of the rule.
func (r *Rule) Check(c Candidate, id pod.Identity) Reason {
	if reason := r.Excludes(c.View); reason != "" {
		return reason
	}
	return r.Refuses(c, id)
}

// Eligible returns the names of the nodes that the rule does not exclude, sorted, and counts the others.
func (r *Rule) Eligible(nodes map[string]*node.View) ([]string, Reasons) {
	excluded := Reasons{}
	var names []string
	for name, v := range nodes {
		if reason := r.Excludes(v); reason != "" {
			excluded[reason]++
		} else {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, excluded
}

// Ineligible reports whether operators keep new pods off a node: as they say, or as the reservation has it, which a farm meets
// that has not heard of them yet.
func Ineligible(v *node.View, res node.Reservation) bool { return res.Ineligible || !v.Eligible() }

// Outdated reports whether the reservation was written for other labels than those of the view. Whoever adds a pod and finds it so
// knows older labels than those of now; or somebody who changed them does not know label versions, and the reservation waits to be mended.
func Outdated(v *node.View, res node.Reservation) bool { return !res.Labels.Accepts(v.LabelVersions) }

// Fits returns why a node cannot take a claim for an identity besides those in the reservation, or "" when it can. What
// the identity holds already does not count against it; orphans without a claim do (R13). An identity may keep what it holds of CPU and
// memory even where the node now offers less than is taken: else no pod there could be upgraded.
func Fits(v *node.View, res node.Reservation, id pod.Identity, want node.Claim) Reason {
	_, reason := takenBesides(v, res, id, want)
	return reason
}

// Others are what all but one identity have of a node: the claims in its reservation, and what runs there without one.
func Others(v *node.View, res node.Reservation, but pod.Identity) iter.Seq[node.Claim] {
	return func(yield func(node.Claim) bool) {
		own := but.String()
		for key, h := range res.Claims {
			if key != own && !yield(h) {
				return
			}
		}
		for i := range v.Orphans {
			o := &v.Orphans[i]
			_, claimed := res.Claims[o.Identity.String()]
			if !claimed && o.Identity != but && !yield(node.NewClaim(o.Identity, o.Ports, o.CPU, o.Memory)) {
				return
			}
		}
	}
}

// inUse reports whether something on the machine has a static port that an identity wants. Where the identity is already, that may be the pod itself, which
// listens on more than it declares: no number counts there, and its node finds out whose the socket is when the pod starts.
func inUse(v *node.View, res node.Reservation, id pod.Identity, port int) bool {
	if !slices.Contains(v.PortsInUse, port) {
		return false
	}
	_, holds := res.Claims[id.String()]
	return !holds && !slices.ContainsFunc(v.Orphans, func(o pod.Orphan) bool { return o.Identity == id })
}

// takenBesides is Fits, and returns the ports that others have: identities, and whatever else is on the machine (ADR 25).
func takenBesides(v *node.View, res node.Reservation, id pod.Identity, want node.Claim) (map[int]bool, Reason) {
	if res.Ineligible {
		return nil, Drained
	}
	with := Usage{Slots: 1, CPU: want.CPU, Memory: want.Memory}
	var taken map[int]bool // nil as long as others have no port
	for h := range Others(v, res, id) {
		with.Slots, with.CPU, with.Memory = with.Slots+1, field.Sum(with.CPU, h.CPU), field.Sum(with.Memory, h.Memory)
		for _, port := range h.Ports {
			if taken == nil {
				taken = map[int]bool{}
			}
			taken[port] = true
		}
	}
	own, holds := res.Claims[id.String()]
	for _, port := range want.Ports {
		if taken[port] || inUse(v, res, id, port) {
			return nil, Ports
		}
	}
	for _, port := range v.PortsInUse {
		if slices.Contains(own.Ports, port) {
			continue // whatever the node takes it for
		}
		if taken == nil {
			taken = map[int]bool{}
		}
		taken[port] = true
	}
	limit := v.Capacity
	if holds && want.CPU <= own.CPU {
		limit.CPU = 0
	}
	if holds && want.Memory <= own.Memory {
		limit.Memory = 0
	}
	if !with.within(limit) {
		return nil, Resources
	}
	return taken, ""
}
