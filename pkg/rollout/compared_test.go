package rollout_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// A stage that stops old pods first and has no step removes and adds as many pods as a rolling update of p2 does. Rows
// with ours differ on purpose: docs/deploying.md has the reasons.
func TestStagesComparedWithRollingUpdates(t *testing.T) {
	type step struct{ remove, add int }
	for _, tt := range []struct {
		name               string
		old, oldAvailable  int
		next, newAvailable int
		n, least           int
		want               step
		ours               *step // nil: like want
	}{
		{"grows from nothing", 0, 0, 0, 0, 3, 2, step{0, 1}, &step{0, 3}},
		{"grows from nothing, has begun", 0, 0, 1, 1, 3, 2, step{0, 1}, &step{0, 2}},
		{"grows from nothing, has the minimum", 0, 0, 2, 2, 3, 2, step{0, 1}, nil},
		{"grows from nothing, no minimum", 0, 0, 0, 0, 3, 0, step{0, 3}, nil},
		{"grows, and one may be missing", 3, 3, 0, 0, 4, 2, step{1, 2}, nil},
		{"grows, and none may be missing", 3, 3, 0, 0, 4, 3, step{0, 1}, nil},
		{"at the minimum", 1, 1, 1, 1, 2, 2, step{0, 0}, nil},
		{"keeps the minimum", 4, 2, 2, 2, 6, 3, step{1, 1}, &step{3, 3}},
		{"the new ones are the minimum", 3, 1, 3, 3, 6, 3, step{3, 3}, nil},
		{"no minimum", 6, 3, 0, 0, 6, 0, step{6, 6}, nil},
		{"a new one is on its way", 1, 1, 2, 1, 3, 1, step{1, 1}, nil},
		{"done", 0, 0, 3, 3, 3, 2, step{0, 0}, nil},
	} {
		u := rollout.Update{Step: tt.n, Unavailable: tt.n - tt.least, Min: tt.least, First: tt.least}
		rec, obs := staged(rollout.ResourceUtilStrategy, rollout.Planning, u, tt.n,
			rev{has: tt.old, away: tt.old - tt.oldAvailable, target: none},
			rev{dir: rollout.Up, has: tt.next, away: tt.next - tt.newAvailable, target: none})
		want := tt.want
		if tt.ours != nil {
			want = *tt.ours
		}
		got, d := step{}, rollout.Decide(rec, obs)
		if v := d.Record.Revisions; !d.Ended && v[0].Target != nil && v[1].Target != nil {
			got = step{tt.old - *v[0].Target, *v[1].Target - tt.next}
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, want)
		}
	}
}
