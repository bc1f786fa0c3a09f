package reconcile

import "maps"

// labelling gives pods the labels that their controller has for them by now.
type labelling struct{ *draft }

// relabel writes labels of running pods anew where pod_labels have changed. A revision without a new digest restarts
// nothing, and ChangedAt stays, because nothing else about the pod has changed. A pod that was found running stays as it
// is. In an upgrade in place a pod gets them with its manifest, when its turn comes.
func (c labelling) relabel() {
	type kind struct{ digest, podID string }
	byKind := map[kind]map[string]string{} // pods are many and kinds are few
	for p := range c.openRunning() {
		m := c.s.ManifestOf(p.Digest)
		if m == nil || c.s.stays(p) || c.s.RC.InPlace != nil && !c.s.current(p) {
			continue
		}
		of := kind{p.Digest, p.PodID}
		labels := byKind[of]
		if labels == nil {
			labels = c.s.RC.PodLabelSet(p.PodID, m.Labels)
			byKind[of] = labels
		}
		if maps.Equal(labels, p.Labels) || c.startsBeside(p) {
			continue
		}
		if c.s.Hold != "" {
			c.waiting = true
			return
		}
		next := p.Placement
		next.Labels, next.Revision = labels, p.nextRevision(c.s.Now)
		in := next.Intent()
		c.add(Change{
			Action: Relabel, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: "its controller gives its pods other labels",
			NeedsSchema: true, Intents: []IntentChange{{Node: p.Node, Intent: &in}},
		})
	}
}
