package farm

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// unitOver returns the unit of a controller of which nothing was read.
func unitOver(k *kit, id string, fence store.Fence) *unit {
	if k.log == nil {
		k.log = obs.Discard()
	}
	u := k.newUnit(id, fence)
	u.add(id)
	return u
}

// passOver returns a pass over the controller of such a unit.
func passOver(u *unit) *pass {
	return u.known(u.id).newPass(&view{Unit: store.Unit{ID: u.id, Heads: map[string]*store.Head{u.id: {}}}})
}

// A look is spared only where the unit's bell has not rung since the last one.
func TestALookThatNothingRungForIsSpared(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rung uint64
		idle bool
	}{
		"nothing has rung":  {5, true},
		"its bell has rung": {6, false},
		"its bell is gone":  {0, false},
	} {
		u := unitOver(&kit{}, "web", store.Fence{})
		u.looks.Begin()
		u.looks.Ended(map[string]uint64{"web": 5})
		if idle, _ := u.idle(tt.rung); idle != tt.idle {
			t.Errorf("%s: spared %t, want %t", name, idle, tt.idle)
		}
	}
}
