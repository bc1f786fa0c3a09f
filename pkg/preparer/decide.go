package preparer

import (
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// IntentSet is what is known of the node's intents.
type IntentSet struct {
	// Known is false until one whole answer was read. Then nothing follows from the absence of anything.
	Known bool
	// Intents are those that this build understands.
	Intents map[pod.Identity]pod.Intent
	// Unreadable are the identities whose intent exists and cannot be understood, as after a newer version wrote it.
	Unreadable map[pod.Identity]bool
	// Stops are the indices of the intents that say `stopped`, or `standby`: the pod counts for no minimum.
	Stops map[pod.Identity]uint64
	// Shut: whoever wrote an intent may have been a pod, so that none is accepted.
	Shut bool
}

// Local is what the node has accepted for one identity.
type Local struct {
	Revision int64 // highest accepted
	Stop     bool  // the accepted intent says stopped
	Stopped  bool  // and it is durably recorded that nothing of it runs: a tombstone
}

// Verdict is what one intent, or its absence, means for one identity.
type Verdict string

// The verdicts. None but Accept leads to any process being stopped (P4).
const (
	NodeShut  Verdict = "bar"     // the intent would be accepted, and the node is shut: the pod stays as it is
	Ignore    Verdict = "leave"   // nothing can be said; everything stays as it is
	Accept    Verdict = "accept"  // the intent is newer than everything accepted before: carry it out
	Unchanged Verdict = "agree"   // the intent is the accepted one
	Orphan    Verdict = "orphan"  // there is no intent: the pod keeps running
	Ahead     Verdict = "regress" // the intent is older than the accepted one: the pod keeps running as accepted
	Refuse    Verdict = "refuse"  // the intent wants to run what was stopped at the same or a higher revision
	Forgotten Verdict = "gone"    // there is no intent, and the pod was stopped: its reality has served its purpose
)

// Decision is the verdict on one identity. Intent is the zero value where there is none.
type Decision struct {
	ID      pod.Identity
	Verdict Verdict
	Intent  pod.Intent
}

// Decide compares what the node was told with what it has accepted, one decision per identity, in order. From intents
// that are not known nothing follows.
func Decide(w IntentSet, local map[pod.Identity]Local) []Decision {
	if !w.Known {
		return nil
	}
	ids := slices.AppendSeq(slices.Collect(maps.Keys(local)), maps.Keys(w.Intents))
	slices.SortFunc(ids, pod.Identity.Compare)
	ids = slices.Compact(ids)
	out := make([]Decision, len(ids))
	for i, id := range ids {
		l, known := local[id]
		in, asked := w.Intents[id]
		out[i] = Decision{ID: id, Intent: in}
		switch {
		case w.Unreadable[id]:
			out[i].Verdict = Ignore
		case asked && (!known || in.Revision > l.Revision) && w.Shut:
			out[i].Verdict = NodeShut
		case asked && (!known || in.Revision > l.Revision):
			out[i].Verdict = Accept
		case asked:
			out[i].Verdict = older(in, l)
		default:
			out[i].Verdict = absent(l)
		}
	}
	return out
}

// older judges an intent whose revision is not above the accepted one.
func older(in pod.Intent, l Local) Verdict {
	switch {
	case l.Stop && in.State == pod.Running:
		return Refuse
	case l.Stop || in.Revision == l.Revision:
		return Unchanged
	default:
		return Ahead
	}
}

// absent judges a missing intent.
func absent(l Local) Verdict {
	switch {
	case l.Stopped:
		return Forgotten
	case l.Stop:
		return Ignore // the accepted stop is carried to its end
	default:
		return Orphan
	}
}
