package reconcile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
)

// What dashboards and alerts select by stays as it is, whatever the audit trail calls an action.
func TestLabelsOfActionsStay(t *testing.T) {
	t.Parallel()
	var got []string
	for _, a := range reconcile.AllActions {
		got = append(got, a.Label())
	}
	slices.Sort(got)
	if text := strings.Join(got, " "); text != "adopt expel mark move place relabel release remove repair return shrink stop switch upgrade" {
		t.Error(text)
	}
}
