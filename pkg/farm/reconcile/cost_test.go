package reconcile_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// many returns a snapshot of a controller with n available pods on as many nodes, whose operators have set labels.
func many(n int, change func(s *reconcile.Snapshot)) *reconcile.Snapshot {
	now, desired := time.Unix(1_700_000_000, 0), n
	s := &reconcile.Snapshot{
		Now: now, Owner: "f1", Nodes: map[string]*node.View{}, Manifest: &manifest.Manifest{Version: 1, ID: "p"},
		RC: rc.RC{
			ID: "rc", Name: "rc", ManifestDigest: "m1", Strategy: rc.Dynamic, Generation: 1,
			NodeSelector:  "zone in (a, b), disk=ssd, !broken",
			ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &desired}},
		},
	}
	for i := range n {
		name := fmt.Sprintf("n%05d", i)
		s.Nodes[name] = &node.View{
			Node:  node.Node{Name: name, Labels: map[string]string{"zone": "a", "disk": "hdd", "rack": "r1"}},
			Alive: true,
			Ops:   node.Ops{Labels: map[string]string{"disk": "ssd"}},
		}
		id := pod.Identity{RCID: "rc", Role: "main", Index: i}
		p := pod.Placement{
			Identity: id, Node: name, Digest: "m1", RunState: pod.Running, Revision: 7, ChangedAt: now.Add(-time.Hour),
		}
		r := pod.Reality{Identity: id, Node: name, Digest: "m1", Revision: 7, State: pod.StateReady, Available: true}
		s.Pods = append(s.Pods, reconcile.Pod{Placement: p, Index: 1, Reality: &r})
	}
	change(s)
	return s
}

// allocated returns what a function allocates, in objects and bytes. Tests that use it must not run in parallel.
func allocated(run func()) (objects, bytes float64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs - before.Mallocs), float64(after.TotalAlloc - before.TotalAlloc)
}

// The cost of a decision for each pod must not grow with the number of pods. Looking at a pod takes a few objects: no
// selector is parsed and no labels are copied for it.
func TestTheCostOfAPodIsConstant(t *testing.T) {
	const few, lot, objectsPerPod = 500, 4000, 12
	for name, change := range map[string]func(s *reconcile.Snapshot){
		"nothing to do": func(*reconcile.Snapshot) {},
		"scaled down": func(s *reconcile.Snapshot) {
			least, want := len(s.Pods)-1, len(s.Pods)/2 // the minimum lets one pod stop
			s.RC.MinAvailable, s.RC.ReplicaGroups[0].Count = &least, &want
			s.RC.ReplicaGroups = append(s.RC.ReplicaGroups, rc.ReplicaGroup{Role: "other", Count: &want})
		},
		"all misplaced": func(s *reconcile.Snapshot) { s.RC.NodeSelector = "zone=c" },
		"half of the nodes lost": func(s *reconcile.Snapshot) {
			for i := range s.Pods[:len(s.Pods)/2] {
				s.Nodes[s.Pods[i].Node].Alive, s.Nodes[s.Pods[i].Node].MachineLost = false, true
			}
		},
		"replaced": func(s *reconcile.Snapshot) {
			since := s.Now.Add(-time.Hour)
			for i := range s.Pods[:len(s.Pods)/2] {
				s.Nodes[s.Pods[i].Node].Alive, s.Nodes[s.Pods[i].Node].MachineLost = false, true
				s.Pods[i].LostSince = &since
			}
		},
		"all drained": func(s *reconcile.Snapshot) {
			for _, v := range s.Nodes {
				v.Ops.Drain = &node.Drain{}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cost := func(n int) (objects, bytes float64) {
				s := many(n, change)
				objects, bytes = allocated(func() { reconcile.Compute(s) })
				return objects / float64(n), bytes / float64(n)
			}
			objects, bytes := cost(few)
			moreObjects, moreBytes := cost(lot)
			if moreObjects > 1.5*objects || moreBytes > 2*bytes {
				t.Errorf("%d pods: %.1f objects and %.0f bytes each; %d pods: %.1f and %.0f", few, objects, bytes, lot,
					moreObjects, moreBytes)
			}
			if moreObjects > objectsPerPod {
				t.Errorf("%.1f objects for each pod, want at most %d", moreObjects, objectsPerPod)
			}
		})
	}
}

func BenchmarkScaleDown(b *testing.B) {
	for _, n := range []int{1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := many(n, func(s *reconcile.Snapshot) {
				want := len(s.Pods) / 2
				s.RC.MinAvailable, s.RC.ReplicaGroups[0].Count = &want, &want
			})
			b.ReportAllocs()
			for b.Loop() {
				reconcile.Compute(s)
			}
		})
	}
}

// BenchmarkPlace finds nodes for pods. The time for each pod must not grow with their number.
func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{1000, 5000, 20000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := many(n, func(s *reconcile.Snapshot) { want := 2 * len(s.Pods); s.RC.ReplicaGroups[0].Count = &want })
			plan := reconcile.Compute(s)
			b.ReportAllocs()
			for b.Loop() {
				for _, id := range plan.Adds {
					plan.Placer().On(id, "n00000")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(plan.Adds)), "ns/pod")
		})
	}
}
