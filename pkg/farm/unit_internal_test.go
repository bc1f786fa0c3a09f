package farm

import (
	"context"
	"errors"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// unitOver returns the unit of a controller before its first read.
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

// unmoved is a store whose fence cannot be moved. Then nothing may be read.
type unmoved struct {
	Ownership
	Reads
	t *testing.T
}

var errUnmoved = errors.New("the fence has not moved")

func (unmoved) Bump(context.Context, store.Fence) (store.Fence, error) {
	return store.Fence{}, errUnmoved
}

func (u unmoved) ReadUnit(context.Context, string, store.Level) (store.Unit, error) {
	u.t.Error("the unit was read while an earlier write may still land")
	return store.Unit{}, nil
}

// After a write with an unknown outcome, no other controller of the unit is looked at before the fence has moved (R9).
func TestNothingIsReadBeforeTheFenceHasMoved(t *testing.T) {
	t.Parallel()
	at := unmoved{t: t}
	u := unitOver(&kit{lock: at, reads: at}, "web", store.Fence{})
	u.unsure = true
	for _, stale := range []bool{false, true} {
		if v, err := u.fresh(t.Context(), &view{stale: stale}); v != nil || !errors.Is(err, errUnmoved) {
			t.Errorf("%+v, %v", v, err)
		}
	}
	u.unsure = false
	v := &view{}
	if same, err := u.fresh(t.Context(), v); same != v || err != nil {
		t.Errorf("%+v, %v", same, err)
	}
}

// A look is skipped only if the unit's bell has not rung since the last one.
func TestALookIsSkippedIfNoBellRang(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rung uint64
		idle bool
	}{
		"it has not rung":   {5, true},
		"its bell has rung": {6, false},
		"its bell is gone":  {0, false},
	} {
		u := unitOver(&kit{}, "web", store.Fence{})
		u.looks.Begin()
		u.looks.Ended(5)
		if idle, _ := u.idle(tt.rung); idle != tt.idle {
			t.Errorf("%s: spared %t, want %t", name, idle, tt.idle)
		}
	}
}
