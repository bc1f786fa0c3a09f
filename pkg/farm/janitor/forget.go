package janitor

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Reason is why the records of a node stay although its machine has been gone for long enough.
type Reason string

// The reasons.
const (
	KeptByAgent   Reason = "agent"   // its Consul agent lives, or nobody can tell
	KeptByPods    Reason = "pods"    // pods are placed there, or have left it without a confirmed stop
	KeptByClaims  Reason = "claims"  // something is reserved there
	KeptByRecords Reason = "records" // intents, or reports of pods that have not stopped, are left; or something cannot be read
	KeptByOrphans Reason = "orphans" // it ran pods without an intent when it was heard last, or has not said what it runs since the records are what they are
	KeptByFleet   Reason = "fleet"   // most nodes are gone, or not all of those that live have said what they run
	KeptByPace    Reason = "pace"    // others go first
)

// Reasons are all of them.
var Reasons = []Reason{KeptByAgent, KeptByPods, KeptByClaims, KeptByRecords, KeptByOrphans, KeptByFleet, KeptByPace}

// maxNoted bounds how many nodes are noted as gone at once: they share one record.
const maxNoted = 1000

// Fleet is all nodes at one moment.
type Fleet struct {
	Nodes  map[string]*node.View
	Synced bool // every node that lives has said what it runs in this world
	Now    time.Time
	Passed time.Duration // since this leader has looked last, as far as it counts
}

// Deaths returns what is to be noted of the nodes that nobody holds, given what was noted before. A node that has been held since, which the
// index of its record tells, begins anew.
func (f *Fleet) Deaths(before map[string]store.Death) map[string]store.Death {
	noted, fresh := map[string]store.Death{}, []string{}
	for name, v := range f.Nodes {
		switch was, known := before[name]; {
		case v.Alive:
		case known && was.Index == v.FreeIndex:
			was.SeenMS = min(was.SeenMS+f.Passed.Milliseconds(), store.MaxSeenMS)
			noted[name] = was
		default:
			fresh = append(fresh, name)
		}
	}
	slices.Sort(fresh)
	for _, name := range fresh[:min(len(fresh), max(0, maxNoted-len(noted)))] {
		noted[name] = store.Death{Index: f.Nodes[name].FreeIndex, Since: f.Now}
	}
	return noted
}

// Due returns the nodes that have been seen gone for that long, the longest first.
func Due(noted map[string]store.Death, after time.Duration) []string {
	due := slices.DeleteFunc(slices.Collect(maps.Keys(noted)), func(name string) bool { return noted[name].SeenMS < after.Milliseconds() })
	slices.SortFunc(due, func(a, b string) int { return cmp.Or(cmp.Compare(noted[b].SeenMS, noted[a].SeenMS), cmp.Compare(a, b)) })
	return due
}

// Sound reports whether any node may be forgotten. Where most are gone it is not they that are, but what is known of them: the servers were
// away, the network is cut, the store is another one. Those that operators have drained are expected to go.
func (f *Fleet) Sound() bool {
	living, dead := 0, 0
	for _, v := range f.Nodes {
		switch {
		case v.Alive:
			living++
		case !v.MustLeave():
			dead++
		}
	}
	return f.Synced && living > dead
}

// Quota is how many nodes may be forgotten in one look: one of a hundred, and one at least.
func (f *Fleet) Quota() int { return max(1, len(f.Nodes)/100) }

// keeps returns why the records of a node stay, "" if they may go as far as the store knows. Of one that has not spoken under the epoch the store may be
// too old to know.
func keeps(v *node.View, left store.LeftOn, epoch string) Reason {
	switch {
	case left.Copies > 0:
		return KeptByPods
	case left.Claims > 0:
		return KeptByClaims
	case left.Unreadable != nil || left.Intents+left.Reports > 0:
		return KeptByRecords
	case !v.Spoke(epoch) || len(v.Orphans)+v.OrphansLeftOut > 0:
		return KeptByOrphans
	default:
		return ""
	}
}
