package store

import (
	"maps"
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

// farmHolder returns a farm under a session that lives, below a prefix with a schema and a breaker.
func farmSession(t *testing.T, id string) *FarmSession {
	t.Helper()
	st, node, _ := nodeSession(t) // for its session
	if _, err := st.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	return st.FarmSession(node.sess, id)
}

// Whatever lists the locks of controllers knows nothing of those of rollouts.
func TestLocksOfRolloutsAreNotThoseOfControllers(t *testing.T) {
	t.Parallel()
	farm := farmSession(t, "f")
	keys := farm.Keys()
	for _, key := range []string{keys.Locks.Key("a"), keys.RolloutLocks.Key("web")} {
		if _, err := farm.c.Locks.Acquire(t.Context(), key, farm.sess.Releasing, farm.lockValue); err != nil {
			t.Fatal(err)
		}
	}
	owners, err := farm.LockOwners(t.Context())
	if err != nil || !maps.Equal(owners, map[string]string{"a": "f"}) {
		t.Errorf("owners %v, %v", owners, err)
	}
	locks, err := New(farm.c, farm.keys).FarmSession(&consul.Session{}, "g").Locks(t.Context())
	if err != nil || !slices.Equal(slices.Collect(maps.Keys(locks)), []string{"a"}) {
		t.Errorf("locks %v, %v", locks, err)
	}
	if runner, err := (&Deployments{farm.db}).RunnerOf(t.Context(), "web"); runner != "f" || err != nil {
		t.Errorf("the runner is %q, %v", runner, err)
	}
	if runner, err := (&Deployments{farm.db}).RunnerOf(t.Context(), "api"); runner != "" || err != nil {
		t.Errorf("the runner of no rollout is %q, %v", runner, err)
	}
}
