package store

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func TestCountReplicas(t *testing.T) {
	t.Parallel()
	st, _, _ := nodeSession(t)
	leader := st.Leader("f", st.c.Commit)
	for id, team := range map[string]string{"a": "blue", "b": "blue", "c": "", "d": "red"} {
		n := 3
		r := rc.RC{
			ID: id, Name: id, ManifestDigest: "m", Generation: 1,
			ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &n}},
		}
		if team != "" {
			r.Labels = map[string]string{"team": team}
		}
		write(t, st, consul.Set(st.keys.RCs.Key(id), asJSON(r)))
		if id != "d" {
			write(t, st,
				consul.Set(st.keys.Statuses.Key(id), asJSON(rc.Status{RCID: id, Desired: 9, Available: 2, Lost: 1})))
		}
	}
	write(t, st, consul.Set(st.keys.Statuses.Key("gone"), asJSON(rc.Status{RCID: "gone", Available: 5})),
		consul.Set(st.keys.RCs.Key("x"), []byte("garbage")))
	for label, want := range map[string]map[string]Replicas{
		"":     {NoGroup: {12, 6, 3}},
		"team": {"blue": {6, 4, 2}, "red": {3, 0, 0}, NoGroup: {3, 2, 1}},
	} {
		if got, err := leader.CountReplicas(t.Context(), label); err != nil || !maps.Equal(got, want) {
			t.Errorf("by %q: %+v, %v; want %+v", label, got, err, want)
		}
	}
}

// Even with very many values of a label, the number of groups is bounded, and the sums are complete.
func TestGroupsAreBounded(t *testing.T) {
	t.Parallel()
	groups := map[string]Replicas{}
	for i := range 100 {
		groups[fmt.Sprintf("g%02d", i)] = Replicas{Desired: i, Ready: 1, Lost: 1}
	}
	got := largest(groups, 10)
	if len(got) != 10 || got["g99"].Desired != 99 || got["g91"].Desired != 91 ||
		got[OtherGroups] != (Replicas{90 * 91 / 2, 91, 91}) {
		t.Errorf("%+v", got)
	}
	if got := largest(got, 10); len(got) != 10 || got["g91"].Desired != 91 {
		t.Errorf("%+v", got)
	}
}

func TestOrphanedRecords(t *testing.T) {
	t.Parallel()
	st, _, _ := nodeSession(t)
	k := st.keys
	leader := st.Leader("f", st.c.Commit)
	for _, key := range []string{
		k.Intents.Below("n1"), k.Intents.Key("n1", "placed/main.0"), k.Intents.Key("n1",
			"known/main.0"), k.Intents.Key("n1", "lost/main.0"),
		k.Realities.Key("n2", "lost/main.1"), k.Realities.Key("n2", "known/main.2"), k.Realities.Key("n2",
			"local-web/main.0"), k.Pods.Key("placed/main.0"), k.RCs.Key("known"),
	} {
		write(t, st, consul.Set(key, nil))
	}
	found, err := leader.OrphanedRecords(t.Context())
	var got []string
	for _, f := range found {
		got = append(got, string(f.Kind.Name)+" "+f.Key)
	}
	want := []string{
		"Unplaced " + k.Intents.Key("n1", "known/main.0"),
		"OrphanedIntent " + k.Intents.Key("n1", "lost/main.0"), "OrphanedReport " +
			k.Realities.Key("n2", "lost/main.1"),
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

// The mark changes exactly if a record changes that the counts depend on.
func TestReplicasMark(t *testing.T) {
	t.Parallel()
	st, _, _ := nodeSession(t)
	k := st.keys
	leader := st.Leader("f", st.c.Commit)
	mark := func() ReplicasMark {
		t.Helper()
		m, err := leader.ReplicasMark(t.Context())
		if err != nil || m == (ReplicasMark{}) {
			t.Fatal(m, err)
		}
		return m
	}
	keys := []string{
		k.RCs.Key("a"), k.Statuses.Key("a"), k.Pods.Key("a/main.0"), k.Intents.Key("n1", "a/main.0"),
		k.Realities.Key("n1", "a/main.0"),
	}
	for _, key := range keys {
		// Without any record, a kind's index changes with each write to the store, so each kind needs one that stays.
		write(t, st, consul.Set(key, nil), consul.Set(key+"1", nil))
	}
	last := mark()
	write(t, st, consul.Set(k.Nodes.Key("n1"), nil), consul.Set(k.Reservations.Key("n1"), nil))
	if got := mark(); got != last {
		t.Errorf("%v became %v without a change", last, got)
	}
	for i, key := range keys {
		for _, op := range []consul.Op{consul.Set(key, []byte("x")), consul.Delete(key)} {
			write(t, st, op)
			got := mark()
			if was := last[i]; got[i] == was {
				t.Errorf("%s: %v is as before", key, got)
			}
			last[i] = got[i]
			if got != last {
				t.Errorf("%s: %v, want %v", key, got, last)
			}
		}
	}
}
