package reconcile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
)

// The labels that dashboards and alerts use never change, whatever the audit trail calls an action.
func TestActionLabelsNeverChange(t *testing.T) {
	t.Parallel()
	var got []string
	for _, a := range reconcile.AllActions {
		got = append(got, a.Label())
	}
	slices.Sort(got)
	const want = "adopt expel mark move place relabel release remove repair return shrink stop switch upgrade"
	if text := strings.Join(got, " "); text != want {
		t.Errorf("%s, want %s", text, want)
	}
}
