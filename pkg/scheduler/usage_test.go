package scheduler_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// For any claims on a node, Usage decides about a new pod in the same way as the rule.
func TestUsageRefusesAsTheRuleDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.IntRange(0, 6)
		ports := rapid.SliceOfNDistinct(rapid.IntRange(1, 9), 0, 3, rapid.ID)
		v := &node.View{Alive: true, Node: node.Node{
			Name: "n", Capacity: node.Capacity{
				Slots: small.Draw(t, "slots"), CPU: int64(small.Draw(t, "cpu")),
				Memory: int64(small.Draw(t, "memory")),
			},
			PortRange:  node.PortRange{Min: small.Draw(t, "first"), Max: small.Draw(t, "last")},
			PortsInUse: ports.Draw(t, "in use"),
		}}
		claim := func(id pod.Identity, what string) node.Claim {
			return node.Claim{
				Pod: id, Ports: ports.Draw(t, what+" ports"), CPU: int64(small.Draw(t, what+" cpu")),
				Memory: int64(small.Draw(t, what+" memory")),
			}
		}
		res := node.Reservation{Claims: map[string]node.Claim{}}
		for i := range rapid.IntRange(0, 4).Draw(t, "claims") {
			res.Claims[identity("other", i).String()] = claim(identity("other", i), "taken")
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "orphans") {
			v.Orphans = append(v.Orphans, pod.Orphan{
				Identity: identity("other", 3+i),
				Ports:    map[string]int{"p": rapid.IntRange(1, 9).Draw(t, "orphan's port")}, CPU: 1,
			})
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
		if load := used.Load(v, rule.Ask, len(dynamic), 1); want == scheduler.Resources && v.Capacity.Slots > 0 &&
			load <= scheduler.Whole || want == "" && load > scheduler.Whole {
			t.Fatalf("load %d, refused for %q; %+v on %+v", load, want, used, v.Node)
		}
	})
}

func TestLoad(t *testing.T) {
	t.Parallel()
	v := &node.View{Node: node.Node{
		Capacity:  node.Capacity{Slots: 10, CPU: 4000, Memory: 1000},
		PortRange: node.PortRange{Min: 100, Max: 107}, PortsInUse: []int{100, 101, 5000},
	}}
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
	if got := used.Load(&node.View{Node: node.Node{Capacity: node.Capacity{Slots: 4}}},
		node.Claim{CPU: 9}, 1, 1); got != 750 {
		t.Errorf("without limits: %d", got)
	}
}

// A node takes pods up to its last slot, byte and port. A static port in the range cannot be given to a dynamic port.
func TestUsageRefuses(t *testing.T) {
	t.Parallel()
	five, none := node.PortRange{Min: 100, Max: 104}, node.PortRange{Min: 0, Max: 200}
	used := scheduler.Usage{Slots: 2, CPU: 400, Memory: 400, Ports: []int{80, 101}}
	for name, tt := range map[string]struct {
		given   node.PortRange
		want    node.Claim
		dynamic int
		says    scheduler.Reason
	}{
		"all that is left":               {five, node.Claim{CPU: 600, Memory: 600}, 3, ""},
		"more CPU":                       {five, node.Claim{CPU: 601}, 0, scheduler.Resources},
		"more memory":                    {five, node.Claim{Memory: 601}, 0, scheduler.Resources},
		"a port of a pod":                {five, node.Claim{Ports: []int{80}}, 0, scheduler.Ports},
		"a port of the machine":          {five, node.Claim{Ports: []int{5000}}, 0, scheduler.Ports},
		"more dynamic ports":             {five, node.Claim{}, 4, scheduler.Ports},
		"a static port of the range":     {five, node.Claim{Ports: []int{104}}, 2, ""},
		"one more than besides that":     {five, node.Claim{Ports: []int{104}}, 3, scheduler.Ports},
		"a static port beside the range": {five, node.Claim{Ports: []int{105}}, 3, ""},
		"no number in the range":         {none, node.Claim{}, 1, scheduler.Ports},
		"no number, and none is wanted":  {none, node.Claim{}, 0, ""},
	} {
		v := &node.View{Node: node.Node{
			Capacity:  node.Capacity{Slots: 3, CPU: 1000, Memory: 1000},
			PortRange: tt.given, PortsInUse: []int{100, 5000},
		}}
		if got := used.Refuses(v, tt.want, tt.dynamic); got != tt.says {
			t.Errorf("%s: %q, want %q", name, got, tt.says)
		}
	}
	full, v := scheduler.Usage{Slots: 3}, &node.View{Node: node.Node{Capacity: node.Capacity{Slots: 3}}}
	if got := full.Refuses(v, node.Claim{}, 0); got != scheduler.Resources {
		t.Errorf("without a slot left: %q", got)
	}
}
