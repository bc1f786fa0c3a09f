package scheduler_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// TestNoPortIsGivenTwice places, upgrades and removes pods with static and dynamic ports in any order, like a farm
// does. Each step changes the node's reservation by the claim that ClaimOn returned. Two pods never have the same port.
// No pod gets a port that another program on the machine uses, except a static port on the node where the pod already
// is.
func TestNoPortIsGivenTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lowest := rapid.IntRange(1, 5).Draw(t, "lowest")
		v := &node.View{Alive: true, Node: node.Node{
			Name: "n1", Capacity: node.Capacity{Slots: 100},
			PortRange: node.PortRange{Min: lowest, Max: lowest + rapid.IntRange(0, 7).Draw(t, "size") - 1},
		}}
		if rapid.Bool().Draw(t, "orphan") {
			v.Orphans = []pod.Orphan{{
				Identity: identity("orphan", 0),
				Ports:    map[string]int{"http": rapid.IntRange(1, 12).Draw(t, "its port")},
			}}
		}
		v.PortsInUse = rapid.SliceOfNDistinct(rapid.IntRange(1, 12), 0, 3, rapid.ID).Draw(t, "in use on the machine")
		res := node.Reservation{Claims: map[string]node.Claim{}}
		ports := map[string]map[string]int{} // by pod: the ports of its version that was placed last
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			id := identity("rc", rapid.IntRange(0, 4).Draw(t, "pod"))
			key := id.String()
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				delete(res.Claims, key)
				delete(ports, key)
				continue
			}
			static := map[string]int{} // a manifest does not name one number twice
			for _, port := range rapid.SliceOfNDistinct(rapid.IntRange(1, 12), 0, 2, rapid.ID).Draw(t, "static") {
				static[fmt.Sprintf("s%d", port)] = port
			}
			dynamic := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"d1", "d2", "d3"}), rapid.ID).Draw(t, "dynamic")
			before := ports[key]
			claim, given, reason := scheduler.ClaimOn(v, res, node.NewClaim(id, static, 0, 0), dynamic, before)
			own, holds := res.Claims[key]
			for _, port := range claim.Ports {
				// If the pod is on the node already and asks for this number, the socket may be its own.
				asked := holds && static[fmt.Sprintf("s%d", port)] == port
				if reason == "" && !asked && slices.Contains(v.PortsInUse, port) && !slices.Contains(own.Ports, port) {
					t.Fatalf("%s is given port %d, which something else on the machine holds", key, port)
				}
			}
			if reason != "" {
				checkRefused(t, v, res, id, static, dynamic, reason)
				continue
			}
			checkGiven(t, v, given, dynamic, before, static, res.Claims[key])
			if rapid.Bool().Draw(t, "both versions") {
				claim = claim.With(res.Claims[key])
			}
			res.Claims[key] = claim
			ports[key] = given
			checkDistinct(t, v, res)
		}
	})
}

func checkGiven(t *rapid.T, v *node.View, given map[string]int, dynamic []string, before,
	static map[string]int, claim node.Claim,
) {
	if len(given) != len(dynamic) {
		t.Fatalf("dynamic ports %v were given %v", dynamic, given)
	}
	seen := map[int]bool{}
	for _, port := range static {
		seen[port] = true
	}
	for _, name := range dynamic {
		port, was := given[name], before[name]
		if port < v.PortRange.Min || port > v.PortRange.Max || seen[port] {
			t.Fatalf("port %s got %d of %+v, besides %v and static %v", name, port, v.PortRange, given, static)
		}
		seen[port] = true
		if clash := slices.Contains(node.NewClaim(pod.Identity{}, static, 0, 0).Ports, was); was != 0 && !clash &&
			slices.Contains(claim.Ports, was) && port != was {
			t.Fatalf("port %s had %d and got %d", name, was, port)
		}
		if port != was && slices.Contains(claim.Ports, port) {
			t.Fatalf("port %s got %d, which the version before may still use", name, port)
		}
	}
}

func checkDistinct(t *rapid.T, v *node.View, res node.Reservation) {
	owner := map[int]string{}
	for i := range v.Orphans {
		for _, port := range v.Orphans[i].Ports {
			owner[port] = "an orphan"
		}
	}
	for key, h := range res.Claims {
		for _, port := range h.Ports {
			if other := owner[port]; other != "" {
				t.Fatalf("P3: port %d is given to %s and to %s", port, other, key)
			}
			owner[port] = key
		}
	}
}

// checkRefused checks that there was a reason for a refusal: a static port of another pod, or too few free numbers.
func checkRefused(t *rapid.T, v *node.View, res node.Reservation, id pod.Identity, static map[string]int,
	dynamic []string, reason scheduler.Reason,
) {
	if reason != scheduler.Ports {
		t.Fatalf("refused for %s; only ports are scarce", reason)
	}
	others, all := map[int]bool{}, map[int]bool{}
	_, holds := res.Claims[id.String()]
	for i := range v.Orphans {
		for _, port := range v.Orphans[i].Ports {
			others[port], all[port] = true, true
		}
	}
	for _, port := range v.PortsInUse {
		all[port] = true
		others[port] = others[port] || !holds
	}
	for key, h := range res.Claims {
		for _, port := range h.Ports {
			all[port] = true
			others[port] = others[port] || key != id.String()
		}
	}
	for _, port := range static {
		if others[port] {
			return
		}
		all[port] = true
	}
	free := 0
	for port := v.PortRange.Min; port <= v.PortRange.Max; port++ {
		if !all[port] {
			free++
		}
	}
	if free >= len(dynamic) {
		t.Fatalf("refused %d dynamic ports although %d are free", len(dynamic), free)
	}
}
