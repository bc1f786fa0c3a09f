package scheduler_test

import (
	"maps"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// ParseReasons reads the reasons back from the text of a status.
func TestReasonsAreParsedAsWritten(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text    string
		r       scheduler.Reasons
		foreign string
	}{
		"none": {"", scheduler.Reasons{}, ""},
		"ours": {
			"max_per_node: 12, not alive: 1",
			scheduler.Reasons{scheduler.MaxPerNode: 12, scheduler.NotAlive: 1},
			"",
		},
		"somebody else's": {
			"kept free: 2, selector: 1, zone, not rack: a: 3",
			scheduler.Reasons{"kept free": 2, scheduler.Selector: 1, "zone, not rack: a": 3},
			"kept free: 2, zone, not rack: a: 3",
		},
	} {
		got := scheduler.ParseReasons(tt.text)
		if !maps.Equal(got, tt.r) || got.String() != tt.text || got.Others().String() != tt.foreign {
			t.Errorf("%s: %q, of others %q", name, got, got.Others())
		}
	}
	for _, text := range []string{"kept free: 2, zo", "kept free: 2, zone: 99999999999999999999"} {
		if got := scheduler.ParseReasons(text); !maps.Equal(got, scheduler.Reasons{"kept free": 2}) {
			t.Errorf("%q is read as %q", text, got)
		}
	}
}
