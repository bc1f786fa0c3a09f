package scheduler_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// A clash names the first port that is not free, and the pod or the machine that has it. If all static ports are free,
// the range has too few numbers left.
func TestClashNamesThePortAndItsOwner(t *testing.T) {
	t.Parallel()
	web, left := identity("web", 0), identity("left", 3)
	v := &node.View{Node: node.Node{PortRange: node.PortRange{Min: 20000, Max: 20001}, PortsInUse: []int{22, 80}}}
	v.Orphans = []pod.Orphan{{Identity: left, Ports: map[string]int{"http": 8080}}}
	claim := node.NewClaim(web, map[string]int{"http": 80}, 0, 0)
	res := node.Reservation{Claims: map[string]node.Claim{web.String(): claim}}
	for name, tt := range map[string]struct {
		ports []int
		says  string
	}{
		"a pod has it, and listens": {[]int{80}, "port 80 is taken by web/main.0"},
		"a pod without a claim":     {[]int{8080}, "port 8080 is taken by left/main.3"},
		"the machine has it":        {[]int{22}, "port 22 is held by something else on the machine"},
		"the second of the ports":   {[]int{443, 22, 80}, "port 22 is held by something else on the machine"},
		"all are free": {
			[]int{443},
			"its range of dynamic ports, 20000 to 20001, has too few numbers left",
		},
		"no static ports are wanted": {nil, "its range of dynamic ports, 20000 to 20001, has too few numbers left"},
	} {
		clash := scheduler.ClashOf(v, res, node.Claim{Pod: identity("new", 0), Ports: tt.ports})
		if got := clash.String(); got != tt.says {
			t.Errorf("%s: %q, want %q", name, got, tt.says)
		}
	}
}
