package farm

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/store"
)

// A look is spared only where nothing has rung since the last one that may matter to it.
func TestALookThatNothingRungForIsSpared(t *testing.T) {
	t.Parallel()
	rung := func(own, companion uint64) map[string]uint64 { return map[string]uint64{"web": own, "old": companion} }
	for name, tt := range map[string]struct {
		alone bool
		rung  map[string]uint64
		idle  bool
	}{
		"nothing has rung":                                   {rung: rung(5, 7), idle: true},
		"its bell has rung":                                  {alone: true, rung: rung(6, 7)},
		"a companion's has":                                  {rung: rung(5, 8)},
		"a companion's has, which makes no difference":       {alone: true, rung: rung(5, 8), idle: true},
		"that of a companion which was not seen has":         {rung: map[string]uint64{"web": 5, "new": 1}},
		"its bell is gone":                                   {rung: rung(0, 7)},
		"a companion's is gone, which rings where it counts": {rung: rung(5, 0), idle: true},
	} {
		c := &ReplicationController{ID: "web"}
		ps := c.newPass()
		ps.shared.begin()
		ps.head, ps.companions = store.Head{BellIndex: 5}, []store.Companion{{RCID: "old", Marks: store.Marks{Bell: 7}}}
		ps.looked(tt.alone)
		if idle, _ := c.shared.idle("web", tt.rung); idle != tt.idle {
			t.Errorf("%s: spared %t, want %t", name, idle, tt.idle)
		}
	}
}
