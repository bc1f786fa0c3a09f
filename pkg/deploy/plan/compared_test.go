package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
)

// The test compares what a change of a document needs with Uncloud: for a change, for its reverse, and with the
// strategy in-place. docs/deploying.md lists the differences.
func TestChangesThereAndBack(t *testing.T) {
	const inPlace = `update.strategy="in-place"`
	process := func(more string) string {
		return `pod.launchables=[{"name": "server", "artifact": {"kind": "tar", "url": "https://files.example/web.tar.gz", "sha256": "` + strings.Repeat("a", 64) + `"}` + more + `}]`
	}
	bare := process("")
	for _, tt := range []struct {
		name     string
		from, to string
		kind     plan.ChangeKind // with in-place: an update instead of a new revision
	}{
		{"a processor share", bare, process(`, "resources": {"cpu": 1000}`), plan.NeedsUpdate},
		{
			"another processor share", process(`, "resources": {"cpu": 1000}`),
			process(`, "resources": {"cpu": 2000}`), plan.NeedsUpdate,
		},
		{"a memory limit", bare, process(`, "resources": {"memory": 104857600}`), plan.NeedsUpdate},
		{"a limit of no size", bare, process(`, "resources": {}`), plan.UpToDate},
		{
			"the same memory in words", process(`, "resources": {"memory": 104857600}`),
			process(`, "resources": {"memory": "100Mi"}`), plan.UpToDate,
		},
		{"another artifact", bare, strings.Replace(bare, "aaaa", "bbbb", 1), plan.NeedsRecreate},
		{"another command", bare, process(`, "command": "bin/other"`), plan.NeedsRecreate},
		{"the default command", bare, process(`, "command": "bin/launch"`), plan.UpToDate},
		{
			"arguments in another order", process(`, "args": ["-a", "-b"]`),
			process(`, "args": ["-b", "-a"]`), plan.NeedsRecreate,
		},
		{
			"variables in another order", process(`, "env": {"A": "1", "B": "2"}`),
			process(`, "env": {"B": "2", "A": "1"}`), plan.UpToDate,
		},
		{"another variable", process(`, "env": {"A": "1"}`), process(`, "env": {"A": "2"}`), plan.NeedsRecreate},
		{"a user", bare, process(`, "user": "web"`), plan.NeedsRecreate},
		{
			"a port more", `pod.ports=[{"name": "a", "port": 80}]`,
			`pod.ports=[{"name": "a", "port": 80}, {"name": "b", "port": 81}]`, plan.NeedsRecreate,
		},
		{
			"the number of a port", `pod.ports=[{"name": "a", "port": 80}]`, `pod.ports=[{"name": "a", "port": 81}]`,
			plan.NeedsRecreate,
		},
		{"configuration", `pod.config={"a": "1"}`, `pod.config={"a": "2"}`, plan.NeedsRecreate},
		{"machines", `node_selector=""`, `node_selector="zone=a"`, plan.NeedsRecreate},
		{"where digests come from", `digests="missing"`, `digests="always"`, plan.NeedsUpdate},
	} {
		for _, way := range [][2]string{{tt.from, tt.to}, {tt.to, tt.from}} {
			if got := plan.EvalSpecChange(sample(t, way[0]), sample(t, way[1])).Kind; got != tt.kind {
				t.Errorf("%s, from %s: %s, want %s", tt.name, way[0], got, tt.kind)
			}
			want := plan.NeedsUpdate
			if tt.kind == plan.UpToDate {
				want = tt.kind
			}
			if got := plan.EvalSpecChange(sample(t, way[0], inPlace), sample(t, way[1], inPlace)).Kind; got != want {
				t.Errorf("%s, in place, from %s: %s, want %s", tt.name, way[0], got, want)
			}
		}
	}
	for _, tt := range [][2]string{ // volumes of pods that can move; other pods with volumes are upgraded in place
		{`pod.volumes=[{"name": "data"}]`, `pod.volumes=[{"name": "data"}, {"name": "logs"}]`},
		{`pod.volumes=[{"name": "data"}]`, `pod.volumes=[]`},
		{`pod.volumes=[{"name": "data"}]`, `pod.volumes=[{"name": "logs"}]`},
	} {
		for _, way := range [][2]string{tt, {tt[1], tt[0]}} {
			moves := []string{`strategy="dynamic"`, elsewhere}
			if got := plan.EvalSpecChange(sample(t, append(moves, way[0])...),
				sample(t, append(moves, way[1])...)).Kind; got != plan.NeedsRecreate {
				t.Errorf("from %s to %s: %s", way[0], way[1], got)
			}
		}
	}
}

// A plan shows the nodes of its pods, and how many pods find no capacity, on machines with a few processors.
func TestNodesByProcessors(t *testing.T) {
	const none, each = `replicas=null`, `mode="each-node"`
	cpu := func(milli int) string { return `pod.launchables=` + launchableWith(fmt.Sprintf(`{"cpu": %d}`, milli)) }
	for _, tt := range []struct {
		name    string
		cores   []int
		has     map[int]int // pods of the revision in effect by node, of one core each
		was, is []string
		where   []string
		warns   []string
	}{
		{
			"evenly",
			[]int{4, 4},
			nil, nil,
			[]string{`replicas=4`, cpu(1000)},
			[]string{"run 4 pods of web-r1 (forecast: n0 (2 pods), n1 (2 pods))"},
			nil,
		},
		{
			"as each has room",
			[]int{2, 8},
			nil, nil,
			[]string{`replicas=4`, cpu(2000)},
			[]string{"run 4 pods of web-r1 (forecast: n0, n1 (3 pods))"},
			nil,
		},
		{
			"more than there is room for",
			[]int{2, 2},
			nil, nil,
			[]string{`replicas=5`, cpu(1000)},
			[]string{"run 5 pods of web-r1 (forecast: n0 (2 pods), n1 (2 pods); no node for 1)"},
			[]string{"there is room for 4 of 5 pods (nodes that take no more: resources: 2)"},
		},
		{
			"one more beside what runs",
			[]int{2},
			map[int]int{0: 1},
			[]string{`replicas=1`, cpu(1000)},
			[]string{`replicas=2`, cpu(1000)},
			[]string{"run 1 pod of web-r1 (forecast: n0)"},
			nil,
		},
		{
			"one on each",
			[]int{4, 4, 4},
			nil, nil,
			[]string{none, each, cpu(2000)},
			[]string{"run 3 pods of web-r1 (forecast: n0, n1, n2)"},
			nil,
		},
		{
			"one on each that has room",
			[]int{4, 4, 1},
			nil, nil,
			[]string{none, each, cpu(2000)},
			[]string{"run 2 pods of web-r1 (forecast: n0, n1)"},
			[]string{"there is room for 2 of 3 pods (nodes that take no more: resources: 1)"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, state := &cluster{}, wide(make([]int, len(tt.cores))...)
			for i, cores := range tt.cores {
				v := state.Nodes[fmt.Sprint("n", i)]
				v.Capacity.Slots, v.Capacity.CPU = 99, int64(1000*cores)
			}
			if tt.was != nil {
				c.deployed(t, sample(t, tt.was...))
			}
			for at, pods := range tt.has {
				for i := range pods {
					c.has(state, i, at, 1000)
				}
			}
			p, err := c.planOf(t, sample(t, tt.is...), func(r *plan.ServicePlanner) { r.State = state })
			if diff := cmp.Diff(tt.where, forecasts(&p)); err != nil || diff != "" {
				t.Error(err, diff)
			}
			if diff := cmp.Diff(tt.warns, p.Warnings); diff != "" {
				t.Error(diff)
			}
		})
	}
}
