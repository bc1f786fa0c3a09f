package inspect

import (
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// How bad a report about a pod is that is not available.
const (
	onItsWay = iota
	sick     // its check does not pass
	ended    // one of its processes has ended since it was started first
	failed
	crashLooping
)

func severity(r *pod.Reality) int {
	switch {
	case r.State == pod.StateCrashLooping:
		return crashLooping
	case r.State == pod.StateFailed:
		return failed
	case r.Restarts > 0:
		return ended
	case r.State == pod.StateUnhealthy:
		return sick
	default:
		return onItsWay
	}
}

// Failing returns the pod that is worst off of those that are to run a manifest and are not available, nil for none.
func Failing(placements []pod.Placement, realities map[store.At]pod.Reality, digest string) (worst *pod.Placement, says pod.Reality) {
	for i := range placements {
		p := &placements[i]
		r, reported := realities[store.At{Identity: p.Identity, Node: p.Node}]
		if !reported || p.RunState != pod.Running || p.Digest != digest || r.Revision < p.Revision || r.Available && r.Digest == digest {
			continue
		}
		if worst == nil || severity(&r) > severity(&says) {
			worst, says = p, r
		}
	}
	return worst, says
}

// LogsOf is the command that shows what a pod wrote.
func LogsOf(p *pod.Placement) string { return "rcctl logs " + PodName(p.PodID, p.Identity) }

// LastWords reports whether the end of a pod's log may say why it fails, and of which process; empty: of all of them. A pod that is on its
// way has written nothing of the kind.
func LastWords(p *pod.Placement, r *pod.Reality) (process string, is bool) {
	switch {
	case p == nil:
		return "", false
	case r.LastExit != nil:
		return r.LastExit.Launchable, true
	default:
		return "", r.State == pod.StateUnhealthy
	}
}
