package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

var explainNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// well is a controller of two replicas that has converged. Each case spoils it.
func well() *Situation {
	two := 2
	s := &Situation{
		Now: explainNow,
		RC: rc.RC{
			ID: "01", Name: "web", Generation: 3, ManifestDigest: "d", NodeSelector: "rack=a", Strategy: rc.Dynamic,
			ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &two}},
		},
		Status: &rc.Status{
			ObservedGeneration: 3, Desired: 2, Placed: 2, Available: 2, Owner: "f1",
			Conditions: []rc.Condition{{Type: rc.Converged, True: true}},
		},
		Manifest: &manifest.Manifest{ID: "web", Ports: []manifest.Port{{Name: "http", Port: 80}}},
		Pods:     Pods{Realities: map[store.At]pod.Reality{}},
		Nodes:    map[string]*node.View{}, Taken: map[string]node.Reservation{},
		Farms: []store.Member{{ID: "f1", Address: "127.0.0.1:7460"}}, Owner: "f1", Breaker: &store.Breaker{},
	}
	for i, name := range []string{"n1", "n2"} {
		id := pod.Identity{RCID: "01", Role: "main", Index: i}
		s.Nodes[name] = &node.View{Node: node.Node{
			Name: name, Labels: map[string]string{"rack": "a"}, Capacity: node.Capacity{Slots: 1},
		}, Alive: true}
		s.Taken[name] = node.Reservation{Claims: map[string]node.Claim{id.String(): {Ports: []int{80}}}}
		s.Placements = append(s.Placements,
			pod.Placement{Identity: id, Node: name, PodID: "web", Digest: "d", RunState: pod.Running, Revision: 1})
		s.Realities[store.At{Identity: id, Node: name}] = pod.Reality{
			Identity: id, Node: name, Digest: "d",
			Revision: 1, State: pod.StateReady, Available: true,
		}
	}
	return s
}

// once gives the pods a manifest with which they run once.
func (s *Situation) once() {
	s.Manifest.Launchables = []manifest.Launchable{{Restart: &manifest.Restart{Policy: manifest.RestartNever}}}
}

// not sets a status in which Converged is false, and one other condition is true.
func (s *Situation) not(t rc.ConditionType, reason string) {
	s.Status.Conditions = []rc.Condition{
		{Type: rc.Converged, Reason: "1 of 2 replicas available"},
		{Type: t, True: true, Reason: reason},
	}
}

// report changes the report about the first pod, and sets a status that is not converged.
func (s *Situation) report(change func(*pod.Reality)) {
	s.not(rc.Converged, "")
	s.Status.Conditions = s.Status.Conditions[:1]
	at := store.At{Identity: s.Placements[0].Identity, Node: "n1"}
	r := s.Realities[at]
	change(&r)
	s.Realities[at] = r
}

func explainCases() map[string]struct {
	spoil func(*Situation)
	says  []string // in this order
	not   string
} {
	before := explainNow.Add(-10 * time.Second)
	long := explainNow.Add(-time.Hour)
	return map[string]struct {
		spoil func(*Situation)
		says  []string
		not   string
	}{
		"converged": {func(*Situation) {}, []string{"It has converged: 2 of 2 replicas available."}, "Next"},
		"no farm": {
			func(s *Situation) { s.Farms = nil },
			[]string{"(Unclaimed)", "No farm is running", "Start a farm"},
			"owns it",
		},
		"no farm selects it": {
			func(s *Situation) { s.Farms[0].RCSelector = "env=prod" },
			[]string{
				"No running farm selects it: its labels are none, the farms select env=prod (f1)",
				"--rc-selector",
			},
			"",
		},
		"nobody owns it": {
			func(s *Situation) { s.Owner = ""; s.Status = nil },
			[]string{"(Pending)", "No farm owns it at this moment", "Wait a few seconds"},
			"",
		},
		"not seen yet": {
			func(s *Situation) { s.RC.Generation = 4 },
			[]string{
				"Farm f1 owns it and has not reported on generation 4 yet (it has seen 3)",
				"debug server 127.0.0.1:7460",
			},
			"",
		},
		"never reported": {func(s *Situation) { s.Status = nil }, []string{"(it has seen 0)"}, ""},
		"no manifest": {
			func(s *Situation) { s.Manifest = nil; s.not(rc.Unreadable, "x") },
			[]string{"The manifest d that it asks for is missing", "rcctl apply -f FILE"},
			"",
		},
		"unreadable": {func(s *Situation) {
			s.Status.LastError = "unreadable record x/pods/y"
			s.not(rc.Unreadable, "")
		}, []string{
			"could not read all of its records: unreadable record x/pods/y.", "Correct, remove",
		}, ""},
		"panicked": {func(s *Situation) {
			panicked := &contain.Panic{
				Value: strings.Repeat("x", 1000), Stack: "panic(\n\n\n\n/" + strings.Repeat("y", 999),
			}
			s.Status.LastError = reconcile.Few([]string{rc.CannotWork + panicked.Error()})
			s.not(rc.Unreadable, "")
		}, []string{
			"Its farm cannot work on it: panic: xxx", "Its pods run on. Report the defect", "rcctl audit --rc web",
		}, ""},
		"deleted": {
			func(s *Situation) { s.RC.DeletedAt = &before },
			[]string{"(Deleting)", "marked for deletion at 2026-01-02T03:03:55Z; 2 pods are left", "--until Gone"},
			"",
		},
		"disabled": {
			func(s *Situation) { s.RC.Disabled = true },
			[]string{"(Disabled)", "It is disabled", "rcctl rc enable web"},
			"",
		},
		"breaker": {
			func(s *Situation) {
				s.Breaker = &store.Breaker{Tripped: true, By: "f2", Since: before, Reason: "12 of 20"}
				s.not(rc.BreakerTripped, "x")
			},
			[]string{
				"Farm f2 tripped the mass-stop breaker at 2026-01-02T03:03:55Z (12 of 20), so nothing is stopped.",
				"rcctl audit",
				"--allow-mass-stop", "rcctl farm resume",
			},
			"",
		},
		"deleted while the breaker holds back its stops": {
			func(s *Situation) {
				s.Breaker = &store.Breaker{Tripped: true, By: "f2", Since: before, Reason: "12 of 20"}
				s.RC.DeletedAt = &before
			},
			[]string{
				"tripped the mass-stop breaker", "rcctl rc delete web --allow-mass-stop); then: rcctl farm resume",
				"It was marked for deletion",
			},
			"",
		},
		"breaker, of no concern": {
			func(s *Situation) { s.Breaker = &store.Breaker{Tripped: true} },
			[]string{"It has converged"},
			"breaker",
		},
		"breaker missing": {func(s *Situation) { s.Breaker = nil }, []string{"breaker is missing or unreadable"}, ""},
		"holding": {
			func(s *Situation) { s.not(rc.Holding, "waiting for nodes to report: n9") },
			[]string{"Nothing is added for now: waiting for nodes to report: n9.", "look at its preparer"},
			"",
		},
		"regressed": {
			func(s *Situation) { s.not(rc.Regressed, "2 pods") },
			[]string{"stay as they are: 2 pods.", "rcctl apply"},
			"",
		},
		"blocked, another manifest helps": {
			func(s *Situation) {
				s.report(func(r *pod.Reality) { r.State, r.Available = pod.StateCrashLooping, false })
				s.not(rc.Blocked, "main.0 failed")
			},
			[]string{
				"It is blocked: main.0 failed.",
				"Next: Apply a manifest that works; its log: rcctl logs web-main-0\n",
				"2. web-main-0 on n1 is crash-looping",
			},
			"min_available",
		},
		"blocked, it has ended once": {
			func(s *Situation) {
				s.report(func(r *pod.Reality) { r.State, r.Available, r.Restarts = pod.StateRunning, false, 1 })
				s.not(rc.Blocked, "main.0 failed")
			},
			[]string{
				"Next: Apply a manifest that works; its log",
				"It has ended before; its log: rcctl logs web-main-0",
			},
			"min_available",
		},
		"blocked, slow": {
			func(s *Situation) {
				s.report(func(r *pod.Reality) { r.State, r.Available = pod.StateUnhealthy, false })
				s.not(rc.Blocked, "main.0 failed")
			},
			[]string{"Apply a manifest that works, or give it more time with progress_deadline; its log: rcctl " +
				"logs web-main-0"},
			"min_available",
		},
		"blocked by the minimum": {
			func(s *Situation) { s.not(rc.Blocked, "no room"); s.Status.Available = 1 },
			[]string{"It is blocked: no room.", "Next: Lower min_available, or add replicas."},
			"manifest",
		},
		"blocked by a drain": {
			func(s *Situation) {
				s.not(rc.Blocked, "main.0 must leave n1")
				s.Nodes["n1"].Ops.Drain = &node.Drain{Since: before}
			},
			[]string{
				"It is blocked: main.0 must leave n1.",
				"Next: Lower min_available, allow a max_surge, or end the drain: rcctl node undrain n1",
			},
			"manifest",
		},
		"blocked, the node is full": {
			func(s *Situation) { s.not(rc.Blocked, "n1 has no room") },
			[]string{"rcctl pods --node NODE"},
			"manifest",
		},
		"crash-looping": {
			func(s *Situation) {
				s.report(func(r *pod.Reality) { r.State, r.Available, r.Restarts = pod.StateCrashLooping, false, 7 })
				s.not(rc.CrashLooping, "1 pod")
			},
			[]string{
				"It has not converged (CrashLooping)", "web-main-0 on n1 is crash-looping, restarted 7 times.",
				"Next: Apply a manifest that works; its log: rcctl logs web-main-0",
			},
			"on its way",
		},
		"the scheduler fails": {
			func(s *Situation) { s.not(rc.SchedulerFailing, "1 of 2 replicas have no node: dial tcp: refused") },
			[]string{
				"(SchedulerFailing)",
				"(farm --scheduler-url) does not help: 1 of 2 replicas have no node: dial tcp: refused.",
				"asks again within 15 s",
			},
			"",
		},
		"the books differ": {
			func(s *Situation) { s.not(rc.BooksDiffer, "n1 has 1 of main.0") },
			[]string{
				"(BooksDiffer)", "books differ from what is placed: n1 has 1 of main.0.",
				"asks it again by itself",
			},
			"",
		},
		"outdated": {
			func(s *Situation) { s.report(func(*pod.Reality) {}); s.Placements[0].Digest = "old" },
			[]string{"1 pod is still on another manifest", "Wait"},
			"",
		},
		"rollout": {func(s *Situation) {
			s.report(func(*pod.Reality) {})
			s.Placements[0].Digest = "old"
			s.Rollout = "r7"
		}, []string{"rollout r7 is in charge"}, "one at a time"},
		"no nodes": {
			func(s *Situation) { s.not(rc.InsufficientNodes, "x"); s.Nodes = nil; s.Placements = nil },
			[]string{"There is no node at all.", "Start a preparer"},
			"",
		},
		"nodes of all kinds": {func(s *Situation) {
			s.not(rc.InsufficientNodes, "1 of 2 replicas have no node; of 6 nodes, these take none: x")
			s.Placements = s.Placements[:1]
			add := func(name string, change func(*node.View)) {
				v := &node.View{Node: node.Node{
					Name: name, Labels: map[string]string{"rack": "a"}, Capacity: node.Capacity{Slots: 9},
				}, Alive: true}
				change(v)
				s.Nodes[name] = v
			}
			s.Nodes["n1"].Capacity.Slots = 5
			delete(s.Nodes, "n2")
			add("other", func(v *node.View) { v.Labels = nil })
			add("dead", func(v *node.View) { v.Alive = false })
			add("drained", func(v *node.View) { v.Ops.Drain = &node.Drain{} })
			add("cordoned", func(v *node.View) { v.Ops.Unschedulable = true })
			add("full", func(v *node.View) { v.Capacity.Slots = 0 })
		}, []string{
			"1. 1 of 2 replicas have no node.", `(1 of 6) have labels that its selector "rack=a" does not match: other.`,
			"rcctl label node",
			"have no living preparer: dead.", "are drained or cordoned: cordoned, drained.", "rcctl node undrain",
			"no slot, CPU or memory left for it: full.",
			"have its port taken by another pod: n1.",
		}, "these take none"},
		"waits for the service": {
			func(s *Situation) { s.not(rc.WaitsForService, "1 replicas wait: x") },
			[]string{
				"It waits for the other revisions of its service: 1 replicas wait: x.",
				"Wait; if one of them holds",
			},
			"",
		},
		"its mode changes": {
			func(s *Situation) {
				s.Rollout, s.Status.Placed, s.RC.InPlace = "r7", 1, &rc.InPlace{Limit: 1, Keep: new(0)}
				s.report(func(*pod.Reality) {})
			},
			[]string{
				"Its mode changes in stages: it has 1 pods on the way to 2; rollout r7 is in charge of that.",
				"Look at the rollout.",
			},
			"",
		},
		"its mode has changed": {
			func(s *Situation) {
				s.Rollout, s.RC.InPlace = "r7", &rc.InPlace{Limit: 1, Keep: new(0)}
				s.report(func(*pod.Reality) {})
			},
			nil, "Its mode changes",
		},
		"its mode changes no more": {
			func(s *Situation) {
				s.Status.Placed, s.RC.InPlace = 1, &rc.InPlace{Limit: 1, Keep: new(0)}
				s.report(func(*pod.Reality) {})
			},
			nil, "Its mode changes",
		},
		"the rollout is gone": {
			func(s *Situation) { s.not(rc.RolloutGone, "2 of 3 x") },
			[]string{"Its upgrade in place has stopped midway: 2 of 3 x.", "Deploy the service again."},
			"",
		},
		"the rollout is stuck": {func(s *Situation) { s.not(rc.RolloutStuck, "x") }, []string{
			"The rollout of its service waits for longer than its stage_timeout: x.",
			"Look at it: rcctl rollout status SERVICE. It goes on",
		}, ""},
		"the rollout has trouble": {
			func(s *Situation) {
				s.not(rc.RolloutTrouble, "x")
				s.RC.Service = &rc.Service{Name: "shop", Revision: 2}
			},
			[]string{
				"The rollout of its service needs somebody: x.",
				"See why: rcctl history shop; while it is under way: rcctl rollout status shop.",
			},
			"",
		},
		"something else has the port": {
			func(s *Situation) {
				s.not(rc.InsufficientNodes, "x")
				for _, v := range s.Nodes {
					v.PortsInUse = []int{80}
				}
				s.Taken = nil
			},
			[]string{
				"have another program that listens on its port: n1, n2.", "rcctl nodes -o wide",
				"choose another port",
			},
			"Add a node",
		},
		"the range is full": {
			func(s *Situation) {
				s.not(rc.InsufficientNodes, "x")
				s.Manifest.Ports = []manifest.Port{{Name: "http", Dynamic: true}}
				for _, v := range s.Nodes {
					v.Capacity.Slots = 9
				}
			},
			[]string{"have too few free ports in the range for its dynamic ports: n1, n2.", "--port-min, --port-max"},
			"cannot share",
		},
		"max per node": {
			func(s *Situation) { s.not(rc.InsufficientNodes, "x"); s.RC.MaxPerNode = 1 },
			[]string{"as many of its pods as max_per_node allows: n1, n2.", "raise max_per_node"},
			"",
		},
		"room by now": {func(s *Situation) {
			s.not(rc.InsufficientNodes, "1 of 2 replicas have no node; of 2 nodes, these take none: ports: 2")
			s.Nodes["n3"] = &node.View{Node: node.Node{
				Name:   "n3",
				Labels: map[string]string{"rack": "a"}, Capacity: node.Capacity{Slots: 1},
			}, Alive: true}
		}, []string{"these take none: ports: 2.", "These nodes have capacity now: n3."}, ""},
		"a scheduler refuses": {func(s *Situation) {
			s.not(rc.InsufficientNodes,
				"1 of 2 replicas have no node; of 3 nodes, these take none: kept free: 1, licence: host, not pod: 2, "+
					"selector: 1")
			s.Nodes["n3"] = &node.View{Node: node.Node{
				Name:   "n3",
				Labels: map[string]string{"rack": "a"}, Capacity: node.Capacity{Slots: 1},
			}, Alive: true}
		}, []string{
			"Its scheduler refuses nodes for reasons of its own: kept free: 1, licence: host, not pod: 2. By the " +
				"farm's own rule, these nodes have capacity: n3.", "Look at the scheduler's log",
			"have its port taken by another pod: n1, n2.",
		}, "have capacity now"},
		"a scheduler refuses, and nothing has room": {
			func(s *Situation) {
				s.not(rc.InsufficientNodes,
					"1 of 2 replicas have no node; of 2 nodes, these take none: kept free: 1, ports: 1")
			},
			[]string{
				"Its scheduler refuses nodes for a reason of its own: kept free: 1.", "Look at the scheduler",
				"have its port taken by another pod: n1, n2.",
			},
			"have capacity",
		},
		"the farm's own reasons": {func(s *Situation) {
			s.not(rc.InsufficientNodes,
				"1 of 2 replicas have no node; of 2 nodes, these take none: max_per_node: 1, not alive: 1")
		}, []string{"1. "}, "scheduler"},
		"the node that was missing has come": {func(s *Situation) {
			s.not(rc.InsufficientNodes, "1 of 2 replicas have no node; of 3 nodes, these take none: selector: 3")
			s.RC.Mode = rc.EachNode
		}, []string{"1. 1 of 2 replicas have no node; of 3 nodes, these take none: selector: 3."}, ""},
		"a move without a node": {func(s *Situation) {
			s.not(rc.InsufficientNodes, "main.0 must leave n1 and has no other node; of 2 nodes, these take none: x")
			s.Nodes["n1"].Ops.Drain = &node.Drain{Since: before}
			s.RC.MaxPerNode = 1
			s.Nodes["n3"] = &node.View{Node: node.Node{
				Name:   "n3",
				Labels: map[string]string{"rack": "a"}, Capacity: node.Capacity{Slots: 1},
			}, Alive: true}
			s.Placements[0].Avoid = []pod.Avoided{{Node: "n3", Since: before, Generation: 3}}
		}, []string{
			"1. main.0 must leave n1 and has no other node.",
			"are drained or cordoned: n1.",
			"did not become available when it was moved there: n3.", "as max_per_node allows: n2.",
		}, "replicas have no node"},
		"misplaced": {
			func(s *Situation) {
				s.Status.Conditions = append(s.Status.Conditions,
					rc.Condition{Type: rc.Misplaced, True: true, Reason: "main.0 stays on n1: static"})
			},
			[]string{
				"It has converged: 2 of 2", "does not match: main.0 stays on n1: static.",
				"Label the nodes as they were",
			},
			"",
		},
		"an index that waits": {func(s *Situation) {
			s.Status.Conditions = append(s.Status.Conditions,
				rc.Condition{Type: rc.AwaitsStop, True: true, Reason: "main.0 waits until its copy on n1 has stopped"})
		}, []string{"are not placed: main.0 waits until its copy on n1 has stopped.", "--i-am-sure"}, ""},
		"a void request": {
			func(s *Situation) {
				s.Status.Conditions = append(s.Status.Conditions,
					rc.Condition{Type: rc.RequestVoid, True: true, Reason: "main.0 on n1: its node was back"})
			},
			[]string{
				"It has converged: 2 of 2", "was not carried out: main.0 on n1: its node was back.",
				"rcctl pods --rc web", "rcctl pod forget POD --node NODE",
			},
			"",
		},
		"moving": {
			func(s *Situation) { s.Placements[0].Ghosts = []pod.Ghost{{Node: "n2"}} },
			[]string{"web-main-0 moves from node n2, where it runs on, to n1.", "within 2m10s, it returns"},
			"not confirmed",
		},
		"a node that has not spoken": {
			func(s *Situation) {
				s.not(rc.InsufficientNodes, "x")
				s.Epoch = "now"
				for _, v := range s.Nodes {
					v.Epoch = "now"
				}
				s.Nodes["n3"] = &node.View{
					Node: node.Node{
						Name:   "n3",
						Labels: map[string]string{"rack": "a"}, Capacity: node.Capacity{Slots: 1}, Epoch: "before",
					},
					Alive: true,
				}
			},
			[]string{
				"have not reported what they run since the store was made or went back: n3.",
				"look at the preparer",
			},
			"have capacity",
		},
		"failed": {
			func(s *Situation) {
				s.report(func(r *pod.Reality) {
					r.State, r.Available, r.Message, r.Restarts = pod.StateFailed, false, "exit status 3", 4
				})
			},
			[]string{
				"web-main-0 on n1 is failed (exit status 3), restarted 4 times.",
				"Next: Apply a manifest that works, or correct what it needs; its log: rcctl logs web-main-0",
			},
			"web-main-1",
		},
		"unhealthy": {func(s *Situation) {
			s.report(func(r *pod.Reality) { r.State, r.Available = pod.StateUnhealthy, false })
		}, []string{"web-main-0 on n1 is unhealthy.", "health check"}, ""},
		"starting": {func(s *Situation) {
			s.report(func(r *pod.Reality) { r.State, r.Available = pod.StateStarting, false })
		}, []string{"web-main-0 on n1 is starting.", "on its way"}, ""},
		"silent": {
			func(s *Situation) { s.report(func(*pod.Reality) {}); s.Realities = nil },
			[]string{"web-main-0 was placed on n1, which has not reported on it yet.", "web-main-1"},
			"",
		},
		"stopping": {
			func(s *Situation) {
				s.report(func(r *pod.Reality) { r.Message = "not stopped yet" })
				s.Placements[0].RunState, s.Placements[0].StoppingSince = pod.Stopped, &before
			},
			[]string{
				"web-main-0 on n1 was asked to stop 10s ago and has not confirmed it (not stopped yet).",
				"stop_grace",
			},
			"",
		},
		"stopping on a dead node": {
			func(s *Situation) {
				s.Placements[0].RunState = pod.Stopped
				s.Nodes["n1"].Alive = false
				s.not(rc.Holding, "")
			},
			[]string{
				"web-main-0 was asked to stop, and node n1, which has no living preparer",
				"rcctl pod forget web-main-0 --node n1",
			},
			"",
		},
		"lost, early": {
			func(s *Situation) { s.Placements[0].LostSince = &before; s.not(rc.Holding, "") },
			[]string{"gone since 2026-01-02T03:03:55Z. It is replaced 30s after the loss.", "Wait"},
			"forget",
		},
		"lost, late": {
			func(s *Situation) { s.Placements[0].LostSince = &long; s.not(rc.NodeLost, "") },
			[]string{"(NodeLost)", "It will be replaced.", "rcctl nodes"},
			"",
		},
		"lost, kept": {func(s *Situation) {
			s.Placements[0].LostSince = &long
			s.RC.NodeLoss.Action = "keep"
			s.not(rc.Holding, "")
		}, []string{"node_loss.action: keep", "rcctl pod forget web-main-0 --node n1"}, ""},
		"lost, and ended with status 0": {func(s *Situation) {
			s.once()
			s.Placements[0].LostSince = &long
			s.report(func(r *pod.Reality) { r.State, r.Available = pod.StateEnded, false })
			s.not(rc.Holding, "")
		}, nil, "web-main-0"},
		"lost, and ended, to be restarted": {func(s *Situation) {
			s.Placements[0].LostSince = &long
			s.report(func(r *pod.Reality) { r.State, r.Available = pod.StateEnded, false })
			s.not(rc.Holding, "")
		}, []string{"It will be replaced."}, ""},
		"lost, and ended with another status": {func(s *Situation) {
			s.once()
			s.Placements[0].LostSince = &long
			s.report(func(r *pod.Reality) {
				r.State, r.Available, r.AllEnded, r.Message, r.LastExit = pod.StateFailed, false, true, "exit status 3",
					&pod.Exit{Code: 3}
			})
			s.not(rc.Holding, "")
		}, []string{"web-main-0 on n1 is failed (exit status 3).", "rcctl logs web-main-0"}, "replaced"},
		"unmanaged": {
			func(s *Situation) {
				s.Placements[0].UnmanagedSince, s.Nodes["n1"].Alive = &before, false
				minute := field.Duration(time.Minute)
				s.RC.NodeLoss.UnmanagedAfter = &minute
				s.not(rc.Holding, "")
			},
			[]string{
				"whose preparer is gone since 2026-01-02T03:03:55Z", "replaced 1m0s after that",
				"Start the preparer of n1.",
			},
			"",
		},
		"dead node": {
			func(s *Situation) { s.Nodes["n1"].Alive = false; s.not(rc.Holding, "") },
			[]string{"whose preparer does not live; its last report is used."},
			"",
		},
		"unknown node": {
			func(s *Situation) { delete(s.Nodes, "n1"); s.not(rc.Holding, "") },
			[]string{"web-main-0 is on node n1, whose preparer does not live"},
			"",
		},
		"drained": {
			func(s *Situation) { s.Nodes["n1"].Ops.Drain = &node.Drain{Since: before} },
			[]string{
				"web-main-0 is on node n1, which is drained since", "it moves when another node has capacity",
				"rcctl nodes",
			},
			"static",
		},
		"drained, at the minimum": {
			func(s *Situation) { s.Nodes["n1"].Ops.Drain = &node.Drain{Since: before}; s.Status.Available = 1 },
			[]string{"and cannot move: 1 replica available, and the minimum is 1.", "Lower min_available"},
			"it moves",
		},
		"drained, static": {
			func(s *Situation) { s.Nodes["n1"].Ops.Drain = &node.Drain{Since: before}; s.RC.Strategy = rc.Static },
			[]string{
				"does not move because its controller is static.", "rcctl node undrain n1",
				"--deadline 0s --force",
			},
			"",
		},
		"ghost": {
			func(s *Situation) { s.Placements[0].Ghosts = []pod.Ghost{{Node: "n2", Revision: 4}} },
			[]string{"web-main-0 has moved from node n2 to n1, and its stop on n2 is not confirmed.", "Wait"},
			"",
		},
		"ghost on a dead node": {
			func(s *Situation) { s.Placements[0].Ghosts = []pod.Ghost{{Node: "n9"}} },
			[]string{"because no preparer lives there.", "rcctl pod forget web-main-0 --node n9"},
			"",
		},
		"the farm's own reason": {
			func(s *Situation) { s.report(func(*pod.Reality) {}) },
			[]string{"Its farm says: 1 of 2 replicas available.", "--watch"},
			"",
		},
	}
}

// textOf returns an explanation in the form in which rcctl prints it.
func textOf(e *Explanation) string {
	text := e.Summary + "\n"
	for i, c := range e.Causes {
		text += fmt.Sprintf("\n%d. %s\n", i+1, c.What)
		if c.Next != "" {
			text += "   Next: " + c.Next + "\n"
		}
	}
	return text
}

func TestExplain(t *testing.T) {
	for name, tt := range explainCases() {
		t.Run(name, func(t *testing.T) {
			s := well()
			tt.spoil(s)
			e := Explain(s)
			out := textOf(&e)
			rest := out
			for _, want := range tt.says {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Errorf("no %q, in this order, in\n%s", want, out)
					break
				}
				rest = after
			}
			if tt.not != "" && strings.Contains(out, tt.not) {
				t.Errorf("%q in\n%s", tt.not, out)
			}
		})
	}
}

// Each condition that can be a controller's state is explained: by the table in pkg/rc, or by code for this condition,
// which has a case in explainCases.
func TestEachAlarmIsExplained(t *testing.T) {
	explained := map[rc.ConditionType]bool{}
	for _, tt := range explainCases() {
		s := well()
		tt.spoil(s)
		for _, alarm := range Alarms {
			explained[alarm] = explained[alarm] || s.is(alarm)
		}
	}
	for _, k := range rc.Kinds {
		if !slices.Contains(Alarms, k.Type) {
			continue
		}
		s := well()
		s.not(k.Type, "so it is")
		want := Cause{k.What + ": so it is.", strings.ReplaceAll(k.Next, "{rc}", "web")}
		switch {
		case k.What == "" && !explained[k.Type]:
			t.Errorf("%s has no What and Next in pkg/rc/conditions.go, and no case of explainCases", k.Type)
		case k.What != "" && !slices.Contains(Explain(s).Causes, want):
			t.Errorf("%s: no %q in %q", k.Type, want, Explain(s).Causes)
		}
	}
}

// If many pods are in trouble, Explain does not list all of them.
func TestExplainIsBounded(t *testing.T) {
	s := well()
	s.not(rc.Holding, "")
	for i := range 50 {
		s.Placements = append(s.Placements,
			pod.Placement{
				Identity: pod.Identity{RCID: "01", Role: "main", Index: 2 + i}, Node: "n1", PodID: "web",
				RunState: pod.Running, Digest: "d",
			})
	}
	e := Explain(s)
	if last := e.Causes[len(e.Causes)-1]; len(e.Causes) != 1+maxTroubled+1 || last.What != "And 40 more." ||
		!strings.Contains(last.Next, "rcctl pods --rc web") {
		t.Errorf("%d causes, the last %+v", len(e.Causes), last)
	}
}
