package inspect

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
)

// A plan shows the old and the new value of each field; for a secret field it shows only that it changes.
func TestPlanView(t *testing.T) {
	t.Parallel()
	field := func(path, from, to string, secret bool) plan.FieldChange {
		return plan.FieldChange{
			Path: path, From: plan.Leaf{Text: from, Secret: secret},
			To: plan.Leaf{Text: to, Secret: secret}, Secret: secret, Kind: plan.NeedsUpdate, Why: "why",
		}
	}
	p := &plan.Plan{ServiceName: "web", Change: plan.SpecChange{Kind: plan.NeedsUpdate, Fields: []plan.FieldChange{
		field("a", `2`, `"x"`, false),
		field("b", "", `true`, false),
		field("c", `null`, "", false),
		field("pod.env", `"was"`, `"is"`, true),
		field("groups (order)", "b, a", "a, b", false),
	}}}
	data, err := json.Marshal(NewPlanView(p))
	if err != nil {
		t.Fatal(err)
	}
	tail := `,"kind":"needs-update","why":"why"}`
	want := `{"service":"web","change":{"kind":"needs-update","fields":[{"path":"a","from":2,"to":"x"` + tail +
		`,{"path":"b","to":true` + tail +
		`,{"path":"c","from":null` + tail + `,{"path":"pod.env","secret":true` + tail +
		`,{"path":"groups (order)","from":"b, a","to":"a, b"` + tail +
		`]},"operations":[],"warnings":[]}`
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Error(diff)
	}
	if data, err := json.Marshal(NewPlanView(&plan.Plan{})); err != nil || !json.Valid(data) ||
		NewPlanView(&plan.Plan{}).Change.Fields == nil {
		t.Errorf("%s, %v", data, err)
	}
}
