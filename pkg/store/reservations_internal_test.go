package store

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// ReadDetails either lists all reservations or reads them by their names. The result is the same, for existing, missing
// and unreadable reservations.
func TestReservationsAreListedOrAskedFor(t *testing.T) {
	t.Parallel()
	st := empty(t).FarmSession(&consul.Session{}, "f1")
	const nodes, wanted = 300, 200
	var names []string
	var ops []consul.Op
	for i := range nodes {
		name := fmt.Sprintf("n-%03d", i)
		names = append(names, name)
		id := pod.Identity{RCID: "web", Role: "main", Index: i}
		switch {
		case i == 7:
			ops = append(ops, consul.Set(st.keys.Reservations.Key(name), []byte("{")))
		case i%3 == 0:
			ops = append(ops,
				consul.Set(st.keys.Reservations.Key(name),
					asJSON(&node.Reservation{Claims: map[string]node.Claim{id.String(): {Pod: id, CPU: int64(i)}}})))
		}
	}
	if _, err := st.c.Commit(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
	read := func(w Wanted) Details {
		t.Helper()
		d, err := st.ReadDetails(t.Context(), w, Consistent)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	byName, listed := Wanted{
		Reservations: names[:wanted],
		Nodes:        3 * nodes,
	}, Wanted{Reservations: names[:wanted], Nodes: nodes}
	if byName.listsReservations() || !listed.listsReservations() ||
		(&Wanted{Reservations: names[:wanted]}).listsReservations() ||
		(&Wanted{Reservations: names[:consul.MaxTxnOps], Nodes: consul.MaxTxnOps}).listsReservations() {
		t.Fatal("the one is listed, or the other is not")
	}
	a, b := read(byName), read(listed)
	if diff := cmp.Diff(a.Reservations, b.Reservations); diff != "" {
		t.Error(diff)
	}
	for _, d := range []Details{a, b} {
		if len(d.Reservations) != wanted || len(d.Unreadable) != 1 || d.Unreadable[names[7]] == nil ||
			!d.Reservations[names[7]].Value.Ineligible {
			t.Errorf("%d reservations, unreadable: %v", len(d.Reservations), d.Unreadable)
		}
		if rec := d.Reservations[names[9]]; rec.Index == 0 || len(rec.Value.Claims) != 1 ||
			d.Reservations[names[10]].Index != 0 {
			t.Errorf("%+v, %+v", rec, d.Reservations[names[10]])
		}
	}
}
