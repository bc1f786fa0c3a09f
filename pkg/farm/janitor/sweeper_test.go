package janitor_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/farm/janitor"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// writeIntent writes an intent to run a pod on a node.
func writeIntent(t *testing.T, client *consul.Client, st *store.Store, node string, id pod.Identity) {
	t.Helper()
	value, err := json.Marshal(pod.Intent{
		Identity: id, PodID: "web", Digest: strings.Repeat("d", 64), State: pod.Running, Revision: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	put(t, client, st.Keys().Intents.Key(node, id.String()), string(value))
}

// newSweeper returns the sweeper of a leader that has seen controllers gone for an hour before it asks.
func newSweeper(t *testing.T, records janitor.SweepStore, synced func() bool) *janitor.Sweeper {
	t.Helper()
	return janitor.NewSweeper(janitor.SweepConfig{
		Farm: "f", Store: records, Synced: synced, After: time.Hour, Log: quiet(t),
	})
}

func always() bool { return true }

// askedFor returns the number of requests for pods of a controller.
func askedFor(t *testing.T, st *store.Store, rcID string) int {
	t.Helper()
	found, bad, err := st.Requests.List(t.Context(), store.Consistent, rcID)
	if err != nil || len(bad) > 0 {
		t.Fatal(err, bad)
	}
	for _, r := range found {
		if r.Value.Kind != store.SweepOrphan || r.Value.By != "f" || r.Value.Pod.RCID != rcID {
			t.Errorf("%+v", r.Value)
		}
	}
	return len(found)
}

// If a controller has been gone for long, the leader asks once for the stop of its pods, for one controller in a look.
func TestPodsOfAControllerGoneForLongAreSwept(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	for _, id := range []string{"there1", "there2", "there3"} {
		apply(t, st, id, "v1")
	}
	writeIntent(t, client, st, "n1", pod.Identity{RCID: "there1", Role: "main"})
	for i, id := range []string{"gone1", "gone1", "gone2"} {
		writeIntent(t, client, st, "n1", pod.Identity{RCID: id, Role: "main", Index: i})
	}
	put(t, client, st.Keys().Intents.Key("n1", "gone1/main.7"), "broken")
	synced := true
	s := newSweeper(t, leader(client, st), func() bool { return synced })
	now := time.Now()
	look := func(after time.Duration, gone1, gone2 int) {
		t.Helper()
		if err := s.Look(t.Context(), now.Add(after)); err != nil {
			t.Fatal(err)
		}
		if a, b := askedFor(t, st, "gone1"), askedFor(t, st, "gone2"); a != gone1 || b != gone2 {
			t.Errorf("after %s: %d and %d requests, want %d and %d", after, a, b, gone1, gone2)
		}
	}
	look(0, 0, 0)
	look(time.Hour-time.Second, 0, 0)
	synced = false // some nodes have not spoken: the time starts again
	look(time.Hour, 0, 0)
	synced = true
	look(time.Hour, 0, 0)
	look(2*time.Hour, 2, 0)
	look(2*time.Hour, 2, 1)
	stopped := []consul.Op{consul.DeleteTree(st.Keys().Intents.Below("n1") + "gone1/")}
	if _, err := client.Commit(t.Context(), stopped); err != nil {
		t.Fatal(err)
	}
	look(2*time.Hour, 2, 1)
	if a := askedFor(t, st, "there1"); a != 0 {
		t.Errorf("%d requests for a controller that exists", a)
	}
}

// If as many controllers are gone as exist, records may have been lost, and nothing is swept.
func TestNothingIsSweptIfRecordsMayBeLost(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	apply(t, st, "there", "v1")
	id := pod.Identity{RCID: "gone", Role: "main"}
	writeIntent(t, client, st, "n1", id)
	s := newSweeper(t, leader(client, st), always)
	now := time.Now()
	for _, at := range []time.Time{now, now.Add(time.Hour)} {
		if err := s.Look(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	if n := askedFor(t, st, "gone"); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// A controller with placements but without a record has lost its record. None of its pods is swept, and it counts as
// gone.
func TestAControllerWithPlacementsIsNotSwept(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	apply(t, st, "there1", "v1")
	apply(t, st, "there2", "v1")
	placed, bare := pod.Identity{RCID: "placed", Role: "main"}, pod.Identity{RCID: "bare", Role: "main"}
	writeIntent(t, client, st, "n1", placed)
	put(t, client, st.Keys().Pods.Key("placed/main.1"), "{}")
	s := newSweeper(t, leader(client, st), always)
	now := time.Now()
	look := func(after time.Duration, want int) {
		t.Helper()
		if err := s.Look(t.Context(), now.Add(after)); err != nil {
			t.Fatal(err)
		}
		if n := askedFor(t, st, "placed"); n != 0 {
			t.Errorf("%d requests for a controller with a placement", n)
		}
		if n := askedFor(t, st, "bare"); n != want {
			t.Errorf("%d requests, want %d", n, want)
		}
	}
	look(0, 0)
	look(time.Hour, 0)
	writeIntent(t, client, st, "n1", bare)
	look(2*time.Hour, 0)
	look(3*time.Hour, 0) // two are gone, and two exist
	apply(t, st, "there3", "v1")
	look(3*time.Hour, 1)
}

// A request that is not carried out does not delay the requests for other controllers.
func TestAStuckRequestDelaysNoOtherSweep(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	for _, id := range []string{"there1", "there2", "there3"} {
		apply(t, st, id, "v1")
	}
	writeIntent(t, client, st, "n1", pod.Identity{RCID: "gone1", Role: "main"})
	writeIntent(t, client, st, "n1", pod.Identity{RCID: "gone2", Role: "main"})
	s := newSweeper(t, leader(client, st), always)
	now := time.Now()
	for i, want := range [][2]int{{0, 0}, {1, 0}, {1, 1}, {1, 1}} {
		if err := s.Look(t.Context(), now.Add(time.Duration(i)*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if got := [2]int{askedFor(t, st, "gone1"), askedFor(t, st, "gone2")}; got != want {
			t.Errorf("look %d: %v requests, want %v", i, got, want)
		}
	}
}

// back calls apply after controllers were found gone and before the requests.
type back struct {
	janitor.SweepStore
	apply func()
}

func (b back) OrphanedIntents(ctx context.Context) (map[string][]store.At, int, error) {
	left, n, err := b.SweepStore.OrphanedIntents(ctx)
	b.apply()
	return left, n, err
}

func TestAControllerThatComesBackIsNotSwept(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	apply(t, st, "there", "v1")
	apply(t, st, "there2", "v1")
	writeIntent(t, client, st, "n1", pod.Identity{RCID: "gone", Role: "main"})
	now, looks := time.Now(), 0
	records := back{leader(client, st), func() {
		if looks++; looks == 2 {
			apply(t, st, "gone", "v1")
		}
	}}
	s := newSweeper(t, records, always)
	for _, at := range []time.Time{now, now.Add(time.Hour)} {
		if err := s.Look(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	if n := askedFor(t, st, "gone"); n != 0 || looks != 2 {
		t.Errorf("%d requests after %d looks", n, looks)
	}
}
