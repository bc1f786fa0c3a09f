package inspect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// racks returns a state with nodes of these names. Each node has two cores, and its rack is the first letter of its
// name.
func racks(names ...string) *plan.State {
	state := &plan.State{Nodes: map[string]*node.View{}, Taken: map[string]node.Reservation{}}
	for _, name := range names {
		state.Nodes[name] = &node.View{Node: node.Node{
			Name: name, Labels: map[string]string{"rack": name[:1]}, Capacity: node.Capacity{Slots: 9, CPU: 2000},
		}, Alive: true}
	}
	return state
}

// placed returns placements of a role, one on each of these nodes.
func placed(role string, names ...string) (on []pod.Placement) {
	for i, name := range names {
		on = append(on,
			pod.Placement{Identity: pod.Identity{RCID: "01", Role: role, Index: i}, Node: name, RunState: pod.Running})
	}
	return on
}

// Each group is placed with its own resources and preferences, after the groups before it, in the same way as in a
// farm's pass. If a group has its own skew, only its pods are counted.
func TestPlaceByGroup(t *testing.T) {
	t.Parallel()
	two, three, cpu := 2, 3, manifest.Resources{CPU: 1500}
	required := rc.Spread{Label: "rack", When: rc.Require}
	server := manifest.Launchable{Name: "s"}
	server.Resources.CPU = 500
	for name, c := range map[string]struct {
		controller rc.Spread
		groups     []rc.ReplicaGroup
		on         []pod.Placement
		want       string
	}{
		"alike: not by group": {
			groups: []rc.ReplicaGroup{{Role: "a", Count: &two}, {Role: "b", Count: &two}},
			want:   ": 4 of 4 get a1 1 a2 1 b1 1 b2 1",
		},
		"what those before took is gone": {
			groups: []rc.ReplicaGroup{
				{Role: "big", Count: &three, Resources: &cpu},
				{Role: "more", Count: &two, Resources: &cpu},
			},
			want: "big: 3 of 3 get 3 nodes; more: 1 of 2, resources: 3",
		},
		"its own skew counts its pods": {
			groups: []rc.ReplicaGroup{
				{Role: "near", Count: &two},
				{Role: "even", Count: &two, Spread: required},
			}, on: placed("near", "a1", "a2"),
			want: "near: 0 of 0; even: 2 of 2 get a 1 b 1",
		},
		"the controller's counts all": {
			controller: required, groups: []rc.ReplicaGroup{
				{Role: "near", Count: &two, Placing: rc.PlaceSpread},
				{Role: "rest", Count: &two},
			}, on: placed("near", "a1", "a2"),
			want: "near: 0 of 0; rest: 2 of 2 get b 2",
		},
		"what those before got counts for the controller's": {
			controller: required,
			groups: []rc.ReplicaGroup{{
				Role:  "near",
				Count: &two, Spread: rc.Spread{Label: "x"},
				Affinity: []rc.Preference{{Selector: "rack=a", Weight: 1}},
			}, {
				Role: "rest", Count: &two,
			}},
			want: "near: 2 of 2 get a 2; rest: 2 of 2 get b 2",
		},
	} {
		spec := &rc.Spec{
			Name: "db", Spread: c.controller, ReplicaGroups: c.groups,
			Pod: &manifest.Manifest{Version: 1, ID: "db", Launchables: []manifest.Launchable{server}},
		}
		state := racks("a1", "a2", "b1", "b2")
		got, err := Place(spec, c.on, state)
		if err != nil {
			t.Fatal(err)
		}
		if len(state.Taken) > 0 {
			t.Errorf("%s: the cluster was changed: %v", name, state.Taken)
		}
		if text := groupText(&got, c.want); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}

// groupText describes the nodes that groups get, in the form that want has: by node, by rack, or as a number of nodes.
func groupText(p *Placing, want string) string {
	groups := p.Groups
	if len(groups) == 0 {
		groups = []GroupPlacing{p.GroupPlacing}
	}
	var parts []string
	for i := range groups {
		g := &groups[i]
		text := fmt.Sprintf("%s: %d of %d", g.Role, g.Found, g.Replicas-g.Placed)
		racks, nodes := map[string]int{}, ""
		on := 0
		for _, name := range []string{"a1", "a2", "b1", "b2"} {
			for j := range g.Nodes {
				if n := &g.Nodes[j]; n.Name == name && n.Gets > 0 {
					racks[name[:1]] += n.Gets
					nodes += fmt.Sprintf(" %s %d", name, n.Gets)
					on++
				}
			}
		}
		switch byRack := ""; {
		case g.Out[scheduler.Resources] > 0:
			text += ", " + g.Out.String()
		case strings.Contains(want, "get a1"):
			text += " get" + nodes
		case strings.Contains(want, "nodes"):
			text += fmt.Sprintf(" get %d nodes", on)
		case on > 0:
			for _, rack := range []string{"a", "b"} {
				if racks[rack] > 0 {
					byRack += fmt.Sprintf(" %s %d", rack, racks[rack])
				}
			}
			text += " get" + byRack
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// The causes of a shortage name the group that lacks nodes. They follow from the group's own resources and spread.
func TestWhyAGroupLacksNodes(t *testing.T) {
	t.Parallel()
	two := 2
	s := well()
	s.RC.ReplicaGroups = append(s.RC.ReplicaGroups, rc.ReplicaGroup{Role: "big", Count: &two},
		rc.ReplicaGroup{Role: "even", Count: &two, Spread: rc.Spread{Label: "zone", When: rc.Require}})
	s.RC.GroupManifests = map[string]string{"big": "b"}
	for _, name := range []string{"n1", "n2"} {
		s.Nodes[name].Capacity = node.Capacity{Slots: 9, CPU: 1000}
		s.Taken[name] = node.Reservation{}
	}
	big := manifest.Launchable{Name: "s"}
	big.Resources.CPU = 1500
	s.Groups = map[string]*manifest.Manifest{"b": {ID: "web", Launchables: []manifest.Launchable{big}}}
	s.not(rc.InsufficientNodes, "4 of 6 replicas have no node")
	var text []string
	for _, cause := range Explain(s).Causes {
		text = append(text, cause.What)
	}
	all := strings.Join(text, "\n")
	for _, want := range []string{
		"For big: These nodes (2 of 2) have no slot, CPU or memory left for it: n1, n2.",
		"For even: These nodes (2 of 2) are in groups that have as many of its pods as spread allows, or are in no " +
			"group: n1, n2.",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	s.RC.ReplicaGroups = s.RC.ReplicaGroups[:2]
	s.Groups = nil // unreadable, so it is unknown how much its pods take
	all = ""
	for _, cause := range Explain(s).Causes {
		all += cause.What + "\n"
	}
	if !strings.Contains(all, "These nodes have capacity now: n1, n2.") || strings.Contains(all, "For big") {
		t.Error(all)
	}
}

// A shortage names the nodes that cannot run a pod's images, and what they lack.
func TestWhyNodesCannotRunImages(t *testing.T) {
	t.Parallel()
	s := well()
	s.Manifest = &manifest.Manifest{ID: "web", Launchables: []manifest.Launchable{
		{Name: "s", Artifact: manifest.Artifact{Kind: manifest.ArtifactImage}},
	}}
	s.RC.MaxPerNode = 0
	for name := range s.Nodes {
		s.Nodes[name].Containers = &node.Containers{Runc: "1.1.5"}
	}
	s.Nodes["n1"].Containers = &node.Containers{Lacks: []string{"no runc: install it"}}
	s.not(rc.InsufficientNodes, "1 of 2 replicas has no node")
	var text []string
	for _, cause := range Explain(s).Causes {
		text = append(text, cause.What)
	}
	want := fmt.Sprintf("These nodes (1 of %d) cannot run containers: n1 (no runc).", len(s.Nodes))
	if all := strings.Join(text, "\n"); !strings.Contains(all, want) {
		t.Errorf("%q does not say %q", all, want)
	}
}
