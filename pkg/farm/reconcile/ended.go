package reconcile

import "github.com/rcfarm/rcfarm/pkg/pod"

// ended reports whether a pod that runs once has ended on its node. The node never runs that digest again, so its last
// report stays valid when it is silent.
func (f *Facts) ended(p *Pod) bool {
	m := f.ManifestOf(p.Digest)
	return p.RunState == pod.Running && m != nil && m.RunsOnce() && p.Reality.Ended(p.Digest)
}

func (f *Facts) endedWell(p *Pod) bool { return f.ended(p) && p.Reality.State == pod.StateEnded }

// finished reports whether a pod is kept on the node where it has ended, even if the node is lost or drained: another
// node would run the same version again. With another manifest the pod has to run again.
func (f *Facts) finished(p *Pod) bool { return f.ended(p) && f.digestFor(&p.Placement) == p.Digest }
