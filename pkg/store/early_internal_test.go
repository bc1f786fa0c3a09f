package store

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// What is read at once is what single reads find: head, drops, companions, the rollout, and those realities that were expected.
func TestWhatIsReadEarlyIsWhatIsReadLater(t *testing.T) {
	t.Parallel()
	st := empty(t)
	keys := st.keys
	on := func(rcID string, i int) At {
		return At{Node: "n1", Identity: pod.Identity{RCID: rcID, Role: "main", Index: i}}
	}
	place := func(at At) consul.Op {
		p := pod.Placement{Identity: at.Identity, Node: at.Node, PodID: "p", Digest: hexOf("m"), RunState: pod.Running, Revision: 1}
		return consul.Set(keys.Pods.Key(at.Identity.String()), asJSON(p))
	}
	report := func(at At) consul.Op {
		return consul.Set(keys.Realities.Key(at.Node, at.Identity.String()), asJSON(pod.Reality{Identity: at.Identity, Node: at.Node, State: pod.StateReady}))
	}
	record := func(id string) []byte {
		n := 2
		return asJSON(rc.RC{ID: id, ManifestDigest: "m", ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &n}}})
	}
	write(
		t, st, consul.Set(keys.RCs.Key("a"), record("a")), consul.Set(keys.Bells.Key("a"), []byte("x")), consul.Set(keys.Drops.Key("a"), []byte("x")),
		consul.Set(keys.Drops.Key("a", "n1"), []byte("3")), consul.Set(keys.Statuses.Key("a"), asJSON(rc.Status{RCID: "a"})), place(on("a", 0)), place(on("a", 1)), report(on("a", 0)),
		consul.Set(keys.RCs.Key("b"), record("b")), consul.Set(keys.Stops.Key("b"), []byte("x")), consul.Set(keys.Drops.Key("b", "n1"), []byte("1")), place(on("b", 0)),
		consul.Set(keys.Reservations.Key("n1"), []byte(`{"closed": true}`)), consul.Set(keys.Reservations.Key("n2"), []byte("{")),
		consul.Set(keys.Realities.Key("n1", on("b", 0).Identity.String()), []byte("{")), consul.Set(keys.Rollouts.Key("web"), []byte(`{"ID": "r", "Service": "web", "State": "paused"}`)),
	)
	farm := st.FarmSession(&consul.Session{}, "f1")
	ctx, at := t.Context(), []At{on("a", 0), on("a", 1), on("b", 0)}
	got := farm.ReadEarly(ctx, Expected{RCID: "a", Companions: []string{"b", "c"}, Service: "web", Realities: at[:2], NodesFreed: []string{"n1", "n2", "n3"}})
	if got == nil || got.HeadErr != nil {
		t.Fatalf("%+v", got)
	}
	same := func(what string, got, want any, err error) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\n%+v, one by one\n%+v", what, err, got, want)
		}
	}
	head, err := farm.ReadHead(ctx, "a", true)
	same("the head", got.Head, head, err)
	own, others, err := farm.ReadCompanions(ctx, "a", []string{"b", "c"}, true)
	same("companions", got.Companions, others, err)
	same("drops", got.Drops, own.Drops, err)
	now, err := farm.RolloutInCharge(ctx, "web", true)
	same("the rollout", got.Rollout, now, err)
	details, rest := got.RealitiesOf(at)
	want, err := farm.ReadDetails(ctx, Wanted{Realities: at[:2]}, true)
	same("realities", details.Realities, want.Realities, err)
	same("their indices", details.Reported, want.Reported, err)
	same("the rest", rest, at[2:], nil)
	taken, unreadable, err := farm.ReservationsOf(ctx, []string{"n1", "n2", "n3"})
	same("what is taken", details.Reservations, taken, err)
	same("what cannot be read of that", details.Unreadable, unreadable, nil)

	alone := farm.ReadEarly(ctx, Expected{RCID: "a", CountDrops: true, Realities: at})
	same("drops without companions", alone.Drops, own.Drops, nil)
	if details, rest = alone.RealitiesOf(at); len(rest) != 0 || len(details.Corrupt) != 1 || len(alone.Companions) != 0 || alone.Rollout.Index != 0 {
		t.Errorf("%+v, %v, %+v", details, rest, alone)
	}
	if gone := farm.ReadEarly(ctx, Expected{RCID: "c"}); gone.HeadErr == nil {
		t.Error("there is no record, and nobody says so")
	}
	many := make([]At, consul.MaxTxnOps)
	for i := range many {
		many[i] = on("a", i)
	}
	if got = farm.ReadEarly(ctx, Expected{RCID: "a", Realities: many, NodesFreed: []string{"n1"}}); got == nil || len(got.Head.Placements) != 2 || len(got.Realities)+len(got.NodesFreed) != 0 {
		t.Errorf("realities that do not fit in are not left out: %+v", got)
	}
	ids := make([]string, consul.MaxTxnOps)
	for i := range ids {
		ids[i] = fmt.Sprint("r", i)
	}
	if got = farm.ReadEarly(ctx, Expected{RCID: "a", Companions: ids}); got != nil {
		t.Errorf("more than fits into a transaction: %+v", got)
	}
}

// Where a transaction has no room for all that is expected, reservations are left out first: each look needs realities.
func TestWhatHasNoRoomIsReadLater(t *testing.T) {
	t.Parallel()
	for room, want := range map[int][2]int{5: {3, 2}, 4: {3, 0}, 3: {3, 0}, 2: {0, 0}, -1: {0, 0}} {
		e := Expected{Realities: make([]At, 3), NodesFreed: make([]string, 2)}
		if e.bound(room); len(e.Realities) != want[0] || len(e.NodesFreed) != want[1] {
			t.Errorf("room for %d: %d realities and %d reservations, want %v", room, len(e.Realities), len(e.NodesFreed), want)
		}
	}
}
