package preparer

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// orphans lists the pods that run without a matching intent, in order. The caller holds p.mu.
func (p *Preparer) orphans() (listed []pod.Orphan) {
	for _, e := range p.pods {
		if o, is := e.orphan(); is {
			listed = append(listed, o)
		}
	}
	slices.SortFunc(listed, func(a, b pod.Orphan) int { return a.Compare(b.Identity) })
	return listed
}

func (e *entry) orphan() (pod.Orphan, bool) {
	var reason string
	switch e.standing.verdict {
	case Orphan:
		reason = pod.ReasonOrphaned
	case Regress:
		reason = pod.ReasonRegressed
	default:
		return pod.Orphan{}, false
	}
	rec := e.rec
	if e.want != nil {
		rec = rec.accept(*e.want)
	}
	if rec.Intent.State == pod.Stopped {
		return pod.Orphan{}, false
	}
	digest, ports := rec.runs()
	o := pod.Orphan{
		Identity: rec.Intent.Identity, PodID: rec.Intent.PodID, Digest: digest, Revision: rec.Intent.Revision, Ports: ports, Reason: reason,
	}
	if m := e.manifest(); m != nil {
		res := m.Resources()
		o.CPU, o.Memory = res.CPU, res.Memory
	}
	return o, true
}
