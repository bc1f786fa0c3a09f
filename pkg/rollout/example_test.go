package rollout_test

import (
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// A program carries out a rollout from two pods to two pods of another version. Its pods are available at once.
func ExampleDecide() {
	now, epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), "e1"
	revision := func(n int64, pods int) rc.RC {
		return rc.RC{
			ID: rc.RevisionID(unit, n), Name: fmt.Sprintf("web-r%d", n), ManifestDigest: fmt.Sprintf("d%d", n),
			ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &pods}}, Strategy: rc.Dynamic,
			Service: &rc.Service{Name: "web", Revision: n}, Generation: 1,
		}
	}
	reported := func(r rc.RC) *rc.Status { // the report of an owner whose pods have followed the counts
		n := r.Desired()
		return &rc.Status{
			RCID: r.ID, ObservedGeneration: r.Generation, Epoch: epoch, Desired: n, Placed: n, Available: n,
		}
	}
	old := revision(1, 2)
	started, err := rollout.Begin(rollout.Start{
		ID: "01m82rq476dk3dzcatmcv2vmc5", Service: "web", By: "ann", Now: now, Epoch: epoch, New: revision(2, 2),
		Old: []rollout.Seen{{RC: old, Status: reported(old)}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	rcs := map[string]rc.RC{}
	write := func(changed []rc.RC) {
		for _, r := range changed {
			rcs[r.ID] = r
		}
	}
	write(started.RCs)
	record := started.Record
	for {
		seen := rollout.Observed{Now: now, Epoch: epoch, Revisions: map[string]rollout.Seen{}}
		for id, r := range rcs {
			seen.Revisions[id] = rollout.Seen{RC: r, Status: reported(r)}
		}
		d := rollout.Decide(record, seen)
		record = d.Record
		write(d.RCs)
		one, two := rcs[rc.RevisionID(unit, 1)], rcs[rc.RevisionID(unit, 2)]
		fmt.Printf("stage %d, %s: %d old pods, %d new ones\n", record.Stage, record.Phase, one.Desired(), two.Desired())
		if d.Ended {
			fmt.Println(record.State)
			return
		}
	}
	// Output:
	// stage 1, moving: 2 old pods, 1 new ones
	// stage 1, moving: 1 old pods, 1 new ones
	// stage 2, moving: 1 old pods, 2 new ones
	// stage 2, moving: 0 old pods, 2 new ones
	// stage 2, ending: 0 old pods, 2 new ones
	// done
}
