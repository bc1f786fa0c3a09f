package reconcile_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// one is a controller of one pod, which runs on n0 at revision 5, after some change.
func one(change func(s *reconcile.Snapshot, p *reconcile.Pod)) *reconcile.Snapshot {
	s := snapshotOf(1)
	p := running(0, "n0", 5, 0)
	change(s, &p)
	s.Pods = []reconcile.Pod{p}
	return s
}

func none(t *testing.T, name string, s *reconcile.Snapshot) {
	t.Helper()
	if plan := reconcile.Compute(s); len(plan.Changes) > 0 || len(plan.Adds) > 0 {
		t.Errorf("%s: %v, adds %v; want nothing", name, plan.Changes, plan.Adds)
	}
}

// After the store went back, a pod that its node has changed since then is kept as it runs (R2).
func TestAPodNewerThanTheStoreStays(t *testing.T) {
	t.Parallel()
	ahead := func(digest string) func(*reconcile.Snapshot, *reconcile.Pod) {
		return func(_ *reconcile.Snapshot, p *reconcile.Pod) {
			p.Reality.Revision, p.Reality.Digest = 8, digest
			p.Intents = map[string]*pod.Intent{
				"n0": {
					Identity: p.Identity, Digest: "m2", PodID: "p2", State: pod.Running, Revision: 8,
					Ports: map[string]int{"http": 81},
				},
			}
		}
	}
	ch := only(t, one(ahead("m1")), reconcile.Repair)
	if p := ch.Placement; p.Digest != "m1" || p.Revision <= 8 || p.AdoptedAtGeneration != 7 ||
		p.RunState != pod.Running || len(ch.Reserve) != 0 || ch.NeedsBreaker || !ch.NeedsSchema {
		t.Errorf("the same version: %+v, change %+v", p, ch)
	}
	ch = only(t, one(ahead("m2")), reconcile.Repair)
	if p := ch.Placement; p.Digest != "m2" || p.PodID != "p2" || p.Ports["http"] != 81 || p.AdoptedAtGeneration != 7 {
		t.Errorf("another version, which its intent has: %+v", p)
	}
	if r := ch.Reserve; len(r) != 1 || !r[0].Keep || !r[0].Force || r[0].Node != "n0" ||
		!slices.Equal(r[0].Claim.Ports, []int{81}) {
		t.Errorf("another version reserves %+v", r)
	}
	none(t, "a version of which no intent speaks", one(ahead("m3")))
	none(t, "a version whose intent is not known", one(func(s *reconcile.Snapshot, p *reconcile.Pod) {
		ahead("m2")(s, p)
		p.Intents = nil
	}))
}

// A pod is meant to run, and its node reports a stop at the same revision. This confirms nothing, because a node that
// has carried out this revision would run the pod.
func TestAStopOfTheSameRevisionConfirmsNothing(t *testing.T) {
	t.Parallel()
	none(t, "stopped at its own revision", one(func(_ *reconcile.Snapshot, p *reconcile.Pod) {
		p.Reality.State, p.Reality.Available = pod.StateStopped, false
	}))
}

// A pod that its node has stopped, and whose former copy must stop with it, is not started on its node while the former
// copy waits for its stop.
func TestAStoppedPodIsNotStartedWhileItsFormerCopyWaits(t *testing.T) {
	t.Parallel()
	s := one(func(s *reconcile.Snapshot, p *reconcile.Pod) {
		p.Reality.State, p.Reality.Available, p.Reality.Revision = pod.StateStopped, false, 8
		p.Placement.Ghosts = []pod.Ghost{{Node: "n1", Revision: 4}}
		s.Breaker = "tripped"
	})
	plan := reconcile.Compute(s)
	if len(plan.Changes) > 0 || !plan.Status.Is(rc.BreakerTripped) {
		t.Errorf("changes %v, conditions %v", plan.Changes, plan.Status.Conditions)
	}
}

// While nodes have not spoken, an intent is written again only if the pod runs on its node, because nothing may start
// (R1).
func TestAnIntentIsRepairedWhereThePodRuns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reality *pod.Reality
		mended  bool
	}{
		"it runs":                {&pod.Reality{State: pod.StateReady, Revision: 5, Digest: "m1"}, true},
		"it is starting":         {&pod.Reality{State: pod.StateStarting, Revision: 5, Digest: "m1"}, true},
		"nothing is reported":    {nil, false},
		"it was stopped earlier": {&pod.Reality{State: pod.StateStopped, Revision: 4, Digest: "m1"}, false},
	} {
		s := one(func(s *reconcile.Snapshot, p *reconcile.Pod) {
			p.Reality, p.Intents = c.reality, map[string]*pod.Intent{}
			s.Hold = "the records are new"
		})
		plan := reconcile.Compute(s)
		if mended := len(plan.Changes) == 1 && plan.Changes[0].Action == reconcile.Repair; mended != c.mended ||
			!c.mended && len(plan.Changes) > 0 {
			t.Errorf("%s: %v", name, plan.Changes)
		}
		if plan.Status.Is(rc.Holding) == c.mended {
			t.Errorf("%s: holding %t", name, plan.Status.Is(rc.Holding))
		}
	}
}

// A new revision is above all known revisions of the replica, also those that its former nodes report (R3).
func TestARevisionIsAboveAllThatIsKnown(t *testing.T) {
	t.Parallel()
	far := int64(1) << 50 // above the present time in milliseconds
	for name, change := range map[string]func(*reconcile.Pod){
		"placement": func(p *reconcile.Pod) { p.Revision, p.Reality.Revision = far, far },
		"reality":   func(p *reconcile.Pod) { p.Reality.Revision = far },
		"former copy": func(p *reconcile.Pod) {
			p.Placement.Ghosts[0].Revision, p.Intents = far, nil
		},
		"what a former node reports": func(p *reconcile.Pod) {
			p.Ghosts["n1"] = &pod.Reality{Revision: far, State: pod.StateStopping}
		},
		"intent":                  func(p *reconcile.Pod) { p.Intents["n0"] = &pod.Intent{Revision: far} },
		"intent of a former node": func(p *reconcile.Pod) { p.Intents["n1"] = &pod.Intent{Revision: far} },
		"intent, where others are gone": func(p *reconcile.Pod) {
			p.Intents["n0"], p.Intents["n1"] = &pod.Intent{Revision: far}, nil
		},
	} {
		s := one(func(_ *reconcile.Snapshot, p *reconcile.Pod) {
			p.Placement.Ghosts, p.Ghosts = []pod.Ghost{{Node: "n1"}}, map[string]*pod.Reality{"n1": nil}
			p.Intents = map[string]*pod.Intent{}
			change(p)
		})
		s.RC.DeletedAt = &s.Now
		plan := reconcile.Compute(s)
		if len(plan.Changes) != 1 {
			t.Errorf("%s: %v", name, plan.Changes)
			continue
		}
		for _, in := range plan.Changes[0].Intents {
			if in.Intent.Revision <= far {
				t.Errorf("%s is at %d; %s writes %d on %s", name, far, &plan.Changes[0], in.Intent.Revision, in.Node)
			}
		}
	}
}

// A pod's share is reserved again if it is missing, or smaller than the pod needs (P3).
func TestSharesAreRepaired(t *testing.T) {
	t.Parallel()
	full := node.Claim{Ports: []int{80, 443}, CPU: 500, Memory: 1 << 20}
	less := func(change func(*node.Claim)) *node.Claim { h := full; change(&h); return &h }
	for name, c := range map[string]struct {
		claims map[string]*node.Claim // nil: not read
		change func(*reconcile.Snapshot, *reconcile.Pod)
		want   map[string]node.Claim // by node
		keep   bool
	}{
		"not read":             {claims: nil},
		"its node is not read": {claims: map[string]*node.Claim{"n3": nil}},
		"enough":               {claims: map[string]*node.Claim{"n0": &full}},
		"more than enough": {claims: map[string]*node.Claim{"n0": less(func(h *node.Claim) {
			h.Ports, h.CPU, h.Memory = []int{1, 80, 443}, 501, 2<<20
		})}},
		"none": {claims: map[string]*node.Claim{"n0": nil}, want: map[string]node.Claim{"n0": full}},
		"a port too few": {
			claims: map[string]*node.Claim{"n0": less(func(h *node.Claim) { h.Ports = []int{80} })},
			want:   map[string]node.Claim{"n0": full},
		},
		"too little cpu": {
			claims: map[string]*node.Claim{"n0": less(func(h *node.Claim) { h.CPU-- })},
			want:   map[string]node.Claim{"n0": full},
		},
		"too little memory": {
			claims: map[string]*node.Claim{"n0": less(func(h *node.Claim) { h.Memory-- })},
			want:   map[string]node.Claim{"n0": full},
		},
		"its version still switches": {
			claims: map[string]*node.Claim{"n0": nil},
			change: func(_ *reconcile.Snapshot, p *reconcile.Pod) { p.Switching, p.Reality.Available = true, false },
			want:   map[string]node.Claim{"n0": full}, keep: true,
		},
		"another version, whose resources are not known": {
			claims: map[string]*node.Claim{"n0": nil},
			change: func(_ *reconcile.Snapshot, p *reconcile.Pod) { p.Digest, p.Reality.Digest = "m0", "m0" },
			want:   map[string]node.Claim{"n0": {Ports: []int{80, 443}}}, keep: true,
		},
		"the manifest cannot be read": {
			claims: map[string]*node.Claim{"n0": nil},
			change: func(s *reconcile.Snapshot, _ *reconcile.Pod) { s.Manifest = nil },
			want:   map[string]node.Claim{"n0": {Ports: []int{80, 443}}},
		},
		"a former copy's": {
			claims: map[string]*node.Claim{"n0": &full, "n1": nil, "n2": &full},
			change: func(_ *reconcile.Snapshot, p *reconcile.Pod) {
				p.Placement.Ghosts = []pod.Ghost{
					{Node: "n1", Revision: 4, Ports: map[string]int{"http": 81}}, {
						Node: "n2", Revision: 4, Ports: map[string]int{"http": 80},
					},
				}
			},
			want: map[string]node.Claim{"n1": {Ports: []int{81}, CPU: 500, Memory: 1 << 20}},
		},
	} {
		s := one(func(s *reconcile.Snapshot, p *reconcile.Pod) {
			s.Manifest.Launchables = []manifest.Launchable{
				{Name: "main", Resources: manifest.Resources{CPU: 500, Memory: 1 << 20}},
			}
			p.Ports, p.Claims = map[string]int{"http": 80, "https": 443}, c.claims
			if c.change != nil {
				c.change(s, p)
			}
		})
		plan := reconcile.Compute(s)
		at := slices.IndexFunc(plan.Changes, func(ch reconcile.Change) bool {
			return ch.Reason == "its share was not reserved"
		})
		got := map[string]node.Claim{}
		if at >= 0 {
			for _, r := range plan.Changes[at].Reserve {
				got[r.Node] = node.Claim{Ports: r.Claim.Ports, CPU: r.Claim.CPU, Memory: r.Claim.Memory}
				if !r.Force || r.Keep != c.keep {
					t.Errorf("%s: reserves %+v, keep should be %t", name, r, c.keep)
				}
			}
		}
		same := func(a, b node.Claim) bool {
			return slices.Equal(a.Ports, b.Ports) && a.CPU == b.CPU && a.Memory == b.Memory
		}
		if !maps.EqualFunc(got, c.want, same) {
			t.Errorf("%s: reserved again %+v, want %+v", name, got, c.want)
		}
	}
}
