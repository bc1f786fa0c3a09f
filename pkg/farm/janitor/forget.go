package janitor

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Reason is why the leader keeps the records of a node whose machine has been gone for long enough.
type Reason string

// The reasons.
const (
	KeptByAgent  Reason = "agent"  // its Consul agent lives, or the leader does not know whether it lives
	KeptByPods   Reason = "pods"   // pods are placed there, or have moved off it and their stop is not confirmed
	KeptByClaims Reason = "claims" // its reservation has shares
	// it has intents, or reports of pods that have not stopped, or a record is unreadable
	KeptByRecords Reason = "records"
	KeptByOrphans Reason = "orphans" // its last record has orphans, or it has not spoken in this epoch
	KeptByFleet   Reason = "fleet"   // Cluster.Sound: too many nodes are gone, or some living nodes have not spoken
	KeptByPace    Reason = "pace"    // other nodes are removed first, or the removal did not land
)

// Reasons has all reasons.
var Reasons = []Reason{KeptByAgent, KeptByPods, KeptByClaims, KeptByRecords, KeptByOrphans, KeptByFleet, KeptByPace}

// maxNoted limits the gone nodes in one record.
const maxNoted = 1000

// Cluster is all nodes at one moment.
type Cluster struct {
	Nodes  map[string]*node.View
	Synced bool // every living node has spoken in this epoch
	Now    time.Time
	Passed time.Duration // time to add for each node that stays gone; see Forgetter.passed
}

// Deaths returns the nodes whose lock no preparer holds, with the time for which leaders have seen them gone, counted
// on from before. It starts again if a preparer has held the lock since: the index has changed.
func (f *Cluster) Deaths(before map[string]store.Death) map[string]store.Death {
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

// Due returns the nodes that are gone for at least after, the longest first.
func Due(noted map[string]store.Death, after time.Duration) []string {
	due := slices.DeleteFunc(slices.Collect(maps.Keys(noted)), func(name string) bool {
		return noted[name].SeenMS < after.Milliseconds()
	})
	slices.SortFunc(due, func(a, b string) int {
		return cmp.Or(cmp.Compare(noted[b].SeenMS, noted[a].SeenMS), cmp.Compare(a, b))
	})
	return due
}

// Sound reports whether any node may be forgotten. If most nodes seem to be gone, it is more likely that Consul's
// servers were away, the network is cut, or the store was restored. Dead nodes that are drained are left out, because
// operators expect them to go.
func (f *Cluster) Sound() bool {
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

// Quota is how many nodes may be forgotten in one look.
func (f *Cluster) Quota() int { return max(1, len(f.Nodes)/100) }

// keeps returns why the records of a node are kept, "" for no reason. If it has not reported in this epoch, the store
// may be older than its pods.
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
