package remote

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// An answer may be as large as the wire allows, and no larger.
func TestBoundsOfAnAnswer(t *testing.T) {
	t.Parallel()
	reasons := func(n int) scheduler.Reasons {
		all := scheduler.Reasons{}
		for i := range n {
			all[scheduler.Reason(fmt.Sprint("reason ", i))] = i
		}
		return all
	}
	long := func(n int) string { return strings.Repeat("x", n) }
	for name, of := range map[string]func(over int) answer{
		"nodes": func(over int) answer { return answer{Nodes: slices.Repeat([]string{"n"}, maxEntries+over)} },
		"allocations": func(over int) answer {
			return answer{Allocations: slices.Repeat([]scheduler.Allocation{{Node: "n"}}, maxEntries+over)}
		},
		"reasons": func(over int) answer { return answer{Refused: reasons(maxReasons + over)} },
		"name":    func(over int) answer { return answer{Nodes: []string{long(maxName + over)}} },
		"reason": func(over int) answer {
			return answer{Refused: scheduler.Reasons{scheduler.Reason(long(maxReason + over)): 1}}
		},
		"count": func(over int) answer { return answer{Refused: scheduler.Reasons{"resources": -over}} },
	} {
		for over := range 2 {
			a := of(over)
			a.Version = Version
			data, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseAnswer(data)
			if (err != nil) != (over > 0) {
				t.Errorf("%s, %d over: %v", name, over, err)
			}
			if over == 0 && (len(got.Nodes) != len(a.Nodes) || len(got.Allocations) != len(a.Allocations) || !maps.Equal(got.Refused, a.Refused)) {
				t.Errorf("%s: another answer was read", name)
			}
		}
	}
}
