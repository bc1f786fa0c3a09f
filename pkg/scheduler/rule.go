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
	Selector   Reason = "selector"      // its labels do not match
	NotAlive   Reason = "not alive"     // no preparer holds its record
	NotSynced  Reason = "not settled"   // it has not reported what it runs in the present epoch (R1)
	Drained    Reason = "drained"       // operators drain or cordon it
	Containers Reason = "no containers" // the pod has images, and the node cannot run containers
	Unread     Reason = "unreadable"    // the operators' record of it cannot be read
	Relabelled Reason = "relabelled"    // the farm decided with other labels of the node
	Avoided    Reason = "avoided"       // the pod that moves is or was there
	Resources  Reason = "resources"     // not enough slots, CPU or memory
	// a static port is taken or in use on the machine, or too few dynamic ports are free
	Ports      Reason = "ports"
	MaxPerNode Reason = "max_per_node" // the controller has enough pods there
	// one more pod would exceed the required skew, or the node has no group
	Skew Reason = "spread"
)

// Reasons counts nodes by the reason why they take no pod.
type Reasons map[Reason]int

// String lists the reasons and counts in a stable order.
func (r Reasons) String() string {
	parts := make([]string, 0, len(r))
	for _, reason := range slices.Sorted(maps.Keys(r)) {
		parts = append(parts, fmt.Sprintf("%s: %d", reason, r[reason]))
	}
	return strings.Join(parts, ", ")
}

// Rule decides whether a node may take a pod of a controller. All parts of rcfarm use this one rule. With two rules,
// rcctl could show capacity that no farm uses.
//
// Excludes looks only at the node, once for each selector and change of a node. Refuses looks at what is taken there,
// for each pod. The selector is parsed already, because a call must cost little.
type Rule struct {
	Selector   labels.Selector // see rc.ParseSelector; nil matches no node
	Epoch      string          // of the cluster: the node must have echoed it (R1)
	Containers bool            // the pods have images
	MaxPerNode int             // pods of the controller; zero: no limit
	Ask        node.Claim      // what each pod takes
	Dynamic    []string        // names of dynamic ports, which get numbers of the node, besides the ports of Ask
}

// Candidate is a node for one pod.
type Candidate struct {
	View        *node.View
	Reservation node.Reservation // what is taken there
	Pods        int              // pods of the controller on it
	Avoid       bool             // the pod that moves is or was there: an identity must not return
	Skewed      bool             // one more pod would exceed a required skew in its group; see Tally
}

// Excludes returns why a node takes no pod, without a look at its reservation; "": it may take one.
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
	case r.Containers && !v.RunsContainers():
		return Containers
	case !v.Eligible():
		return Drained
	default:
		return ""
	}
}

// Refuses returns why a node has no capacity for a pod; "": it has. Call Excludes before. The identity's present claim
// is not counted as taken.
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

// Check is Excludes and Refuses.
func (r *Rule) Check(c Candidate, id pod.Identity) Reason {
	if reason := r.Excludes(c.View); reason != "" {
		return reason
	}
	return r.Refuses(c, id)
}

// Eligible returns the nodes that are not excluded, sorted, and counts the others by reason.
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

// Ineligible reports whether operators want no new pods on a node, by their settings or the reservation. The
// reservation stops a farm that has not read the settings yet.
func Ineligible(v *node.View, res node.Reservation) bool { return res.Ineligible || !v.Eligible() }

// Outdated reports whether the reservation has another label version than the view: this farm knows old labels, or a
// program without label versions changed them, and the reservation must be mended.
func Outdated(v *node.View, res node.Reservation) bool { return !res.Labels.Accepts(v.LabelVersions) }

// Fits returns why a node cannot take a claim for an identity; "": it can. The identity's present claim is not counted
// as taken, but orphans without a claim are (R13). If the node now has less CPU or memory than is taken, an identity
// keeps its claim, because otherwise no pod there could be upgraded.
func Fits(v *node.View, res node.Reservation, id pod.Identity, want node.Claim) Reason {
	_, reason := takenBesides(v, res, id, want)
	return reason
}

// Others yields what other identities take of a node: claims, and orphans without a claim.
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

// inUse reports whether a program on the machine uses a wanted port. It is false for an identity on the node, because
// the program may be the pod itself, which may listen on more ports than it declares. The node checks that when the pod
// starts.
func inUse(v *node.View, res node.Reservation, id pod.Identity, port int) bool {
	if !slices.Contains(v.PortsInUse, port) {
		return false
	}
	_, holds := res.Claims[id.String()]
	return !holds && !slices.ContainsFunc(v.Orphans, func(o pod.Orphan) bool { return o.Identity == id })
}

// takenBesides is Fits. It also returns the ports that others have, also other programs on the machine (ADR 25).
func takenBesides(v *node.View, res node.Reservation, id pod.Identity, want node.Claim) (map[int]bool, Reason) {
	if res.Ineligible {
		return nil, Drained
	}
	with := Usage{Slots: 1, CPU: want.CPU, Memory: want.Memory}
	var taken map[int]bool // nil if others have no ports
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
			continue // the identity has this port, even if another program listens there now
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
