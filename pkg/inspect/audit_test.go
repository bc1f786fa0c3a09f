package inspect_test

import (
	"maps"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The name of a deleted controller is from audit records; the name of a controller with a record is from the record.
func TestFormerNames(t *testing.T) {
	t.Parallel()
	const web, api, job = "01jgh0000000000000000000aa", "01jgh0000000000000000000ab", "01jgh0000000000000000000ac"
	act := func(id string, lines ...string) store.Audit { return store.Audit{RCID: id, Changes: lines} }
	acts := []store.Audit{
		act(web+"-1", "service web: revision 1"),
		act(web+"-2", "place main.0 on n1: add"),
		act(web+"-2-pre", "place main.0 on n1: add"),
		act(api+"-1", "place main.0 on n1: add"),
		act(job, inspect.NameLine("job", true)),
		act("01jgh0000000000000000000ad", inspect.NameLine("old", false)),
		act("01jgh0000000000000000000ae", "scale: 1 -> 2"),
		act("01jgh0000000000000000000af", inspect.NameLine("lives", true)),
		act("local-agent", "node n1, local service agent"),
		act("", "drain: none"),
	}
	names := map[string]string{"01jgh0000000000000000000af": "lives", api + "-2": "api-r2"}
	want := map[string]string{
		web + "-1": "web-r1", web + "-2": "web-r2", web + "-2-pre": "web-r2-pre-deploy", api + "-1": "api-r1",
		job: "job", "01jgh0000000000000000000ad": "old",
	}
	former := inspect.FormerNames(acts, names)
	if !maps.Equal(former, want) {
		t.Errorf("got %v, want %v", former, want)
	}
	views := inspect.JoinAudit(acts, names, former)
	for i, want := range []struct {
		name string
		gone bool
	}{
		{"web-r1", true},
		{"web-r2", true},
		{"web-r2-pre-deploy", true},
		{"api-r1", true},
		{"job", true},
		{"old", true},
		{"", true},
		{"lives", false},
		{"", false},
		{"", false},
	} {
		if views[i].RCName != want.name || views[i].RCGone != want.gone {
			t.Errorf("%s: %q, gone %t, want %+v", views[i].RCID, views[i].RCName, views[i].RCGone, want)
		}
	}
}
