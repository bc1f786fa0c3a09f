package scheduler_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// What is added up tells the same of a new pod as the rule does, whatever is taken.
func TestUsageRefusesAsTheRuleDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.IntRange(0, 6)
		ports := rapid.SliceOfNDistinct(rapid.IntRange(1, 9), 0, 3, rapid.ID)
		v := &node.View{Alive: true, Node: node.Node{
			Name: "n", Capacity: node.Capacity{Slots: small.Draw(t, "slots"), CPU: int64(small.Draw(t, "cpu")), Memory: int64(small.Draw(t, "memory"))},
			PortRange: node.PortRange{Min: small.Draw(t, "first"), Max: small.Draw(t, "last")}, PortsInUse: ports.Draw(t, "in use"),
		}}
		claim := func(id pod.Identity, what string) node.Claim {
			return node.Claim{Pod: id, Ports: ports.Draw(t, what+" ports"), CPU: int64(small.Draw(t, what+" cpu")), Memory: int64(small.Draw(t, what+" memory"))}
		}
		res := node.Reservation{Claims: map[string]node.Claim{}}
		for i := range rapid.IntRange(0, 4).Draw(t, "claims") {
			res.Claims[identity("other", i).String()] = claim(identity("other", i), "taken")
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "orphans") {
			v.Orphans = append(v.Orphans, pod.Orphan{Identity: identity("other", 3+i), Ports: map[string]int{"p": rapid.IntRange(1, 9).Draw(t, "orphan's port")}, CPU: 1})
		}
		dynamic := make([]string, rapid.IntRange(0, 3).Draw(t, "dynamic"))
		for i := range dynamic {
			dynamic[i] = fmt.Sprint("d", i)
		}
		rule := scheduler.Rule{Ask: claim(pod.Identity{}, "wanted"), Dynamic: dynamic}
		used := scheduler.UsageOf(v, res)
		want := rule.Refuses(scheduler.Candidate{View: v, Reservation: res}, identity("new", 0))
		if got := used.Refuses(v, rule.Ask, len(dynamic)); got != want {
			t.Fatalf("added up: %q, by the rule: %q; %+v on %+v", got, want, used, v.Node)
		}
		if load := used.Load(v, rule.Ask, len(dynamic), 1); want == scheduler.Resources && v.Capacity.Slots > 0 && load <= scheduler.Whole || want == "" && load > scheduler.Whole {
			t.Fatalf("load %d, refused for %q; %+v on %+v", load, want, used, v.Node)
		}
	})
}

func TestLoad(t *testing.T) {
	t.Parallel()
	v := &node.View{Node: node.Node{Capacity: node.Capacity{Slots: 10, CPU: 4000, Memory: 1000}, PortRange: node.PortRange{Min: 100, Max: 107}, PortsInUse: []int{100, 101, 5000}}}
	used := scheduler.Usage{Slots: 2, CPU: 1000, Memory: 100, Ports: []int{80, 101, 102}}
	for name, tt := range map[string]struct {
		want    node.Claim
		dynamic int
		pods    int
		load    int
	}{
		"as it is: CPU":             {node.Claim{}, 0, 0, 250},
		"slots":                     {node.Claim{}, 0, 1, 300},
		"CPU":                       {node.Claim{CPU: 1000, Memory: 100}, 0, 1, 500},
		"memory":                    {node.Claim{CPU: 1000, Memory: 500}, 0, 1, 600},
		"ports":                     {node.Claim{}, 1, 1, 500},
		"several pods":              {node.Claim{CPU: 500}, 0, 4, 750},
		"more than there is":        {node.Claim{CPU: 8000}, 0, 1, 2250},
		"ports that nobody asks of": {node.Claim{}, 0, 0, 250},
	} {
		if got := used.Load(v, tt.want, tt.dynamic, tt.pods); got != tt.load {
			t.Errorf("%s: %d, want %d", name, got, tt.load)
		}
	}
	if got := used.Load(&node.View{Node: node.Node{Capacity: node.Capacity{Slots: 4}}}, node.Claim{CPU: 9}, 1, 1); got != 750 {
		t.Errorf("without limits: %d", got)
	}
}
