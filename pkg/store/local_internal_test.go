package store

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Local services do not concern farms, so their reports ring no bell and count no drop.
func TestLocalRealities(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	r := pod.Reality{
		Identity: pod.Identity{RCID: pod.LocalRC("web"), Role: "main"}, Kind: pod.KindLocal, Node: "n1",
		State: pod.StateReady, Available: true,
	}
	other := reports(1)[0]
	index, err := session.WriteRealities(t.Context(), RealityWrite{Reality: r}, other)
	if err == nil {
		_, err = session.WriteRealities(t.Context(), RealityWrite{Reality: fallen(r), Index: index, Before: r})
	}
	if err != nil {
		t.Fatal(err)
	}
	keys, err := st.c.Keys(t.Context(), st.keys.Prefix())
	if err != nil {
		t.Fatal(err)
	}
	var own []string
	for _, key := range keys {
		if strings.Contains(key, r.RCID) {
			own = append(own, key)
		}
	}
	if !slices.Equal(own, []string{st.keys.Realities.Key("n1", r.Identity.String())}) ||
		!slices.Contains(keys, st.keys.Bells.Key(other.Reality.RCID)) {
		t.Errorf("there are %v", keys)
	}
	if rec, err := session.Reality(t.Context(), r.Identity); err != nil || rec.Value.Kind != pod.KindLocal ||
		rec.Value.Available {
		t.Errorf("%+v, %v", rec, err)
	}
}

// If another program changes a reservation at the same time, ChangeReservation keeps that change. Without the node's
// lock it writes nothing.
func TestChangeReservation(t *testing.T) {
	t.Parallel()
	st, session, lose := nodeSession(t)
	add := func(id pod.Identity, interfere func()) error {
		return session.ChangeReservation(t.Context(), func(res node.Reservation, _ bool) (node.Reservation, error) {
			if interfere != nil {
				interfere()
			}
			res.Claims[id.String()] = node.NewClaim(id, nil, 1, 0)
			return res, nil
		})
	}
	read := func() Rec[node.Reservation] {
		found, bad, err := st.ReservationsOf(t.Context(), []string{"n1"})
		if err != nil || len(bad) > 0 {
			t.Fatal(err, bad)
		}
		return found["n1"]
	}
	a, b, farm := pod.Identity{RCID: "local-a", Role: "main"}, pod.Identity{
		RCID: "local-b",
		Role: "main",
	}, pod.Identity{RCID: "rc-1", Role: "main"}
	if err := add(a, nil); err != nil {
		t.Fatal(err)
	}
	once := sync.OnceFunc(func() {
		res := read().Value.Clone()
		res.Claims[farm.String()] = node.NewClaim(farm, nil, 1, 0)
		if _, err := st.c.Commit(t.Context(),
			[]consul.Op{consul.Set(st.keys.Reservations.Key("n1"), asJSON(res))}); err != nil {
			t.Error(err)
		}
	})
	if err := add(b, once); err != nil {
		t.Fatal(err)
	}
	rec := read()
	if got := slices.Sorted(maps.Keys(rec.Value.Claims)); !slices.Equal(got,
		[]string{a.String(), b.String(), farm.String()}) {
		t.Errorf("shares of %v", got)
	}
	if err := add(b, nil); err != nil || read().Index != rec.Index {
		t.Errorf("what is there is written again: %v, index %d, then %d", err, rec.Index, read().Index)
	}
	full := errors.New("full")
	if err := session.ChangeReservation(t.Context(),
		func(node.Reservation, bool) (node.Reservation, error) { return node.Reservation{}, full }); !errors.Is(err,
		full) {
		t.Errorf("a change that is refused: %v", err)
	}
	lose()
	if err := add(pod.Identity{RCID: "local-c", Role: "main"}, nil); !errors.Is(err, ErrLost) ||
		read().Index != rec.Index {
		t.Errorf("without the lock: %v", err)
	}
	if _, err := st.c.Commit(t.Context(),
		[]consul.Op{consul.Set(st.keys.Reservations.Key("n1"), []byte("{"))}); err != nil {
		t.Fatal(err)
	}
	var corrupt *CorruptError
	if err := add(a, nil); !errors.As(err, &corrupt) {
		t.Errorf("a record that cannot be read: %v", err)
	}
}
