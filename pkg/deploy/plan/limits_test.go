package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// resources returns the field with the resources of the sample's only process.
func resources(is string) string {
	return `pod.launchables=[{"name": "server", "artifact": {"kind": "tar", "url": "https://files.example/web-1.2.tar.gz",
		"sha256": "` + strings.Repeat("a", 64) + `"}, "args": ["-v"], "env": {"TOKEN": "abc"}, "resources": ` + is +
		`}]`
}

// If only limits change, an update is enough: no pod is replaced.
func TestOnlyLimitsChange(t *testing.T) {
	t.Parallel()
	group := func(is string) string {
		return `replica_groups=[{"role": "a", "count": 1, "resources": ` + is + `}, {"role": "b", "count": 1}]`
	}
	for _, tt := range []struct {
		name          string
		before, after []string
		want          string // kind, and the fields that are shown as limits
	}{
		{
			"CPU",
			[]string{resources(`{"cpu": 100}`)},
			[]string{resources(`{"cpu": "200m"}`)},
			"needs-update pod.launchables[server].resources.cpu",
		},
		{
			"memory",
			[]string{resources(`{"cpu": 100}`)},
			[]string{resources(`{"cpu": 100, "memory": "1Mi"}`)},
			"needs-update pod.launchables[server].resources.memory",
		},
		{
			"none any more",
			[]string{resources(`{"cpu": 100}`)},
			nil,
			"needs-update pod.launchables[server].resources.cpu",
		},
		{"the same", []string{resources(`{"cpu": 100}`)}, []string{resources(`{"cpu": "100m"}`)}, "up-to-date "},
		{
			"PIDs too",
			[]string{resources(`{"cpu": 100}`)},
			[]string{resources(`{"cpu": 200, "pids": 7}`)},
			"needs-recreate ",
		},
		{
			"a label too",
			[]string{resources(`{"cpu": 100}`)},
			[]string{resources(`{"cpu": 200}`), newManifest},
			"needs-recreate ",
		},
		{
			"a count too",
			[]string{resources(`{"cpu": 100}`)},
			[]string{resources(`{"cpu": 200}`), `replicas=7`},
			"needs-update pod.launchables[server].resources.cpu",
		},
		{
			"a selector too",
			[]string{resources(`{"cpu": 100}`)},
			[]string{resources(`{"cpu": 200}`), `node_selector="a=b"`},
			"needs-recreate pod.launchables[server].resources.cpu",
		},
		{
			"of a group",
			[]string{`replicas=null`, group(`{"cpu": 100}`)},
			[]string{`replicas=null`, group(`{"cpu": 200}`)},
			"needs-update replica_groups[a].resources.cpu",
		},
		{
			"of a group, and PIDs",
			[]string{`replicas=null`, group(`{"cpu": 100}`)},
			[]string{`replicas=null`, group(`{"cpu": 100, "pids": 3}`)},
			"needs-recreate ",
		},
		{
			"in place",
			[]string{`update.strategy="in-place"`, resources(`{"cpu": 100}`)},
			[]string{`update.strategy="in-place"`, resources(`{"cpu": 200}`)},
			"needs-update pod.launchables[server].resources.cpu",
		},
	} {
		got := plan.EvalSpecChange(sample(t, tt.before...), sample(t, tt.after...))
		var limits []string
		for _, f := range got.Fields {
			if f.Why == "the limits of running processes change" {
				limits = append(limits, f.Path)
			}
		}
		if said := fmt.Sprintf("%s %s", got.Kind, strings.Join(limits, ",")); said != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, said, tt.want)
		}
	}
}

// Limits alone change in place with every strategy. If that is impossible, the document's strategy replaces the pods.
func TestLimitsInPlace(t *testing.T) {
	t.Parallel()
	const small, large = `{"cpu": 100, "memory": "64Mi"}`, `{"cpu": 500, "memory": "128Mi"}`
	live := []string{
		"~ start rollout in-place",
		"  ~ change the limits of 3 pods of web-r1 to cpu 500m, memory 128Mi, no restart (forecast: n0, n1, n2)",
	}
	anew := func(strategy string) []string { return []string{"~ start rollout " + strategy} }
	for _, tt := range []struct {
		name     string
		was, is  []string
		strategy func(*plan.ServicePlanner)
		world    func(*cluster)
		want     []string
	}{
		{name: "limits", want: live},
		{name: "blue-green", is: []string{`update.strategy="blue-green"`}, want: live},
		{name: "a canary", is: []string{`update.canary={"pods": 1}`, `update.auto_promote="1m"`}, want: live},
		{name: "old ones first", is: []string{`update.order="stop-first"`, `update.max_surge=2`}, want: live},
		{
			name: "in place as it is", was: []string{`update.strategy="in-place"`},
			is: []string{`update.strategy="in-place"`}, want: live,
		},
		{name: "volumes", was: []string{volumes}, is: []string{volumes}, want: live},
		{name: "asked for", strategy: func(r *plan.ServicePlanner) { r.Override = "in-place" }, want: live},
		{name: "going back", strategy: func(r *plan.ServicePlanner) { r.Rollback = true }, want: live},
		{
			name: "more pods too", is: []string{`replicas=4`},
			want: append(slices.Clone(live), "  + run 1 pod of web-r1 (forecast: n3)"),
		},
		{
			name: "no pods any more", is: []string{`replicas=0`},
			want: []string{
				"~ start rollout in-place", "  - stop 3 pods of web-r1 (forecast: n0, n1, n2)",
				"  - remove 3 pods of web-r1 (forecast: n0, n1, n2)",
			},
		},
		{
			name: "another strategy asked for", strategy: func(r *plan.ServicePlanner) { r.Override = "availability" },
			want: anew("availability"),
		},
		{
			name: "a new revision asked for", strategy: func(r *plan.ServicePlanner) { r.ForceRecreate = true },
			want: anew("availability"),
		},
		{name: "none may be missing", is: []string{`update.max_unavailable=0`}, want: anew("availability")},
		{name: "all must be available", is: []string{`update.min_available=3`}, want: anew("availability")},
		{name: "a label too", is: []string{newManifest}, want: anew("availability")},
		{name: "a selector too", is: []string{`max_per_node=2`}, want: anew("availability")},
		{
			name:  "somebody changed its manifest",
			world: func(c *cluster) { c.svc.Controllers[0].RC.ManifestDigest = strings.Repeat("1", 64) },
			want:  anew("availability"),
		},
		{name: "another revision has pods", world: func(c *cluster) {
			r := c.svc.Controllers[0].RC
			r.ID, r.Name = rc.RevisionID(c.svc.Deployed.ID, 7), "web-r7"
			r.Service = &rc.Service{Name: "web", Revision: 7}
			c.svc.Controllers = append(c.svc.Controllers, record.Controller{RC: r})
		}, want: anew("availability")},
		{
			name:  "its controller is being deleted",
			world: func(c *cluster) { c.svc.Controllers[0].RC.DeletedAt = &c.svc.Deployed.At },
			want:  anew("availability"),
		},
		{
			name:     "a node without cgroups",
			strategy: func(r *plan.ServicePlanner) { r.State.Nodes["n1"].Isolation = "users,tmp" },
			want:     anew("availability"),
		},
		{name: "nobody looked at nodes", strategy: func(r *plan.ServicePlanner) { r.State = nil }, want: []string{
			"~ start rollout in-place",
			"  ~ change the limits of 3 pods of web-r1 to cpu 500m, memory 128Mi, no restart",
		}},
		{
			name:     "one has no room where it is",
			strategy: func(r *plan.ServicePlanner) { r.State.Nodes["n2"].Capacity.CPU = 400 },
			want:     anew("availability"),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := &cluster{}
			c.deployed(t, sample(t, append([]string{resources(small)}, tt.was...)...))
			if tt.world != nil {
				tt.world(c)
			}
			state := wide(9, 9, 9, 9)
			for _, v := range state.Nodes {
				v.Isolation, v.Capacity.CPU = "users,cgroup,tmp", 1000
			}
			c.runs(state, "n0", "n1", "n2")
			p, err := c.planOf(t, sample(t, append([]string{resources(large)}, tt.is...)...),
				func(r *plan.ServicePlanner) {
					r.State = state
					if tt.strategy != nil {
						tt.strategy(r)
					}
				})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range p.Lines() {
				text, _, _ := strings.Cut(l.Text, ": ")
				if l.Where != nil {
					text = fmt.Sprintf("%s (%s)", text, l.Where)
				}
				if strings.HasPrefix(text, "create") || tt.want[0] != "~ start rollout in-place" && l.Depth > 0 {
					continue
				}
				got = append(got, fmt.Sprintf("%s%s %s", strings.Repeat("  ", l.Depth), l.Sign, text))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			if inPlace := tt.want[0] == live[0]; (p.Change.Kind == plan.NeedsUpdate) != inPlace {
				t.Errorf("it is %s", p.Change.Kind)
			}
		})
	}
}

// If limits change again during a change of limits, they change in place, from the old and from the new limits.
func TestLimitsChangeInMidCourse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, second, third, want string
	}{
		{
			"other limits", resources(`{"cpu": 200}`), resources(`{"cpu": 300}`),
			"replace the rollout under way by rollout in-place",
		},
		{
			"back", resources(`{"cpu": 200}`), resources(`{"cpu": 100}`),
			"replace the rollout under way by rollout in-place",
		},
		{"new pods", newManifest, resources(`{"cpu": 300}`), "replace the rollout under way by rollout availability"},
	} {
		c := &cluster{}
		c.deployed(t, sample(t, resources(`{"cpu": 100}`)))
		c.under(t, sample(t, resources(`{"cpu": 100}`), tt.second))
		p, err := c.planOf(t, sample(t, tt.third))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if !slices.ContainsFunc(p.Lines(), func(l plan.Line) bool { return strings.HasPrefix(l.Text, tt.want) }) {
			t.Errorf("%s: %+v, want %q", tt.name, p.Lines(), tt.want)
		}
	}
}

// A plan shows the limits of each group that changes.
func TestLimitsOfGroups(t *testing.T) {
	t.Parallel()
	groups := func(a, b string) string {
		return fmt.Sprintf(`replica_groups=[{"role": "a", "count": 1, "resources": {"cpu": %s}}, `+
			`{"role": "b", "count": 2, "resources": {"cpu": %s}}]`, a, b)
	}
	for _, tt := range []struct{ a, b, want string }{
		{"200", "100", "change the limits of 1 pod of web-r1 to cpu 200m, no restart"},
		{"200", "300", "change the limits of 3 pods of web-r1 to cpu 200m (a); cpu 300m (b), no restart"},
		{"200", "200", "change the limits of 3 pods of web-r1 to cpu 200m, no restart"},
	} {
		c := &cluster{}
		c.deployed(t, sample(t, `replicas=null`, groups("100", "100")))
		p, err := c.planOf(t, sample(t, `replicas=null`, groups(tt.a, tt.b)))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(p.Lines(),
			func(l plan.Line) bool { return l.Text == tt.want && l.Sign == plan.Changed }) {
			t.Errorf("%+v, want %q", p.Lines(), tt.want)
		}
	}
}

// If a process gets less memory, its pod may be restarted. The plan warns of this.
func TestLessMemoryWarns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		was, is string
		want    bool
	}{
		{`{"memory": "64Mi"}`, `{"memory": "32Mi"}`, true},
		{`{"cpu": 100}`, `{"cpu": 100, "memory": "32Mi"}`, true},
		{`{"memory": "64Mi"}`, `{"memory": "65Mi", "cpu": 5}`, false},
		{`{"cpu": 100, "memory": "64Mi"}`, `{"cpu": 50}`, false},
	} {
		c := &cluster{}
		c.deployed(t, sample(t, resources(tt.was)))
		p, err := c.planOf(t, sample(t, resources(tt.is)))
		if err != nil {
			t.Fatal(err)
		}
		if warns := strings.Contains(strings.Join(p.Warnings, "\n"), "is restarted"); warns != tt.want {
			t.Errorf("%s to %s: %q", tt.was, tt.is, p.Warnings)
		}
	}
}

// A service with a pod on each node has no groups. A plan still shows its limits, also for a change from or to
// counts.
func TestLimitsOfAPodOnEachNode(t *testing.T) {
	t.Parallel()
	const large, less = `{"cpu": 500, "memory": "64Mi"}`, `{"cpu": 500, "memory": "32Mi"}`
	eachNode := []string{`mode="each-node"`, `replicas=null`}
	for _, tt := range []struct {
		name    string
		was, is []string
		limits  string
		want    string
		warns   bool
	}{
		{
			"as it is", eachNode, eachNode, large,
			"change the limits of 4 pods of web-r1 to cpu 500m, memory 64Mi, no restart", false,
		},
		{
			"less memory", eachNode, eachNode, less,
			"change the limits of 4 pods of web-r1 to cpu 500m, memory 32Mi, no restart", true,
		},
		{
			"from counts", nil, eachNode, less,
			"change the limits of 3 pods of web-r1 to cpu 500m, memory 32Mi, no restart", true,
		},
		{
			"to counts", eachNode, nil, less,
			"change the limits of 3 pods of web-r1 to cpu 500m, memory 32Mi, no restart",
			true,
		},
	} {
		c := &cluster{}
		c.deployed(t, sample(t, append([]string{resources(`{"cpu": 100, "memory": "64Mi"}`)}, tt.was...)...))
		c.svc.Controllers[0].RC.InPlace = nil // its first rollout is over
		c.svc.Controllers[0].Status = &rc.Status{Placed: 4, Desired: 4}
		state := wide(9, 9, 9, 9)
		for _, v := range state.Nodes {
			v.Isolation, v.Capacity.CPU = "users,cgroup,tmp", 1000
		}
		on := []string{"n0", "n1", "n2", "n3"}
		if tt.was == nil {
			on = on[:3]
		}
		c.runs(state, on...)
		p, err := c.planOf(t, sample(t, append([]string{resources(tt.limits)}, tt.is...)...),
			func(r *plan.ServicePlanner) {
				r.State = state
			})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if !slices.ContainsFunc(p.Lines(), func(l plan.Line) bool { return l.Text == tt.want }) {
			t.Errorf("%s: %+v, want %q", tt.name, p.Lines(), tt.want)
		}
		if warns := strings.Contains(strings.Join(p.Warnings, "\n"), "is restarted"); warns != tt.warns {
			t.Errorf("%s: %q", tt.name, p.Warnings)
		}
	}
}
