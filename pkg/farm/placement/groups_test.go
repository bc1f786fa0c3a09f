package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// placeGroups places two pods of each group, one group after the other, and returns their nodes as text.
func placeGroups(t *testing.T, spec *rc.Spec, racks string, has ...string) string {
	t.Helper()
	nodes, taken := map[string]*node.View{}, map[string]node.Reservation{}
	for i, rack := range strings.Fields(racks) {
		name := fmt.Sprintf("n%d", i)
		nodes[name] = &node.View{Node: node.Node{
			Name: name, Labels: map[string]string{"rack": rack}, Capacity: node.Capacity{Slots: 9, CPU: 2000},
		}, Alive: true}
		taken[name] = node.Reservation{Claims: map[string]node.Claim{}}
	}
	p, err := NewGroups(spec, "", nodes, taken)
	if err != nil {
		return err.Error()
	}
	for _, at := range has {
		role, name, _ := strings.Cut(at, "@")
		p.AddPod(strings.TrimPrefix(role, "-"), name, !strings.HasPrefix(role, "-"))
	}
	apart := Apart(spec.ReplicaGroups)
	lots := []*rc.ReplicaGroup{nil}
	if apart != nil {
		lots = nil
		for i := range apart {
			lots = append(lots, &apart[i])
		}
	}
	var out []string
	for _, g := range lots {
		lot, err := p.Lot(g)
		if err != nil {
			return err.Error()
		}
		role := "all"
		if g != nil {
			role = g.Role
		}
		lot.Pods = []pod.Identity{{Role: role}, {Role: role, Index: 1}}
		assigned, refused := Assign(lot.Request)
		p.AddAssigned(&lot, assigned)
		line := role
		for _, a := range assigned {
			line += " " + a.Node
		}
		for _, why := range []string{lot.Excluded.String(), refused.String()} {
			if why != "" {
				line += ", " + why
			}
		}
		out = append(out, line)
	}
	for name := range taken {
		if len(taken[name].Claims) > 0 {
			t.Errorf("the reservation of %s has changed", name)
		}
	}
	return strings.Join(out, "; ")
}

// Groups that differ are placed one after the other, each with its own manifest and placement preferences.
func TestGroupsThatDifferArePlacedOneAfterTheOther(t *testing.T) {
	t.Parallel()
	two := 2
	server := manifest.Launchable{Name: "s"}
	server.Resources.CPU = 1000
	group := func(role string, change func(*rc.ReplicaGroup)) rc.ReplicaGroup {
		g := rc.ReplicaGroup{Role: role, Count: &two}
		change(&g)
		return g
	}
	big := func(g *rc.ReplicaGroup) { g.Resources = &manifest.Resources{CPU: 2000} }
	plain := func(*rc.ReplicaGroup) {}
	own := func(g *rc.ReplicaGroup) { g.Spread = rc.Spread{Label: "rack", When: rc.Require} }
	roles := func(groups ...rc.ReplicaGroup) rc.Spec { return rc.Spec{ReplicaGroups: groups} }
	full := roles(group("a", plain), group("b", big))
	ownSkew := rc.Spec{MaxPerNode: 2, ReplicaGroups: []rc.ReplicaGroup{group("a", own)}}
	spread := rc.Spec{Spread: rc.Spread{Label: "rack"}}
	skew := rc.Spec{Spread: rc.Spread{Label: "rack", When: rc.Require}, MaxPerNode: 1}
	affinity := rc.Spec{Affinity: []rc.Preference{{Selector: "rack=b", Weight: 1}}, MaxPerNode: 1}
	badAffinity := rc.Spec{Affinity: []rc.Preference{{Selector: "a in"}}}
	const badSelector = `parse selector "a in": unable to parse requirement: found '' expected: '('`
	for name, c := range map[string]struct {
		spec  rc.Spec
		racks string
		has   []string
		want  string
	}{
		"alike":                  {roles(group("a", plain), group("b", plain)), "a a", nil, "all n0 n1"},
		"resources":              {roles(group("a", big), group("b", plain)), "a a a", nil, "a n0 n1; b n2 n2"},
		"no resources left":      {full, "a a a", nil, "a n0 n1; b n2, resources: 3"},
		"on each node":           {rc.Spec{Mode: rc.EachNode, MaxPerNode: 5}, "a", nil, "all n0, max_per_node: 1"},
		"one node has a pod":     {rc.Spec{MaxPerNode: 1}, "a a", []string{"main@n0"}, "all n1, max_per_node: 2"},
		"a stopping pod counts":  {rc.Spec{MaxPerNode: 1}, "a a", []string{"-main@n0"}, "all n1, max_per_node: 2"},
		"packed":                 {rc.Spec{Placing: rc.PlacePack}, "a a", []string{"main@n1"}, "all n1 n1"},
		"spread":                 {spread, "a a b", []string{"main@n0"}, "all n2 n1"},
		"spread, a stopping pod": {spread, "a b", []string{"main@n1", "-main@n0", "-main@n0"}, "all n0 n1"},
		"a skew of the document": {skew, "a a b", []string{"main@n0"}, "all n2 n1"},
		"a skew of one role":     {ownSkew, "a b", []string{"x@n0"}, "a n1 n0"},
		"affinity":               {affinity, "a a b", nil, "all n2 n0"},
		"invalid affinity":       {badAffinity, "a", nil, badSelector},
		"another selector":       {rc.Spec{NodeSelector: "rack=b"}, "a b", nil, "all n1 n1, selector: 1"},
		"invalid selector":       {rc.Spec{NodeSelector: "a in"}, "a", nil, badSelector},
	} {
		c.spec.Pod = &manifest.Manifest{ID: "p", Launchables: []manifest.Launchable{server}}
		if got := placeGroups(t, &c.spec, c.racks, c.has...); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if lot, err := (&Groups{spec: &rc.Spec{}}).Lot(nil); err != nil || lot.Want.CPU != 0 {
		t.Errorf("without a manifest: %+v, %v", lot, err)
	}
}
