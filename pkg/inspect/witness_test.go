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
		"the epoch e began 3s ago, because node n1 alone reported that the store went back": {
			3 * time.Second, "n1",
			store.Witnesses{},
		},
		"the epoch e began 3s ago, because a farm or several nodes saw": {
			3 * time.Second, "",
			store.Witnesses{},
		},
		"n1, n2 report that the store went back in time; the farms renew the epoch": {
			2 * time.Hour, "",
			store.Witnesses{Epoch: "e", By: []string{"n1", "n2"}},
		},
		"node n1 alone reports that again; farms wait until another node reports it, or for 40m0s: look at that " +
			"node, and if it is wrong, stop its preparer, or: rcctl farm release-hold n1": {
			20 * time.Minute, "n1", store.Witnesses{Epoch: "e", By: []string{"n1"}, Wait: 40 * time.Minute},
		},
		"the report of node n3 that the store went back in time is ignored: why; look at": {
			2 * time.Hour, "",
			store.Witnesses{Ignored: map[string]string{"n3": "why"}},
		},
	} {
		s := store.Schema{Epoch: "e", WentBack: true, CreatedAt: now.Add(-c.ago), Witness: c.witness}
		got := strings.Join(inspect.WitnessLines(&s, &c.w, now), "\n")
		if !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
