package reconcile

import (
	"fmt"
	"maps"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// labelling gives pods the labels that they shall have by now.
type labelling struct{ *draft }

// relabel writes labels of running pods anew where pod_labels have changed. A revision without a new digest restarts
// nothing, and ChangedAt stays, because nothing else about the pod has changed. A pod that was found running stays as it
// is. In an upgrade in place a pod gets them with its manifest, when its turn comes.
func (c labelling) relabel() {
	type kind struct{ digest, podID string }
	byKind := map[kind]map[string]string{} // pods are many and kinds are few
	for p := range c.openRunning() {
		m := c.s.ManifestOf(p.Digest)
		if m == nil || !c.follows(p) {
			continue
		}
		of := kind{p.Digest, p.PodID}
		labels := byKind[of]
		if labels == nil {
			labels = c.s.RC.PodLabelSet(p.PodID, m.Labels, nil)
			byKind[of] = labels
		}
		if len(p.OwnLabels) > 0 {
			labels = c.s.RC.PodLabelSet(p.PodID, m.Labels, p.OwnLabels)
		}
		if maps.Equal(labels, p.Labels) || c.startsBeside(p) {
			continue
		}
		if c.s.Hold != "" {
			c.waiting = true
			return
		}
		c.label(p, labels, p.OwnLabels, "its controller gives its pods other labels")
	}
}

// follows reports whether a pod gets the present labels of its controller and its manifest before anything else about
// it changes.
func (c labelling) follows(p *Pod) bool {
	return !c.s.stays(p) && (c.s.RC.InPlace == nil || c.s.current(p))
}

// maxAsked is how many requests about one pod are one change, which one transaction takes.
const maxAsked = 16

// carryOut gives pods the labels of their own that people ask for. All requests about one pod, in the order in which
// they were made, are one change, and a later pass carries out those beyond maxAsked. A request is void when the pod
// is not on that node any more, or stops. It stays while the pod has another change to make, or farms wait for nodes
// to speak (R1).
func (c labelling) carryOut() {
	own, asked := map[pod.Identity]map[string]string{}, map[pod.Identity][]string{}
	for _, r := range c.s.Requests {
		if r.Label == nil || c.changed[r.Pod] || len(asked[r.Pod]) == maxAsked {
			continue // the next look
		}
		if c.s.Hold != "" {
			c.waiting = true
			continue
		}
		p := c.s.find(r.Pod)
		if why := c.unlabelled(p, r, own[r.Pod]); why != "" {
			c.plan.Answered = append(c.plan.Answered, r.ID)
			c.plan.Void = append(c.plan.Void, Void{Request: r.ID, Node: r.Node, Reason: fmt.Sprintf(
				"request %s to label %s.%d on %s is void: %s", r.ID, r.Pod.Role, r.Pod.Index, r.Node, why)})
			continue
		}
		if own[r.Pod] == nil {
			own[r.Pod] = field.Merge(p.OwnLabels)
		}
		r.Label.On(own[r.Pod])
		asked[r.Pod] = append(asked[r.Pod], r.ID)
	}
	for p := range c.openRunning() {
		requests := asked[p.Identity]
		switch {
		case len(requests) == 0 || c.startsBeside(p):
		case maps.Equal(own[p.Identity], p.OwnLabels):
			c.plan.Answered = append(c.plan.Answered, requests...)
		default:
			ch := c.label(p, c.labelsWith(p, own[p.Identity]), own[p.Identity], "its own labels are changed, as asked")
			ch.Answers = requests
		}
	}
}

// unlabelled says why a request to label a pod is void, "" where it is not. own are the pod's own labels after the
// requests before it; nil: there are none before it.
func (c labelling) unlabelled(p *Pod, r Request, own map[string]string) string {
	switch {
	case p == nil || p.Node != r.Node:
		return "the pod is not there any more"
	case p.RunState != pod.Running:
		return "the pod stops"
	case c.s.RC.DeletedAt != nil && !c.s.stays(p):
		return "its controller is deleted"
	case own == nil:
		own = p.OwnLabels
	}
	next := field.Merge(own)
	if r.Label.On(next); len(next) > field.MaxLabels {
		return fmt.Sprintf("the pod would have %d labels of its own; allowed: at most %d", len(next), field.MaxLabels)
	}
	return ""
}

// On makes the change of a pod's own labels.
func (l *Labels) On(own map[string]string) {
	maps.Copy(own, l.Set)
	for _, key := range l.Remove {
		delete(own, key)
	}
}

// labelsWith returns the labels of a pod with others of its own. A pod that does not follow its controller now keeps
// what it has of that: a label of the controller that its own one has hidden shows when it follows again.
func (c labelling) labelsWith(p *Pod, own map[string]string) map[string]string {
	if m := c.s.ManifestOf(p.Digest); m != nil && !c.s.RC.Disabled && c.follows(p) {
		return c.s.RC.PodLabelSet(p.PodID, m.Labels, own)
	}
	labels := field.Merge(p.Labels)
	for key := range p.OwnLabels {
		delete(labels, key)
	}
	maps.Copy(labels, own)
	return labels
}

// label plans the change of a pod's labels. It returns the change, which is the last of the plan.
func (c labelling) label(p *Pod, labels, own map[string]string, reason string) *Change {
	next := p.Placement
	next.Labels, next.OwnLabels, next.Revision = labels, own, p.nextRevision(c.s.Now)
	if len(own) == 0 {
		next.OwnLabels = nil
	}
	in := next.Intent()
	c.add(Change{
		Action: Relabel, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: reason,
		NeedsSchema: true, Intents: []IntentChange{{Node: p.Node, Intent: &in}},
	})
	return &c.plan.Changes[len(c.plan.Changes)-1]
}
