package inspect_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestWitnessLines(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for want, c := range map[string]struct {
		ago     time.Duration
		witness string
		w       store.Witnesses
	}{
		"": {2 * time.Hour, "", store.Witnesses{}},
		"the epoch e began 3s ago, as node n1 alone said that the store went back": {3 * time.Second, "n1", store.Witnesses{}},
		"the epoch e began 3s ago, as a farm or several nodes saw":                 {3 * time.Second, "", store.Witnesses{}},
		"n1, n2 say that the store went back in time; the farms renew the epoch":   {2 * time.Hour, "", store.Witnesses{Epoch: "e", By: []string{"n1", "n2"}}},
		"node n1 alone says so again; farms wait for another witness, or for 40m0s: look after that node, and if it is wrong stop its preparer, or rcctl farm release-hold n1": {
			20 * time.Minute, "n1", store.Witnesses{Epoch: "e", By: []string{"n1"}, Wait: 40 * time.Minute},
		},
		"what node n3 says of a store that went back in time is ignored: why; look after": {2 * time.Hour, "", store.Witnesses{Ignored: map[string]string{"n3": "why"}}},
	} {
		s := store.Schema{Epoch: "e", WentBack: true, CreatedAt: now.Add(-c.ago), Witness: c.witness}
		got := strings.Join(inspect.WitnessLines(&s, &c.w, now), "\n")
		if !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
