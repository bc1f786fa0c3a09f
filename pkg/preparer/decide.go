package preparer

import (
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// IntentSet is what the node knows about its intents.
type IntentSet struct {
	// Known is false until the node has read all its intents. Until then, a missing intent means nothing.
	Known   bool
	Intents map[pod.Identity]pod.Intent
	// Unreadable has the identities whose intent this build does not understand, for example from a newer release.
	Unreadable map[pod.Identity]bool
	// Stops has the Consul indices of the intents with `stopped` or `standby`. Their pods are not available for the
	// minimum.
	Stops map[pod.Identity]uint64
	// Shut: the node accepts no intent, because pods could have written the intents.
	Shut bool
}

// Local is what the node has accepted for one identity.
type Local struct {
	Revision int64 // highest accepted revision
	Stop     bool  // the accepted intent has state stopped
	Stopped  bool  // no process runs, and the disk has the tombstone
}

// Verdict is what an intent, or a missing intent, means for its identity.
type Verdict string

// The verdicts. Only Accept can stop a process (P4).
const (
	NodeShut  Verdict = "bar"     // the intent is new, but the node is shut: the pod stays as it is
	Ignore    Verdict = "leave"   // the intent is unreadable, or an accepted stop continues
	Accept    Verdict = "accept"  // the intent is newer than every accepted intent: carry it out
	Unchanged Verdict = "agree"   // the intent asks for nothing new
	Orphan    Verdict = "orphan"  // there is no intent: the pod keeps running
	Ahead     Verdict = "regress" // the intent is older than the accepted intent: the pod is not changed
	Refuse    Verdict = "refuse"  // the intent would run a pod that was stopped at the same or a higher revision
	Forgotten Verdict = "gone"    // there is no intent, and the pod has stopped: its reality is not needed
)

// Decision is the verdict on one identity. Intent is zero if there is none.
type Decision struct {
	ID      pod.Identity
	Verdict Verdict
	Intent  pod.Intent
}

// Decide compares the node's intents with what it has accepted. It returns one decision for each identity, in order.
// While the intents are not known, it returns none.
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

func absent(l Local) Verdict {
	switch {
	case l.Stopped:
		return Forgotten
	case l.Stop:
		return Ignore // the node completes the accepted stop
	default:
		return Orphan
	}
}
