package checker

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

const (
	unit    = "01arz3ndektsv4rrffq69g5fav"
	another = "01bx5zzkbkactav9wevgemmvrz"
)

// begins writes a controller's record, and returns the condition that it is unchanged.
func (w *world) begins(id string) Op {
	record := with(controllerOf(1, 1), fields{"id": id, "name": "of-" + id})
	return kv("check-index", "rcs/"+id, nil).at(w.txn(kv("set", "rcs/"+id, record)))
}

// takes returns the conditions of the farm's fence.
func (w *world) takes(lock, farm string) []Op {
	at := w.txn(kv("lock", "locks/"+lock, fields{"farm": farm}).by("s-" + farm))
	return []Op{kv("check-session", "locks/"+lock, nil).by("s-" + farm), kv("check-index", "locks/"+lock, nil).at(at)}
}

func (w *world) tells(id string, revision int64, under ...Op) {
	in := with(told(running, revision), fields{"rc_id": id})
	w.txn(append(under, kv("set", "intent/n2/"+id+"/main.0", in))...)
}

// One session under the unit's lock may write both revisions.
func TestOneOwnerWritesAUnit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := rc.RevisionID(unit, 1), rc.RevisionID(unit, 2)
	ofOne, ofTwo := w.begins(one), w.begins(two)
	fence := w.takes(unit, "f1")
	w.tells(one, 20, append(fence, ofOne)...)
	w.tells(two, 20, append(fence, ofTwo)...)
	w.txn(kv("unlock", "locks/"+unit, fields{"farm": "f1"}).by("s-f1"))
	fence = w.takes(unit, "f2")
	w.tells(two, 30, append(fence, ofTwo)...)
	w.tells(one, 30, append(fence, ofOne)...)
	w.expect("")
}

// Two revisions of one unit must not have different locks and owners.
func TestTwoOwnersOfAUnitAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := rc.RevisionID(unit, 1), rc.RevisionID(unit, 2)
	ofOne, ofTwo := w.begins(one), w.begins(two)
	fenceOne, fenceTwo := w.takes(one, "f1"), w.takes(two, "f2")
	w.tells(one, 20, append(fenceOne, ofOne)...)
	w.tells(two, 20, append(fenceTwo, ofTwo)...)
	found := w.promises()
	for rule, want := range map[string]int{
		"P1 unit written under two sessions": 1,
		"P1 lock not held by a farm":         2, "P1 without a fence": 2,
	} {
		if found[rule] != want {
			t.Errorf("found %v, want %d of %q", found, want, rule)
		}
	}
	if len(found) != 3 {
		t.Errorf("found %v", found)
	}
	if !w.verdict().Breached() {
		t.Error("it does not count as a breach")
	}
}

// Two units may have two owners, also in turns.
func TestTwoUnitsHaveTwoOwners(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := rc.RevisionID(unit, 1), rc.RevisionID(another, 1)
	ofOne, ofTwo := w.begins(one), w.begins(two)
	fenceOne, fenceTwo := w.takes(unit, "f1"), w.takes(another, "f2")
	for revision := range int64(2) {
		w.tells(one, 20+revision, append(fenceOne, ofOne)...)
		w.tells(two, 20+revision, append(fenceTwo, ofTwo)...)
	}
	w.expect("")
}
