package reconcile

import (
	"fmt"
	"maps"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

type labelling struct{ *draft }

// relabel writes the labels of running pods again when pod_labels have changed. It restarts no pod, and does not change
// ChangedAt. In an upgrade in place, a pod gets the new labels with its new manifest.
func (l labelling) relabel() {
	type kind struct{ digest, podID string }
	byKind := map[kind]map[string]string{} // many pods have the same kind, so each set is made once
	for p := range l.openRunning() {
		m := l.f.ManifestOf(p.Digest)
		if m == nil || !l.takesLabels(p) {
			continue
		}
		of := kind{p.Digest, p.PodID}
		labels := byKind[of]
		if labels == nil {
			labels = l.f.RC.PodLabelSet(p.PodID, m.Labels, nil)
			byKind[of] = labels
		}
		if len(p.OwnLabels) > 0 {
			labels = l.f.RC.PodLabelSet(p.PodID, m.Labels, p.OwnLabels)
		}
		if maps.Equal(labels, p.Labels) || l.startsBeside(p) {
			continue
		}
		if l.f.Hold != "" {
			l.waiting = true
			return
		}
		l.label(p, labels, p.OwnLabels, "its controller gives its pods other labels")
	}
}

// takesLabels reports whether a pod gets its controller's and manifest's present labels now.
func (l labelling) takesLabels(p *Pod) bool {
	return !l.f.keptAsAdopted(p) && (l.f.RC.InPlace == nil || l.f.current(p))
}

// maxAsked limits the requests that one change carries out, because a transaction has a largest size.
const maxAsked = 16

// carryOut gives pods the own labels that operators ask for. One change carries out the requests about a pod, in their
// order. A later pass carries out the requests beyond maxAsked. Requests wait while the pod has another change, and
// during a hold (R1).
func (l labelling) carryOut() {
	own, asked := map[pod.Identity]map[string]string{}, map[pod.Identity][]string{}
	for _, r := range l.f.Requests {
		if r.Label == nil || l.changed[r.Pod] || len(asked[r.Pod]) == maxAsked {
			continue // the next look
		}
		if l.f.Hold != "" {
			l.waiting = true
			continue
		}
		p := l.f.find(r.Pod)
		if why := l.unlabelled(p, r, own[r.Pod]); why != "" {
			l.void(&r, "label", why)
			continue
		}
		if own[r.Pod] == nil {
			own[r.Pod] = field.Merge(p.OwnLabels)
		}
		r.Label.On(own[r.Pod])
		asked[r.Pod] = append(asked[r.Pod], r.ID)
	}
	for p := range l.openRunning() {
		requests := asked[p.Identity]
		switch {
		case len(requests) == 0 || l.startsBeside(p):
		case maps.Equal(own[p.Identity], p.OwnLabels):
			l.plan.Answered = append(l.plan.Answered, requests...)
		default:
			ch := l.label(p, l.labelsWith(p, own[p.Identity]), own[p.Identity], "its own labels are changed, as asked")
			ch.Answers = requests
		}
	}
}

// unlabelled returns why a request is void, "" if it is not. own has the pod's own labels after the earlier requests;
// nil: there was none.
func (l labelling) unlabelled(p *Pod, r Request, own map[string]string) string {
	switch {
	case p == nil || p.Node != r.Node:
		return "the pod is not there any more"
	case p.RunState != pod.Running:
		return "the pod stops"
	case l.f.RC.DeletedAt != nil && !l.f.keptAsAdopted(p):
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

// On applies the change to a pod's own labels.
func (l *Labels) On(own map[string]string) {
	maps.Copy(own, l.Set)
	for _, key := range l.Remove {
		delete(own, key)
	}
}

// labelsWith returns the labels of a pod with other own labels. A pod that does not take its controller's labels now
// keeps the others that it has. A label of the controller that an own label has hidden appears when the pod takes its
// controller's labels again.
func (l labelling) labelsWith(p *Pod, own map[string]string) map[string]string {
	if m := l.f.ManifestOf(p.Digest); m != nil && !l.f.RC.Disabled && l.takesLabels(p) {
		return l.f.RC.PodLabelSet(p.PodID, m.Labels, own)
	}
	labels := field.Merge(p.Labels)
	for key := range p.OwnLabels {
		delete(labels, key)
	}
	maps.Copy(labels, own)
	return labels
}

// label plans and returns the change of a pod's labels, the last one in the plan.
func (l labelling) label(p *Pod, labels, own map[string]string, reason string) *Change {
	next := p.Placement
	next.Labels, next.OwnLabels, next.Revision = labels, own, p.nextRevision(l.f.Now)
	if len(own) == 0 {
		next.OwnLabels = nil
	}
	ch := p.change(Relabel, &next, reason)
	ch.NeedsSchema = true
	ch.setIntent(p.Node, next.Intent())
	l.add(ch)
	return &l.plan.Changes[len(l.plan.Changes)-1]
}
