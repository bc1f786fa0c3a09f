package node_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/node"
)

func TestNameConflict(t *testing.T) {
	t.Parallel()
	me := node.Node{Host: "me", ConsulNode: "m1"}
	for name, c := range map[string]struct {
		rec, writer node.Node
		want        bool
	}{
		"own":                             {me, me, false},
		"another machine":                 {node.Node{Host: "other", ConsulNode: "m2"}, me, true},
		"another directory, same machine": {node.Node{Host: "other", ConsulNode: "m1"}, me, true},
		"copied directory":                {node.Node{Host: "me", ConsulNode: "m2"}, me, true},
		"agent not known":                 {node.Node{Host: "me"}, me, false},
		"own agent not known":             {me, node.Node{Host: "me"}, false},
		"older version, same machine":     {node.Node{ConsulNode: "m1"}, me, false},
		"older version, another machine":  {node.Node{ConsulNode: "m2"}, me, true},
		"a writer that takes part in none": {
			node.Node{Host: "other", ConsulNode: "m2"},
			node.Node{ConsulNode: "m1"},
			false,
		},
	} {
		if got := c.rec.NameConflict(c.writer); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
