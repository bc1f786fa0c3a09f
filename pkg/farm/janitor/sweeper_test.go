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

func tell(t *testing.T, client *consul.Client, st *store.Store, node string, id pod.Identity) {
	t.Helper()
	value, err := json.Marshal(pod.Intent{Identity: id, PodID: "web", Digest: strings.Repeat("d", 64), State: pod.Running, Revision: 1})
	if err != nil {
		t.Fatal(err)
	}
	put(t, client, st.Keys().Intents.Key(node, id.String()), string(value))
}

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

// What nodes are told of a controller that has been gone for long is asked to be stopped, one controller in a look, once.
func TestTheLeaderSweepsWhatHasBeenGoneForLong(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	for _, id := range []string{"there1", "there2", "there3"} {
		apply(t, st, id, "v1")
	}
	tell(t, client, st, "n1", pod.Identity{RCID: "there1", Role: "main"})
	for i, id := range []string{"gone1", "gone1", "gone2"} {
		tell(t, client, st, "n1", pod.Identity{RCID: id, Role: "main", Index: i})
	}
	put(t, client, st.Keys().Intents.Key("n1", "gone1/main.7"), "broken")
	synced := true
	s := janitor.NewSweeper(janitor.SweepConfig{Farm: "f", Strays: leader(client, st), Synced: func() bool { return synced }, After: time.Hour, Log: quiet(t)})
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
	synced = false // it is not known what runs: the time begins anew
	look(time.Hour, 0, 0)
	synced = true
	look(time.Hour, 0, 0)
	look(2*time.Hour, 2, 0)
	look(2*time.Hour, 2, 1)
	if _, err := client.Commit(t.Context(), []consul.Op{consul.DeleteTree(st.Keys().Intents.Below("n1") + "gone1/")}); err != nil {
		t.Fatal(err)
	}
	look(2*time.Hour, 2, 1)
	if a := askedFor(t, st, "there1"); a != 0 {
		t.Errorf("%d requests for a controller that is there", a)
	}
}

// Where as many controllers are gone as are there their records are, and nothing is asked.
func TestNothingIsSweptWhereRecordsWereLost(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	apply(t, st, "there", "v1")
	id := pod.Identity{RCID: "gone", Role: "main"}
	tell(t, client, st, "n1", id)
	s := janitor.NewSweeper(janitor.SweepConfig{Farm: "f", Strays: leader(client, st), Synced: func() bool { return true }, After: time.Hour, Log: quiet(t)})
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

// Where placements tell of a controller its record was lost, however many of its pods lack theirs: nothing of it is swept, and it counts as gone.
func TestAControllerWithPlacementsIsNotSwept(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	apply(t, st, "there1", "v1")
	apply(t, st, "there2", "v1")
	placed, bare := pod.Identity{RCID: "placed", Role: "main"}, pod.Identity{RCID: "bare", Role: "main"}
	tell(t, client, st, "n1", placed)
	put(t, client, st.Keys().Pods.Key("placed/main.1"), "{}")
	s := janitor.NewSweeper(janitor.SweepConfig{Farm: "f", Strays: leader(client, st), Synced: func() bool { return true }, After: time.Hour, Log: quiet(t)})
	now := time.Now()
	look := func(after time.Duration, want int) {
		t.Helper()
		if err := s.Look(t.Context(), now.Add(after)); err != nil {
			t.Fatal(err)
		}
		if n := askedFor(t, st, "placed"); n != 0 {
			t.Errorf("%d requests beside a placement", n)
		}
		if n := askedFor(t, st, "bare"); n != want {
			t.Errorf("%d requests, want %d", n, want)
		}
	}
	look(0, 0)
	look(time.Hour, 0)
	tell(t, client, st, "n1", bare)
	look(2*time.Hour, 0)
	look(3*time.Hour, 0) // two are gone, and two are there
	apply(t, st, "there3", "v1")
	look(3*time.Hour, 1)
}

// What was asked for and is not carried out keeps nobody else's turn.
func TestAControllerThatIsStuckHoldsUpNoSweep(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	for _, id := range []string{"there1", "there2", "there3"} {
		apply(t, st, id, "v1")
	}
	tell(t, client, st, "n1", pod.Identity{RCID: "gone1", Role: "main"})
	tell(t, client, st, "n1", pod.Identity{RCID: "gone2", Role: "main"})
	s := janitor.NewSweeper(janitor.SweepConfig{Farm: "f", Strays: leader(client, st), Synced: func() bool { return true }, After: time.Hour, Log: quiet(t)})
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

// back lets a controller come back between the moment it is found gone and the request.
type back struct {
	janitor.Strays
	apply func()
}

func (b back) OrphanedIntents(ctx context.Context) (map[string][]store.At, int, error) {
	left, n, err := b.Strays.OrphanedIntents(ctx)
	b.apply()
	return left, n, err
}

func TestAControllerThatComesBackWinsTheRace(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	apply(t, st, "there", "v1")
	apply(t, st, "there2", "v1")
	tell(t, client, st, "n1", pod.Identity{RCID: "gone", Role: "main"})
	now, looks := time.Now(), 0
	strays := back{leader(client, st), func() {
		if looks++; looks == 2 {
			apply(t, st, "gone", "v1")
		}
	}}
	s := janitor.NewSweeper(janitor.SweepConfig{Farm: "f", Strays: strays, Synced: func() bool { return true }, After: time.Hour, Log: quiet(t)})
	for _, at := range []time.Time{now, now.Add(time.Hour)} {
		if err := s.Look(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	if n := askedFor(t, st, "gone"); n != 0 || looks != 2 {
		t.Errorf("%d requests after %d looks", n, looks)
	}
}
