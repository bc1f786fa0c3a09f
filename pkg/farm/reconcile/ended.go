package reconcile

import "github.com/rcfarm/rcfarm/pkg/pod"

// ended reports whether a pod that is to run, and runs once, has ended where it is placed. Its node runs that digest no
// more at whatever revision, and what the node said last holds for as long as it is silent, because an end is not taken
// back.
func (s *Snapshot) ended(p *Pod) bool {
	m := s.ManifestOf(p.Digest)
	return p.RunState == pod.Running && m != nil && m.RunsOnce() && p.Reality.Ended(p.Digest)
}

// endedWell reports whether a pod has ended with status 0: then it has done what it is for.
func (s *Snapshot) endedWell(p *Pod) bool { return s.ended(p) && p.Reality.State == pod.StateEnded }

// rests reports whether a pod stays where it has ended, whatever becomes of its node: elsewhere the same version would
// run again. Another manifest asks for another run, so that such a pod is moved and replaced like any other.
func (s *Snapshot) rests(p *Pod) bool { return s.ended(p) && s.digestFor(&p.Placement) == p.Digest }
