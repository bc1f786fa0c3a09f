package plan_test

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
)

// If long values differ, the text shows the place of the difference.
func TestLongValuesDiffer(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100)
	for _, tt := range []struct{ from, to, want string }{
		{"a", "b", "p: a -> b"},
		{"", long, "p: (none) -> " + long[:80] + "..."},
		{long + "-a", long + "-b", "p: ..." + long[:19] + "-a -> ..." + long[:19] + "-b"},
		{
			long + "a" + long, long + "b" + long,
			"p: ..." + long[:20] + "a" + long[:59] + "... -> ..." + long[:20] + "b" + long[:59] + "...",
		},
		{long[:60] + "a", long[:60] + "b", "p: " + long[:60] + "a -> " + long[:60] + "b"},
		{
			long[:61] + "a", long[:61] + "b",
			"p: ..." + long[:20] + "a -> ..." + long[:20] + "b",
		},
		{long, long + "b", "p: ..." + long[:20] + " -> ..." + long[:20] + "b"},
		{"a" + long, "b" + long, "p: a" + long[:79] + "... -> b" + long[:79] + "..."},
	} {
		if got := (plan.FieldChange{
			Path: "p", From: plan.Leaf{Text: tt.from}, To: plan.Leaf{Text: tt.to},
		}).String(); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 300, -1)
		same := text.Draw(t, "same")
		a, b := same+text.Draw(t, "a"), same+text.Draw(t, "b")
		from, to, found := strings.Cut(
			plan.FieldChange{Path: "p", From: plan.Leaf{Text: a}, To: plan.Leaf{Text: b}}.String(), " -> ",
		)
		if a != b && !strings.Contains(a+b, " -> ") && (!found || strings.TrimPrefix(from, "p: ") == to) {
			t.Fatalf("%q and %q look the same: %q", a, b, from)
		}
	})
	secret := plan.FieldChange{
		Path: "p", From: plan.Leaf{Text: long + "-a", Secret: true}, To: plan.Leaf{Text: long + "-b", Secret: true},
	}
	if got := secret.String(); got != "p: (not shown) -> (not shown)" {
		t.Error(got)
	}
}

// The JSON of a change leaves out missing values and secret values.
func TestJSONOfAChange(t *testing.T) {
	t.Parallel()
	for want, leaf := range map[string]plan.Leaf{
		`{"path":"p","to":"b","kind":"","why":""}`: {Text: `"b"`},
		`{"path":"p","to":3,"kind":"","why":""}`:   {Text: `3`},
		`{"path":"p","kind":"","why":""}`:          {Text: `"b"`, Secret: true},
	} {
		got, err := json.Marshal(plan.FieldChange{Path: "p", To: leaf})
		if err != nil || string(got) != want {
			t.Errorf("got  %s, %v\nwant %s", got, err, want)
		}
	}
}

func TestEvalSpecChange(t *testing.T) {
	const inPlace = `update.strategy="in-place"`
	for _, tt := range []struct {
		name          string
		before, after []string
		kind          plan.ChangeKind
		fields        string // paths, separated by commas
	}{
		{"nothing", nil, nil, plan.UpToDate, ""},
		{"the name", nil, []string{`name="api"`}, plan.UpToDate, ""},
		{
			"groups in place of replicas", nil,
			[]string{`replicas=null`, `replica_groups=[{"role": "main", "count": 3}]`},
			plan.UpToDate, "",
		},
		{
			"empty is nil", nil,
			[]string{`labels={}`, `pod.volumes=[]`, `pod.hooks={}`, `update={"gates": {}}`},
			plan.UpToDate, "",
		},
		{
			"order of ports", nil,
			[]string{`pod.ports=[{"name": "admin", "dynamic": true}, {"name": "http", "dynamic": true}]`},
			plan.UpToDate, "",
		},
		{
			"order of volumes",
			[]string{`pod.volumes=[{"name": "a"}, {"name": "b"}]`},
			[]string{`pod.volumes=[{"name": "b"}, {"name": "a"}]`},
			plan.UpToDate, "",
		},
		{"count", nil, []string{`replicas=4`}, plan.NeedsUpdate, "replica_groups[main].count"},
		{
			"where one group's pods go",
			[]string{`replicas=null`, `replica_groups=[{"role": "a", "count": 1, "spread": "rack"}]`},
			[]string{
				`replicas=null`,
				`replica_groups=[{"role": "a", "count": 1, "spread": {"label": "rack", "when": "require"}, "affinity": [{"selector": "a=b", "weight": 2}], "placing": "pack"}]`,
			},
			plan.NeedsRecreate,
			"replica_groups[a].affinity[0].selector,replica_groups[a].affinity[0].weight,replica_groups[a].placing,replica_groups[a].spread,replica_groups[a].spread.label,replica_groups[a].spread.when",
		},
		{"to zero", nil, []string{`replicas=0`}, plan.NeedsUpdate, "replica_groups[main].count"},
		{"labels", nil, []string{`labels={"a": "b"}`}, plan.NeedsUpdate, "labels.a"},
		{"a label without a value", nil, []string{`labels={"a": ""}`}, plan.NeedsUpdate, "labels.a"},
		{"pod labels", nil, []string{`pod_labels={"a": "b"}`}, plan.NeedsUpdate, "pod_labels.a"},
		{"knobs", nil, []string{`update.step=2`}, plan.NeedsUpdate, "update.step"},
		{
			"order of groups",
			[]string{`replicas=null`, `replica_groups=[{"role": "a", "count": 1}, {"role": "b", "count": 1}]`},
			[]string{`replicas=null`, `replica_groups=[{"role": "b", "count": 1}, {"role": "a", "count": 1}]`},
			plan.NeedsUpdate, "replica_groups (order)",
		},
		{
			"another group",
			[]string{`replicas=null`, `replica_groups=[{"role": "a", "count": 1}]`},
			[]string{`replicas=null`, `replica_groups=[{"role": "a", "count": 1}, {"role": "b", "count": 1}]`},
			plan.NeedsUpdate,
			"replica_groups[b].count,replica_groups[b].role",
		},
		{"selector", nil, []string{`node_selector="a=b"`}, plan.NeedsRecreate, "node_selector"},
		{"spread", nil, []string{`spread="rack"`}, plan.NeedsRecreate, "spread"},
		{"per node", nil, []string{`max_per_node=1`}, plan.NeedsRecreate, "max_per_node"},
		{"allocation", nil, []string{`strategy="static"`}, plan.NeedsUpdate, "strategy"},
		{"static no more", []string{static}, nil, plan.NeedsUpdate, "strategy"},
		{"a volume", nil, []string{volumes}, plan.NeedsUpdate, "pod.volumes[data].name,strategy"},
		{
			"a volume of a pod that may move",
			[]string{`strategy="dynamic"`},
			[]string{`strategy="dynamic"`, volumes, elsewhere},
			plan.NeedsRecreate,
			"pod.volumes[data].name,update.strategy",
		},
		{"the default of volumes written out", []string{volumes}, []string{volumes, static}, plan.UpToDate, ""},
		{
			"selector, in place",
			[]string{inPlace},
			[]string{inPlace, `node_selector="a=b"`},
			plan.NeedsUpdate, "node_selector",
		},
		{"manifest", nil, []string{`pod.labels={"a": "b"}`}, plan.NeedsRecreate, "pod.labels.a"},
		{
			"manifest, in place",
			[]string{inPlace},
			[]string{inPlace, `pod.labels={"a": "b"}`},
			plan.NeedsUpdate, "pod.labels.a",
		},
		{
			"manifest and count", nil,
			[]string{`pod.labels={"a": "b"}`, `replicas=5`},
			plan.NeedsRecreate,
			"pod.labels.a,replica_groups[main].count",
		},
		{
			"count and selector", nil,
			[]string{`labels={"a": "b"}`, `node_selector="a=b"`},
			plan.NeedsRecreate,
			"labels.a,node_selector",
		},
		{
			"a launchable more", nil,
			[]string{`pod.launchables=[{"name": "server", "artifact": {"kind": "tar", "url": "https://files.example/web-1.2.tar.gz",
			"sha256": "` + strings.Repeat("a", 64) +
				`"}, "args": ["-v"], "env": {"TOKEN": "abc"}}, {"name": "z", "artifact": {"kind": "exec", "path": "/z"}}]`},
			plan.NeedsRecreate,
			"pod.launchables[z].artifact.kind,pod.launchables[z].artifact.path,pod.launchables[z].name",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := plan.EvalSpecChange(sample(t, tt.before...), sample(t, tt.after...))
			var paths []string
			for _, f := range got.Fields {
				paths = append(paths, f.Path)
				if f.Why == "" || f.Kind == plan.UpToDate {
					t.Errorf("no reason: %+v", f)
				}
			}
			if got.Kind != tt.kind || strings.Join(paths, ",") != tt.fields {
				t.Errorf("got %s %s, want %s %s", got.Kind, paths, tt.kind, tt.fields)
			}
		})
	}
}

func TestReasonsOfChanges(t *testing.T) {
	inPlace := `update.strategy="in-place"`
	for path, want := range map[string]string{
		`pod.labels={"a": "b"}`: "a pod's manifest never changes while it runs",
		`node_selector="a=b"`:   "pods are placed anew, in stages",
		`update.step=1`:         "it is about rollouts, no pod changes",
		`digests="never"`:       "it is about rollouts, no pod changes",
		`replicas=9`:            "pods are added or removed",
		`labels={"a": "b"}`:     "the controller changes, its pods stay",
	} {
		if got := plan.EvalSpecChange(sample(t), sample(t, path)).Fields[0].Why; got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
	for path, want := range map[string]string{
		`pod.labels={"a": "b"}`: "the pods are upgraded where they are",
		`node_selector="a=b"`:   "pods that are in the wrong place are moved",
	} {
		if got := plan.EvalSpecChange(sample(t, inPlace), sample(t, inPlace, path)).Fields[0].Why; got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// For a new service, every field of the document is a difference.
func TestEvalSpecChangeOfNothing(t *testing.T) {
	got := plan.EvalSpecChange(nil, sample(t))
	if got.Kind != plan.NeedsRecreate || len(got.Fields) < 10 {
		t.Errorf("%+v", got)
	}
}

func TestFieldChangeString(t *testing.T) {
	before := sample(t)
	launchable := func(env, arg string) string {
		return `pod.launchables=[{"name": "server", "artifact": {"kind": "tar", "url": "https://files.example/web-1.2.tar.gz",
			"sha256": "` + strings.Repeat("a", 64) + `"}, "args": ["` + arg + `"], "env": {` + env + `}}]`
	}
	for _, tt := range []struct{ change, want string }{
		{launchable(`"TOKEN": "xyz"`, "-v"), `pod.launchables[server].env.TOKEN: (not shown) -> (not shown)`},
		{launchable(`"TOKEN": "abc", "E": ""`, "-v"), `pod.launchables[server].env.E: (none) -> (not shown)`},
		{launchable(`"TOKEN": "abc"`, "-w"), `pod.launchables[server].args[0]: "-v" -> "-w"`},
		{
			launchable(`"TOKEN": "abc"`, strings.Repeat("ä", 78)),
			`pod.launchables[server].args[0]: "-v" -> "` + strings.Repeat("ä", 78) + `"`,
		},
		{
			launchable(`"TOKEN": "abc"`, strings.Repeat("ä", 79)),
			`pod.launchables[server].args[0]: "-v" -> "` + strings.Repeat("ä", 79) + `...`,
		},
		{`pod.config={"key": "new"}`, `pod.config.key: (none) -> (not shown)`},
	} {
		got := plan.EvalSpecChange(before, sample(t, tt.change))
		if len(got.Fields) != 1 || got.Fields[0].String() != tt.want {
			t.Errorf("got %v, want %s", got.Fields, tt.want)
		}
	}
}
