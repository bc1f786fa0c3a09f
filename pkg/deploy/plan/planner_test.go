package plan_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// cluster is a plan.Client that keeps one service in memory.
type cluster struct {
	svc     *record.Service
	ids     int
	commits []*record.Draft
	refuse  int // how many commits are refused
	goals   []plan.Goal
	await   error
	read    func(*cluster) // before each read of the service
	err     error          // of each read
}

func (c *cluster) Service(context.Context, string) (*record.Service, error) {
	if c.read != nil {
		c.read(c)
	}
	if c.svc == nil || c.err != nil {
		return nil, c.err
	}
	copied := *c.svc
	return &copied, nil
}

func (c *cluster) Commit(_ context.Context, d *record.Draft) error {
	if c.refuse > 0 {
		c.refuse--
		return fmt.Errorf("commit: %w", plan.ErrChanged)
	}
	c.commits = append(c.commits, d)
	return nil
}

func (c *cluster) Await(_ context.Context, g plan.Goal) error {
	c.goals = append(c.goals, g)
	return c.await
}

func (c *cluster) NewID() string { c.ids++; return fmt.Sprintf("01m82rq476dk3dzcatm%07d", c.ids) }

// when is the time of all plans of the tests.
var when = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func rolling() *plan.ServicePlanner {
	return &plan.ServicePlanner{By: "ann", Now: func() time.Time { return when }}
}

// deployed deploys a document to the cluster, and makes its rollout done.
func (c *cluster) deployed(t *testing.T, spec *record.ServiceSpec) {
	t.Helper()
	c.under(t, spec)
	for i := range c.svc.Controllers {
		r := &c.svc.Controllers[i].RC
		if r.ID == c.svc.Deployed.RC {
			r.ReplicaGroups = spec.Groups()
		} else {
			r.ReplicaGroups = []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: new(int)}}
		}
	}
	c.svc.Rollout, c.svc.RolloutAt = nil, 0
	c.svc.History[len(c.svc.History)-1].Outcome = rollout.Done
}

// under deploys a document to the cluster, and leaves its rollout under way.
func (c *cluster) under(t *testing.T, spec *record.ServiceSpec) {
	t.Helper()
	if _, err := c.ran(t, spec); err != nil {
		t.Fatal(err)
	}
	c.land(c.commits[len(c.commits)-1])
}

// land changes the cluster as a draft asks for.
func (c *cluster) land(d *record.Draft) {
	next := record.Service{Deployed: d.Deployed, Index: 10, Rollout: d.Rollout, RolloutAt: 11}
	if c.svc != nil {
		next.Index, next.RolloutAt = c.svc.Index+10, c.svc.RolloutAt+10
		next.Controllers = slices.Clone(c.svc.Controllers)
		next.History = slices.DeleteFunc(slices.Clone(c.svc.History), func(e record.Entry) bool {
			return e.Revision == d.Entry.Revision || slices.Contains(d.Forget, e.Revision)
		})
	}
	next.History = append(next.History, d.Entry)
	for _, r := range d.Create {
		if r.Service != nil {
			next.Controllers = append(next.Controllers, record.Controller{RC: r, Index: next.Index})
		}
	}
	for _, r := range d.Change {
		for i := range next.Controllers {
			if next.Controllers[i].RC.ID == r.ID {
				next.Controllers[i] = record.Controller{RC: r, Index: next.Index}
			}
		}
	}
	c.svc = &next
}

// turned makes a service whose second rollout rolls back to the first revision.
func turned(t *testing.T, c *cluster) {
	t.Helper()
	c.deployed(t, sample(t))
	c.under(t, sample(t, newManifest))
	c.svc.Rollout.Request = &rollout.Request{Verb: rollout.RollbackVerb, By: "bob"}
	seen := rollout.Observed{Now: when, Revisions: map[string]rollout.Seen{}}
	for _, o := range c.svc.Controllers {
		seen.Revisions[o.RC.ID] = rollout.Seen{RC: o.RC, Status: o.Status}
	}
	d := rollout.Decide(*c.svc.Rollout, seen)
	if c.svc.Rollout = &d.Record; d.Record.State != rollout.RollingBack {
		t.Fatalf("%+v", d.Record)
	}
}

// While a rollout rolls back, other counts are for an older revision, not for the newest. So the plan names the
// revision.
func TestScalingAWayBackWarns(t *testing.T) {
	c := &cluster{}
	turned(t, c)
	p, err := c.planOf(t, sample(t, newManifest, `replicas=5`))
	want := []string{"the rollout goes back to web-r1: that gets the number of pods, and web-r2 goes"}
	if err != nil || !slices.Equal(p.Warnings, want) {
		t.Errorf("%q, %v", p.Warnings, err)
	}
}

// planOf plans a document and returns the lines of the plan.
func (c *cluster) planOf(t *testing.T, spec *record.ServiceSpec,
	change ...func(*plan.ServicePlanner),
) (plan.Plan, error) {
	t.Helper()
	resolved, err := (&plan.ServiceSpecResolver{}).Resolve(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	strategy := rolling()
	for _, f := range change {
		f(strategy)
	}
	return plan.NewDeployment(c, *resolved, strategy).Plan(t.Context())
}

func linesOf(p plan.Plan) []string {
	lines := []string{}
	for _, l := range p.Lines() {
		text := l.Text
		if strings.HasPrefix(text, "create manifest") {
			text = "create manifest " + text[strings.LastIndex(text, " of "):]
		}
		if head, _, cut := strings.Cut(text, ": "); cut {
			text = head
		}
		lines = append(lines, fmt.Sprintf("%s%s %s", strings.Repeat("  ", l.Depth), l.Sign, text))
	}
	return lines
}

const newManifest = `pod.labels={"v": "2"}`

func TestPlans(t *testing.T) {
	one := func(t *testing.T, c *cluster) { c.deployed(t, sample(t)) }
	upgrade := []string{
		"+ create manifest  of pod web", "+ create controller web-r2", "~ start rollout availability",
		"  + run 3 pods of web-r2", "  - stop 3 pods of web-r1",
		"  - remove 3 pods of web-r1", "  - delete controller web-r1 when it has no pods",
	}
	for _, tt := range []struct {
		name     string
		world    func(*testing.T, *cluster)
		spec     []string
		strategy func(*plan.ServicePlanner)
		want     []string
	}{
		{"new", nil, nil, nil, []string{
			"+ create manifest  of pod web", "+ create controller web-r1", "~ start rollout availability",
			"  + run 3 pods of web-r1",
		}},
		{
			"new, of one pod with a volume, in place",
			nil,
			[]string{`replicas=1`, `pod.volumes=[{"name": "data"}]`, `update.strategy="in-place"`},
			nil,
			[]string{
				"+ create manifest  of pod web", "+ create controller web-r1", "~ start rollout availability",
				"  + create volume data for each of 1 pod, on its node",
				"  + run 1 pod of web-r1",
			},
		},
		{"new, of no pods", nil, []string{`replicas=0`}, nil, []string{
			"+ create manifest  of pod web", "+ create controller web-r1", "~ start rollout availability",
		}},
		{"the same", one, nil, nil, []string{}},
		{"another manifest", one, []string{newManifest}, nil, upgrade},
		{"the same again by force", one, nil, func(r *plan.ServicePlanner) { r.ForceRecreate = true }, upgrade},
		{"another selector", one, []string{`node_selector="a=b"`}, nil, upgrade},
		{"more", one, []string{`replicas=5`}, nil, []string{
			"~ change controller web-r1", "~ scale main of controller web-r1 from 3 to 5",
			"~ record the document of service web, revision 1", "  + run 2 pods of web-r1",
		}},
		{
			"a label", one,
			[]string{`labels={"a": "b"}`},
			nil,
			[]string{"~ change controller web-r1", "~ record the document of service web, revision 1"},
		},
		{
			"other groups", one,
			[]string{
				`replicas=null`,
				`replica_groups=[{"role": "a", "count": 1}, {"role": "b", "count": 0}]`,
			},
			nil,
			[]string{
				"~ change controller web-r1", "~ scale a of controller web-r1 from 0 to 1",
				"~ scale main of controller web-r1 from 3 to 0",
				"~ record the document of service web, revision 1", "  + run 1 pod of web-r1",
				"  - stop 3 pods of web-r1", "  - remove 3 pods of web-r1",
			},
		},
		{
			"a group of its own", one,
			[]string{`replicas=null`, `replica_groups=[{"role": "main", "count": 3, "env": {"A": "b"}}]`},
			nil,
			slices.Concat(upgrade[:1], upgrade),
		},
		{
			"a group of its own, in place", one,
			[]string{
				`replicas=null`, `update.strategy="in-place"`,
				`replica_groups=[{"role": "main", "count": 3, "env": {"A": "b"}}]`,
			},
			nil,
			[]string{
				"+ create manifest  of pod web", "+ create manifest  of pod web", "~ start rollout in-place",
				"  -/+ upgrade in place 3 pods of web-r1",
			},
		},
		{
			"one of two groups, in place", func(t *testing.T, c *cluster) {
				groups := `replica_groups=[{"role": "main", "count": 3}, ` +
					`{"role": "read", "count": 2, "env": {"A": "a"}}]`
				c.deployed(t, sample(t, `replicas=null`, groups))
			},
			[]string{
				`replicas=null`, `update.strategy="in-place"`,
				`replica_groups=[{"role": "main", "count": 3}, {"role": "read", "count": 4, "env": {"A": "b"}}]`,
			},
			nil,
			[]string{
				"+ create manifest  of pod web", "+ create manifest  of pod web", "~ start rollout in-place",
				"  -/+ upgrade in place 2 pods of web-r1", "  + run 2 pods of web-r1",
			},
		},
		{
			"old ones first", one,
			[]string{newManifest, `update.order="stop-first"`},
			nil,
			slices.Replace(slices.Clone(upgrade), 2, 3, "~ start rollout resourceutil"),
		},
		{
			"another strategy this time", one,
			[]string{newManifest},
			func(r *plan.ServicePlanner) { r.Override = "blue-green" },
			slices.Replace(slices.Clone(upgrade), 2, 3, "~ start rollout blue-green"),
		},
		{"old ones stay", one, []string{newManifest, `update.leave_old=true`}, nil, upgrade[:6]},
		{"in place", one, []string{newManifest, `update.strategy="in-place"`}, nil, []string{
			"+ create manifest  of pod web", "~ start rollout in-place", "  -/+ upgrade in place 3 pods of web-r1",
		}},
		{
			"in place, and more", one,
			[]string{
				newManifest, `update.strategy="in-place"`, `replicas=4`,
				`pod.volumes=[{"name": "data"}]`,
			},
			nil,
			[]string{
				"+ create manifest  of pod web", "~ start rollout in-place", "  -/+ upgrade in place 3 pods of web-r1",
				"  + create volume data for each of 1 pod, on its node", "  + run 1 pod of web-r1",
			},
		},
		{
			"in place, of no pods", func(t *testing.T, c *cluster) { c.deployed(t, sample(t, `replicas=0`)) },
			[]string{newManifest, `update.strategy="in-place"`, `replicas=0`},
			nil,
			[]string{
				"+ create manifest  of pod web", "~ start rollout in-place",
			},
		},
		{"in place, and fewer", one, []string{newManifest, `update.strategy="in-place"`, `replicas=1`}, nil, []string{
			"+ create manifest  of pod web", "~ start rollout in-place", "  -/+ upgrade in place 1 pod of web-r1",
			"  - stop 2 pods of web-r1", "  - remove 2 pods of web-r1",
		}},
		{
			"with a program before", one,
			[]string{newManifest, `pre_deploy={"command": "bin/migrate"}`},
			nil,
			slices.Insert(slices.Clone(upgrade), 1,
				"+ create manifest  of pod web-pre-deploy", "+ create controller web-r2-pre-deploy"),
		},
		{"a program before that alone changes", one, []string{`pre_deploy={"command": "bin/migrate"}`}, nil, []string{
			"~ change controller web-r1", "~ record the document of service web, revision 1",
		}},
		{
			"the controller was deleted", func(t *testing.T, c *cluster) { one(t, c); c.svc.Controllers = nil },
			nil, nil, upgrade[:4],
		},
		{
			"the controller is being deleted",
			func(t *testing.T, c *cluster) { one(t, c); c.svc.Controllers[0].RC.DeletedAt = &when },
			nil, nil, upgrade[:4],
		},
		{"somebody scaled the controller", func(t *testing.T, c *cluster) {
			one(t, c)
			c.svc.Controllers[0].RC.ReplicaGroups = sample(t, `replicas=9`).Groups()
		}, nil, nil, []string{
			"~ change controller web-r1", "~ record the document of service web, revision 1",
			"  - stop 6 pods of web-r1", "  - remove 6 pods of web-r1",
		}},
		{"somebody removed a group", func(t *testing.T, c *cluster) {
			one(t, c)
			c.svc.Controllers[0].RC.ReplicaGroups = nil
		}, nil, nil, []string{
			"~ change controller web-r1", "~ record the document of service web, revision 1",
			"  + run 3 pods of web-r1",
		}},
		{"somebody changed its manifest", func(t *testing.T, c *cluster) {
			one(t, c)
			c.svc.Controllers[0].RC.ManifestDigest = "x"
		}, nil, nil, []string{
			"+ create manifest  of pod web", "~ change controller web-r1",
			"~ record the document of service web, revision 1",
		}},
		{"after an abort", func(t *testing.T, c *cluster) {
			c.deployed(t, sample(t))
			c.deployed(t, sample(t, newManifest))
			c.svc.Controllers[0].RC.ReplicaGroups = sample(t, `replicas=2`).Groups()
		}, []string{newManifest}, nil, []string{
			"+ create manifest  of pod web", "+ create controller web-r3", "~ start rollout availability",
			"  + run 3 pods of web-r3",
			"  - stop 2 pods of web-r1", "  - remove 2 pods of web-r1",
			"  - delete controller web-r1 when it has no pods",
			"  - stop 3 pods of web-r2", "  - remove 3 pods of web-r2",
			"  - delete controller web-r2 when it has no pods",
		}},
		{"pods of another revision still stop", func(t *testing.T, c *cluster) {
			c.deployed(t, sample(t))
			c.deployed(t, sample(t, newManifest))
			c.svc.Controllers[0].Status = &rc.Status{Stopping: 1}
		}, []string{newManifest}, nil, []string{
			"+ create manifest  of pod web", "+ create controller web-r3", "~ start rollout availability",
			"  + run 3 pods of web-r3",
			"  - delete controller web-r1 when it has no pods", "  - stop 3 pods of web-r2",
			"  - remove 3 pods of web-r2", "  - delete controller web-r2 when it has no pods",
		}},
		{
			"an upgrade in place was given up", func(t *testing.T, c *cluster) {
				c.deployed(t, sample(t, `update.strategy="in-place"`))
				c.svc.Controllers[0].RC.InPlace = &rc.InPlace{Limit: 1}
			},
			[]string{`update.strategy="in-place"`},
			nil,
			[]string{"~ start rollout in-place", "  -/+ upgrade in place 3 pods of web-r1"},
		},
		{"the last rollout failed, its document again", failed, []string{newManifest}, nil, []string{
			"+ create manifest  of pod web", "+ create controller web-r3", "~ start rollout availability",
			"  + run 3 pods of web-r3", "  - stop 3 pods of web-r1",
			"  - remove 3 pods of web-r1", "  - delete controller web-r1 when it has no pods",
			"  - delete controller web-r2 when it has no pods",
		}},
		{"the last rollout failed, the document before", failed, nil, nil, []string{}},
		{"the first rollout failed, its document again", ended(rollout.Failed, 3), nil, nil, afresh},
		{"the first rollout failed early, its document again", ended(rollout.Failed, 0), nil, nil, []string{
			"+ create manifest  of pod web", "+ create controller web-r2", "~ start rollout availability",
			"  + run 3 pods of web-r2",
			"  - delete controller web-r1 when it has no pods",
		}},
		{
			"the first rollout failed, its document with other counts",
			ended(rollout.Failed, 3),
			[]string{"replicas=4"},
			nil,
			[]string{
				"+ create manifest  of pod web", "+ create controller web-r2", "~ start rollout availability",
				"  + run 4 pods of web-r2",
				"  - stop 3 pods of web-r1", "  - remove 3 pods of web-r1",
				"  - delete controller web-r1 when it has no pods",
			},
		},
		{"the first rollout was aborted before it had pods", ended(rollout.Aborted, 0), nil, nil, []string{
			"+ create manifest  of pod web", "+ create controller web-r2", "~ start rollout availability",
			"  + run 3 pods of web-r2",
			"  - delete controller web-r1 when it has no pods",
		}},
		{"the first rollout was aborted in mid-course", ended(rollout.Aborted, 2), nil, nil, []string{
			"~ change controller web-r1", "~ record the document of service web, revision 1", "  + run 1 pod of web-r1",
		}},
		{"the first rollout was aborted late", ended(rollout.Aborted, 3), nil, nil, []string{}},
		{
			"static, the first rollout failed early", ended(rollout.Failed, 0, static, migrates),
			[]string{static, migrates},
			nil, early,
		},
		{
			"static, the first rollout failed late", ended(rollout.Failed, 1, static, migrates),
			[]string{static, migrates},
			nil, append(slices.Clone(late), "  + run 2 pods of web-r1"),
		},
		{
			"static, the first rollout was aborted early",
			ended(rollout.Aborted, 0, static, migrates),
			[]string{static, migrates},
			nil, early,
		},
		{
			"volumes, the first rollout failed early",
			ended(rollout.Failed, 0, volumes, migrates),
			[]string{volumes, migrates},
			nil, earlyVolumes,
		},
		{
			"volumes, the first rollout failed early, another manifest",
			ended(rollout.Failed, 0, volumes, migrates),
			[]string{volumes, migrates, newManifest},
			nil, earlyVolumes,
		},
		{
			"volumes, the first rollout failed, then all pods went", func(t *testing.T, c *cluster) {
				ended(rollout.Failed, 0, volumes, migrates)(t, c)
				c.svc.Controllers[0].RC.Generation = 2
			},
			[]string{volumes, migrates},
			nil,
			append(slices.Clone(late), "  + create volume data for each of 3 pods, on its node",
				"  + run 3 pods of web-r1"),
		},
		{"volumes, the first rollout failed early, then it was disabled and enabled", func(t *testing.T, c *cluster) {
			ended(rollout.Failed, 0, volumes, migrates)(t, c)
			c.svc.Controllers[0].RC.Generation, c.svc.Controllers[0].RC.Toggled = 3, 2
		}, []string{volumes, migrates}, nil, earlyVolumes},
		{
			"volumes, the first rollout failed, then all pods went, and it was disabled",
			func(t *testing.T, c *cluster) {
				ended(rollout.Failed, 0, volumes, migrates)(t, c)
				c.svc.Controllers[0].RC.Generation, c.svc.Controllers[0].RC.Toggled = 3, 1
			},
			[]string{volumes, migrates},
			nil,
			append(slices.Clone(late), "  + create volume data for each of 3 pods, on its node",
				"  + run 3 pods of web-r1"),
		},
		{
			"in place, the first rollout failed early",
			ended(rollout.Failed, 0, upgrades, migrates),
			[]string{upgrades, migrates},
			nil, early,
		},
		{
			"in place, the first rollout failed early, another manifest",
			ended(rollout.Failed, 0, upgrades, static, migrates),
			[]string{upgrades, static, migrates, newManifest},
			nil, early,
		},
		{
			"in place, the first rollout failed, then all pods went", func(t *testing.T, c *cluster) {
				ended(rollout.Failed, 0, upgrades, migrates)(t, c)
				c.svc.Controllers[0].RC.Generation = 2
			},
			[]string{upgrades, migrates},
			nil, early,
		},
		{"on each node, the first rollout failed early", func(t *testing.T, c *cluster) {
			c.deployed(t, sample(t, `replicas=null`, `mode="each-node"`))
			c.svc.Controllers[0].RC.InPlace, c.svc.History[0].Outcome = nil, rollout.Failed
		}, []string{`replicas=null`, `mode="each-node"`}, nil, []string{}},
		{
			"in place, the first rollout failed late, another manifest",
			ended(rollout.Failed, 1, upgrades, migrates),
			[]string{upgrades, migrates, newManifest},
			nil,
			[]string{
				"+ create manifest  of pod web", "+ create manifest  of pod web-pre-deploy",
				"+ create controller web-r2-pre-deploy",
				"~ start rollout in-place", "  -/+ upgrade in place 1 pod of web-r1", "  + run 2 pods of web-r1",
			},
		},
		{"in place, the first rollout is under way and has no pods, another manifest", func(t *testing.T, c *cluster) {
			c.under(t, sample(t, upgrades, static, migrates))
		}, []string{upgrades, static, migrates, newManifest}, nil, []string{
			"+ create manifest  of pod web", "+ create manifest  of pod web-pre-deploy",
			"+ create controller web-r2-pre-deploy", "+ create controller web-r2",
			"~ replace the rollout under way by rollout availability", "  + run 3 pods of web-r2",
			"  - delete controller web-r1 when it has no pods",
		}},
		{"two revisions after an abort, the document before", aborted, nil, nil, afterAbort},
		{"two revisions after an abort, its document again", aborted, []string{newManifest}, nil, afterAbort},
		{"under way, the same", func(t *testing.T, c *cluster) { c.under(t, sample(t)) }, nil, nil, []string{}},
		{
			"under way, more", func(t *testing.T, c *cluster) { c.under(t, sample(t)) },
			[]string{`replicas=5`, `update.step=2`},
			nil,
			[]string{
				"~ scale main of controller web-r1 from 3 to 5", "~ redirect to other counts the rollout availability",
				"  + run 5 pods of web-r1",
			},
		},
		{
			"under way, other knobs", func(t *testing.T, c *cluster) { c.under(t, sample(t)) },
			[]string{`update.step=2`},
			nil,
			[]string{
				"~ record the document of service web, revision 1",
			},
		},
		{"going back, more", turned, []string{newManifest, `replicas=5`}, nil, []string{
			"~ scale main of controller web-r1 from 3 to 5", "~ redirect to other counts the rollout availability",
			"  + run 2 pods of web-r1",
		}},
		{"going back, fewer", turned, []string{newManifest, `replicas=1`}, nil, []string{
			"~ scale main of controller web-r1 from 3 to 1", "~ redirect to other counts the rollout availability",
			"  - stop 2 pods of web-r1", "  - remove 2 pods of web-r1",
		}},
		{"going back, another manifest", turned, []string{`pod.labels={"v": "3"}`}, nil, []string{
			"+ create manifest  of pod web", "+ create controller web-r3",
			"~ replace the rollout under way by rollout availability", "  + run 3 pods of web-r3",
			"  - stop 3 pods of web-r1", "  - remove 3 pods of web-r1",
			"  - delete controller web-r1 when it has no pods", "  - delete controller web-r2 when it has no pods",
		}},
		{"under way, another manifest", func(t *testing.T, c *cluster) {
			one(t, c)
			c.under(t, sample(t, newManifest))
		}, []string{`pod.labels={"v": "3"}`}, nil, []string{
			"+ create manifest  of pod web", "+ create controller web-r3",
			"~ replace the rollout under way by rollout availability", "  + run 3 pods of web-r3",
			"  - stop 3 pods of web-r1", "  - remove 3 pods of web-r1",
			"  - delete controller web-r1 when it has no pods", "  - delete controller web-r2 when it has no pods",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cluster{}
			if tt.world != nil {
				tt.world(t, c)
			}
			strategy := tt.strategy
			if strategy == nil {
				strategy = func(*plan.ServicePlanner) {}
			}
			p, err := c.planOf(t, sample(t, tt.spec...), strategy)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, linesOf(p)); diff != "" {
				t.Error(diff)
			}
			if p.Empty() != (len(tt.want) == 0) || p.ServiceName != "web" || p.ServiceID == "" {
				t.Errorf("%+v", p)
			}
		})
	}
}

// afresh and afterAbort are the lines of plans that replace a revision by a new one.
var (
	afresh = []string{
		"+ create manifest  of pod web", "+ create controller web-r2", "~ start rollout availability",
		"  + run 3 pods of web-r2",
		"  - stop 3 pods of web-r1", "  - remove 3 pods of web-r1", "  - delete controller web-r1 when it has no pods",
	}
	afterAbort = []string{
		"+ create manifest  of pod web", "+ create controller web-r3", "~ start rollout availability",
		"  + run 3 pods of web-r3",
		"  - stop 2 pods of web-r1", "  - remove 2 pods of web-r1", "  - delete controller web-r1 when it has no pods",
		"  - stop 1 pod of web-r2", "  - remove 1 pod of web-r2", "  - delete controller web-r2 when it has no pods",
	}
)

// Fields of documents: pods that stay on their nodes, and programs that run first.
const (
	static    = `strategy="static"`
	volumes   = `pod.volumes=[{"name": "data"}]`
	upgrades  = `update.strategy="in-place"`
	migrates  = `pre_deploy={"command": "bin/migrate"}`
	elsewhere = `update.strategy="availability"`
)

// early and late are the lines of plans that try the first revision, which has a pre_deploy, again: early if it had no
// pods yet, late if it had pods.
var (
	early = []string{
		"+ create manifest  of pod web", "+ create manifest  of pod web-pre-deploy",
		"+ create controller web-r2-pre-deploy", "+ create controller web-r2",
		"~ start rollout availability", "  + run 3 pods of web-r2", "  - delete controller web-r1 when it has no pods",
	}
	earlyVolumes = slices.Insert(slices.Clone(early), 5, "  + create volume data for each of 3 pods, on its node")
	late         = []string{"~ change controller web-r1", "~ record the document of service web, revision 1"}
)

// ended makes a service whose first rollout ended with this outcome and this number of pods.
func ended(outcome rollout.State, pods int, fields ...string) func(*testing.T, *cluster) {
	return func(t *testing.T, c *cluster) {
		c.deployed(t, sample(t, fields...))
		c.svc.Controllers[0].RC.ReplicaGroups = sample(t, fmt.Sprintf("replicas=%d", pods)).Groups()
		c.svc.History[0].Outcome = outcome
	}
}

// aborted makes a service whose second rollout was aborted midway.
func aborted(t *testing.T, c *cluster) {
	c.deployed(t, sample(t))
	c.deployed(t, sample(t, newManifest))
	c.svc.Controllers[0].RC.ReplicaGroups = sample(t, `replicas=2`).Groups()
	c.svc.Controllers[1].RC.ReplicaGroups = sample(t, `replicas=1`).Groups()
	c.svc.History[1].Outcome = rollout.Aborted
}

// failed makes a service whose second revision was rolled back.
func failed(t *testing.T, c *cluster) {
	c.deployed(t, sample(t))
	c.deployed(t, sample(t, newManifest))
	first, second := &c.svc.Controllers[0].RC, &c.svc.Controllers[1].RC
	first.ReplicaGroups, second.ReplicaGroups = second.ReplicaGroups, first.ReplicaGroups
	c.svc.History[1].Outcome = rollout.Failed
}

func TestRefusedPlans(t *testing.T) {
	one := func(t *testing.T, c *cluster) { c.deployed(t, sample(t)) }
	under := func(t *testing.T, c *cluster) { c.under(t, sample(t)) }
	for _, tt := range []struct {
		name     string
		world    func(*testing.T, *cluster)
		spec     []string
		strategy func(*plan.ServicePlanner)
		want     string
	}{
		{
			"no volumes any more", func(t *testing.T, c *cluster) { c.deployed(t, sample(t, volumes)) },
			[]string{newManifest, elsewhere},
			nil,
			"service web: now pods have volumes and strategy is not dynamic, and they stay with their data, so " +
				"no pod of a new revision could take its place; use update.strategy: in-place",
		},
		{
			"volumes", one,
			[]string{volumes},
			func(r *plan.ServicePlanner) { r.Override = rollout.CanaryStrategy },
			"the strategy canary replaces pods by others, and pods have volumes and strategy is not dynamic: they " +
				"stay with their data; " +
				"leave the strategy out, or use in-place",
		},
		{
			"static no more", func(t *testing.T, c *cluster) { c.deployed(t, sample(t, static)) },
			[]string{newManifest, `strategy="dynamic"`, elsewhere},
			nil,
			"now strategy is static, and pods stay on their nodes",
		},
		{
			"nothing could move", one,
			[]string{newManifest, `update={"max_surge": 0, "max_unavailable": 0}`},
			nil,
			"max_surge is 0 and max_unavailable is 0",
		},
		{
			"disabled", func(t *testing.T, c *cluster) { one(t, c); c.svc.Controllers[0].RC.Disabled = true },
			[]string{`replicas=9`},
			nil,
			"service web: its controller web-r1 is disabled, so no farm would act on it; enable it first: rcctl " +
				"rc enable web-r1",
		},
		{
			"recreate in place", one,
			[]string{`update.strategy="in-place"`},
			func(r *plan.ServicePlanner) { r.ForceRecreate = true }, "leave --recreate out",
		},
		{
			"other knobs while it rolls back", func(t *testing.T, c *cluster) {
				under(t, c)
				c.svc.Rollout.State = rollout.RollingBack
			},
			[]string{`update.step=2`},
			nil,
			"its rollout is rolling back; wait until that has ended: rcctl rollout status web -w",
		},
		{"rolling back, paused", func(t *testing.T, c *cluster) {
			under(t, c)
			c.svc.Rollout.State, c.svc.Rollout.Resume = rollout.Paused, rollout.RollingBack
		}, []string{`update.step=2`}, nil, "its rollout is rolling back"},
		{
			"other labels in mid-course", under,
			[]string{`labels={"a": "b"}`, `update.step=2`, `replicas=4`},
			nil,
			"a rollout is under way, and labels.a would change its controllers; wait until that has ended: rcctl " +
				"rollout status web -w",
		},
		{
			"old pods take longer to stop than a stage may",
			func(t *testing.T, c *cluster) { c.deployed(t, sample(t, `pod.service={"drain": "1m"}`)) },
			[]string{newManifest, `update.stage_timeout="1m"`},
			nil,
			"service web: update.stage_timeout is 1m0s, within which no pod of the revision in effect could be " +
				"replaced; set update.stage_timeout to more than 1m0s, for which a pod serves on before it stops " +
				"(pod.service.drain), or 0s for no limit",
		},
		{
			"in place after all", one,
			[]string{newManifest, `update.stage_timeout="11s"`},
			func(r *plan.ServicePlanner) { r.Override = rollout.InPlaceStrategy },
			"set update.stage_timeout to more than 11s, for which a pod serves on (pod.service.drain) and then runs",
		},
		{"leave_old without an old one", nil, []string{`update.leave_old=true`}, nil, "leave_old"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cluster{}
			if tt.world != nil {
				tt.world(t, c)
			}
			n := len(c.commits)
			strategy := tt.strategy
			if strategy == nil {
				strategy = func(*plan.ServicePlanner) {}
			}
			_, err := c.planOf(t, sample(t, tt.spec...), strategy)
			var refused *plan.RefusedError
			if !errorsAs(err, &refused) || !strings.Contains(err.Error(), tt.want) || len(c.commits) != n {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// If a plan stops pods, it shows how many pods of which controller, even if it only scales.
func TestEveryStopIsInThePlan(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after []string
		want          []string
		never         string
	}{
		"fewer": {
			[]string{"replicas=3"},
			[]string{"replicas=1"},
			[]string{"- stop 2 pods of web-r1", "- remove 2 pods of web-r1"},
			"run ",
		},
		"more":    {[]string{"replicas=3"}, []string{"replicas=5"}, []string{"+ run 2 pods of web-r1"}, "stop "},
		"as many": {[]string{"replicas=3"}, []string{"replicas=3", `node_loss={"action":"keep"}`}, nil, "stop "},
		"fewer of new": {
			[]string{"replicas=6"},
			[]string{"replicas=2", `pod.labels={"a":"b"}`},
			[]string{"+ run 2 pods of web-r2", "- stop 6 pods of web-r1"},
			"scale ",
		},
		"counts to each node": {
			[]string{"replicas=3", `update={"strategy":"in-place"}`},
			[]string{"replicas=null", `mode="each-node"`, `update={"strategy":"in-place"}`},
			[]string{"+ run 1 pod of web-r1"},
			"scale ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cluster{}
			c.deployed(t, sample(t, tc.before...))
			state := nodes(9, 9, 9, 9)
			c.runs(state, "n0", "n1", "n2")
			p, err := c.planOf(t, sample(t, tc.after...), func(s *plan.ServicePlanner) { s.State = state })
			if err != nil {
				t.Fatal(err)
			}
			lines := linesOf(p)
			for _, want := range tc.want {
				if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, want) }) {
					t.Errorf("no %q in\n%s", want, strings.Join(lines, "\n"))
				}
			}
			if all := strings.Join(lines, "\n"); strings.Contains(all, tc.never) {
				t.Errorf("%q in\n%s", tc.never, all)
			}
		})
	}
}

// If a document only adds fields with their defaults, the plan keeps the stored manifest with its signature, and
// restarts no pod.
func TestWrittenDefaultsChangeNothing(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	usual := []string{`pod.min_ready="10s"`, `strategy="dynamic"`, `mode="replicas"`, `placing="spread"`}
	if p, err := c.planOf(t, sample(t, usual...)); err != nil || !p.Empty() {
		t.Errorf("%v, %v", linesOf(p), err)
	}
	for _, more := range []string{`labels={"a":"b"}`, `update.strategy="availability"`} {
		p, err := c.planOf(t, sample(t, append(usual, more)...))
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"~ change controller web-r1", "~ record the document of service web, revision 1"}
		if diff := cmp.Diff(want, linesOf(p)); diff != "" || len(p.Change.Fields) != 1 {
			t.Errorf("%s: %v %s", more, p.Change.Fields, diff)
		}
	}
	p, err := c.planOf(t, sample(t, `pod.min_ready="11s"`))
	if err != nil || p.Change.Kind != plan.NeedsRecreate || len(p.Change.Fields) != 1 ||
		p.Change.Fields[0].String() != `pod.min_ready: "10s" -> "11s"` {
		t.Errorf("%+v, %v", p.Change, err)
	}
}

// A paused rollout that does not roll back can get other counts.
func TestPausedRolloutIsRescaled(t *testing.T) {
	c := &cluster{}
	c.under(t, sample(t))
	c.svc.Rollout.State, c.svc.Rollout.Resume = rollout.Paused, rollout.Progressing
	two := 2
	c.svc.Controllers = append(c.svc.Controllers,
		record.Controller{
			RC: rc.RC{ID: "old", Name: "web-r7", ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &two}}},
		},
		record.Controller{RC: rc.RC{ID: "gone", Name: "web-r8"}})
	p, err := c.planOf(t, sample(t, `replicas=4`))
	if err != nil || p.Empty() {
		t.Fatal(p, err)
	}
	// Controllers of revisions that have no pods left are deleted at the end of the rollout. An earlier plan showed
	// this, so this plan does not.
	if text := fmt.Sprint(p.Lines()); !strings.Contains(text, "web-r7") || strings.Contains(text, "web-r8") {
		t.Error(text)
	}
}

// nodes is a state with a node for each given number of slots.
func nodes(slots ...int) *plan.State {
	s := &plan.State{Epoch: "n", Nodes: map[string]*node.View{}, Taken: map[string]node.Reservation{}}
	for i, n := range slots {
		name := fmt.Sprintf("n%d", i)
		s.Nodes[name] = node.NewView(node.Node{
			Name: name, Epoch: "n",
			Capacity: node.Capacity{Slots: n}, PortRange: node.PortRange{Min: 2000, Max: 2003},
		}, node.Ops{
			Name: name,
		}, true)
		s.Nodes[name].OrphanPages = &node.OrphanPages{}
		s.Taken[name] = node.Reservation{Labels: s.Nodes[name].LabelVersions, Claims: map[string]node.Claim{}}
	}
	return s
}

func TestRoom(t *testing.T) {
	for _, tt := range []struct {
		name    string
		state   *plan.State
		spec    []string
		wanted  int
		pods    int
		reasons string
	}{
		{"enough", nodes(2, 2), nil, 3, 3, ""},
		{"as many as wanted", nodes(2, 2), nil, 1, 1, ""},
		{"too few slots", nodes(2, 1), nil, 9, 3, "resources: 2"},
		{"no nodes", nodes(), nil, 1, 0, ""},
		{"selector", nodes(2), []string{`node_selector="a=b"`}, 1, 0, "selector: 1"},
		{"per node", nodes(2, 2), []string{`max_per_node=1`}, 4, 2, "max_per_node: 2"},
		{"static port", nodes(5, 5), []string{`pod.ports=[{"name": "http", "port": 80}]`}, 4, 2, "ports: 2"},
		{"selector that cannot be read", nodes(2), []string{`node_selector=""`}, 1, 1, ""},
	} {
		got := tt.state.Room(sample(t, tt.spec...), tt.wanted)
		if got.Pods != tt.pods || got.Reasons.String() != tt.reasons {
			t.Errorf("%s: %d %s, want %d %s", tt.name, got.Pods, got.Reasons, tt.pods, tt.reasons)
		}
	}
	bad := sample(t)
	bad.NodeSelector = "a in"
	if got := nodes(2).Room(bad, 1); got.Pods != 0 || len(got.Reasons) != 0 {
		t.Error(got)
	}
	state := nodes(3)
	state.Taken["n0"].Claims["x"] = node.Claim{Pod: pod.Identity{RCID: "x"}}
	before := len(state.Taken["n0"].Claims)
	if got := state.Room(sample(t), 9); got.Pods != 2 || len(state.Taken["n0"].Claims) != before {
		t.Errorf("%+v, %+v", got, state.Taken)
	}
}

func TestNoRoom(t *testing.T) {
	for _, tt := range []struct {
		name  string
		state *plan.State
		spec  []string
		want  string // error; empty: planned
		kind  string
	}{
		{"room for the surge", nodes(1), []string{newManifest}, "", "availability"},
		{
			"none", nodes(),
			[]string{newManifest},
			"service web: no-room: no node takes a pod of the new revision, not even without those that it has now " +
				"(nodes that take no more: there are none); no strategy helps: add nodes, or free some of what is " +
				"taken: rcctl place --explain -f FILE shows it", "",
		},
		{
			"some", nodes(1),
			[]string{newManifest, `update.step=2`},
			"starts 2 pods before it stops others, and the nodes have room for 1 (nodes that take no more: " +
				"resources: 1); " +
				"use update.max_surge: 1, --strategy resourceutil (old pods stop first) or --strategy in-place (pods " +
				"stay on their nodes)", "",
		},
		{"surge that fits", nodes(1), []string{newManifest, `update={"step": 2, "max_surge": 1}`}, "", "availability"},
		{"share", nodes(1), []string{newManifest, `update={"step": "67%"}`}, "starts 2 pods", ""},
		{
			"blue-green", nodes(2),
			[]string{newManifest, `update.strategy="blue-green"`},
			"blue-green starts 3 pods before it stops others, and the nodes have room for 2 " +
				"(nodes that take no more: resources: 1); use --strategy availability (new pods start first)", "",
		},
		{
			"blue-green with large steps", nodes(2),
			[]string{newManifest, `update={"strategy": "blue-green", "step": 3}`},
			"use --strategy availability with update.max_surge: 2", "",
		},
		{
			"blue-green with steps that have room", nodes(2),
			[]string{newManifest, `update={"strategy": "blue-green", "step": 2}`},
			"resources: 1); use --strategy availability (new pods start first)", "",
		},
		{
			"blue-green without any", nodes(),
			[]string{newManifest, `update.strategy="blue-green"`},
			"there are none); no strategy helps", "",
		},
		{"default step", nodes(1), []string{newManifest, `replicas=20`}, "starts 2 pods before it stops others", ""},
		{"more than there are", nodes(2, 2), []string{newManifest, `update.step=9`}, "", "availability"},
		{"stop first", nodes(1), []string{newManifest, `update.order="stop-first"`}, "", "resourceutil"},
		{
			"stop first without any", nodes(),
			[]string{newManifest, `update.order="stop-first"`},
			"there are none); no strategy helps", "",
		},
		{"in place", nodes(1), []string{newManifest, `update.strategy="in-place"`}, "", "in-place"},
		{
			"in place without any", nodes(),
			[]string{newManifest, `update.strategy="in-place"`},
			"there are none); no strategy helps", "",
		},
		{"no pods", nodes(), []string{newManifest, `replicas=0`}, "", "availability"},
		{"only counts", nodes(), []string{`replicas=9`}, "", "record"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cluster{}
			c.deployed(t, sample(t))
			p, err := c.planOf(t, sample(t, tt.spec...), func(r *plan.ServicePlanner) { r.State = tt.state })
			switch {
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got  %v\nwant %s", err, tt.want)
			case tt.want == "" && err != nil:
				t.Error(err)
			case err == nil && !strings.Contains(strings.Join(linesOf(p), "\n"), tt.kind):
				t.Error(linesOf(p))
			}
		})
	}
}

// A new service is deployed even if no node has capacity, because nodes may be added. The plan warns.
func TestNewServiceWithoutRoom(t *testing.T) {
	for _, tt := range []struct {
		state *plan.State
		want  []string
	}{
		{nodes(2), []string{"there is room for 2 of 3 pods (nodes that take no more: resources: 1)"}},
		{nodes(2, 1), nil},
	} {
		p, err := (&cluster{}).planOf(t, sample(t), func(r *plan.ServicePlanner) { r.State = tt.state })
		if diff := cmp.Diff(tt.want, p.Warnings); diff != "" || err != nil {
			t.Error(diff, err)
		}
	}
}

// If old and new pods need the same static port, and no node has it free, the old pods stop first.
func TestStaticPortStopsFirst(t *testing.T) {
	const port = `pod.ports=[{"name": "http", "port": 80}]`
	var full plan.State // full of the service's pods
	for _, tt := range []struct {
		name          string
		before, after string
		state         *plan.State
		more          string
		want          string
	}{
		{"nobody looks", port, port, nil, newManifest, "resourceutil"},
		{"there is a node", port, port, nodes(1), newManifest, "availability"},
		{"there is none", port, port, &full, newManifest, "resourceutil"},
		{"another port", `pod.ports=[{"name": "http", "port": 81}]`, port, nil, newManifest, "availability"},
		{
			"dynamic ports", `pod.ports=[{"name": "http", "dynamic": true}]`,
			`pod.ports=[{"name": "web", "dynamic": true}]`, nil, newManifest, "availability",
		},
		{"as the user says", port, port, nil, `update.order="start-first"`, "availability"},
		{"as the user says by strategy", port, port, nil, `update.strategy="availability"`, "availability"},
		{"as the user says by a canary", port, port, nil, `update.canary={"pods": 1}`, "canary"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cluster{}
			c.deployed(t, sample(t, tt.before))
			full = *c.full(3, 3)
			p, err := c.planOf(t, sample(t, tt.after, tt.more, newManifest), func(r *plan.ServicePlanner) {
				r.State = tt.state
			})
			if err != nil || !strings.Contains(strings.Join(linesOf(p), "\n"), "rollout "+tt.want) {
				t.Errorf("%v, %v", linesOf(p), err)
			}
		})
	}
}

// The pod of pre_deploy has no service and no ports, and is not restarted.
func TestPreDeployPod(t *testing.T) {
	c := &cluster{}
	spec := sample(t, `pre_deploy={"command": "bin/migrate", "args": ["up"], "env": {"TOKEN": "x", "B": "y"}}`,
		`labels={"team": "a"}`, `node_selector="a=b"`)
	c.under(t, spec)
	d := c.commits[0]
	if len(d.Create) != 2 || len(d.Manifests) != 2 {
		t.Fatalf("%d controllers, %d manifests", len(d.Create), len(d.Manifests))
	}
	r := d.Create[0]
	if r.Name != "web-r1-pre-deploy" || r.Desired() != 1 || !d.Rollout.Has(r.ID) || r.Service != nil ||
		r.NodeSelector != "a=b" || r.Labels["service"] != "" ||
		r.Labels["team"] != "a" || r.NodeLoss.Action != "keep" || r.Generation != 1 || d.Rollout.PreDeploy == nil ||
		d.Rollout.PreDeploy.RC != r.ID {
		t.Errorf("%+v, %+v", r, d.Rollout.PreDeploy)
	}
	m, err := manifest.Decode(d.Manifests[r.ManifestDigest])
	if err != nil {
		t.Fatal(err)
	}
	l := m.Launchables[0]
	if m.ID != "web-pre-deploy" || len(m.Ports) != 0 || l.Command != "bin/migrate" ||
		!slices.Equal(l.Args, []string{"up"}) || l.Restart.Policy != manifest.RestartNever ||
		l.Env["TOKEN"] != "x" || l.Env["B"] != "y" {
		t.Errorf("%+v", m)
	}
	if spec.Pod.Launchables[0].Env["TOKEN"] != "abc" {
		t.Error("the service's own environment changed")
	}
	for doc, want := range map[string][]string{`{}`: {"-v"}, `{"args": []}`: {}, `{"command": "bin/x"}`: nil} {
		c := &cluster{}
		c.under(t, sample(t, `pre_deploy=`+doc))
		m, err := manifest.Decode(c.commits[0].Manifests[c.commits[0].Create[0].ManifestDigest])
		if err != nil || !slices.Equal(m.Launchables[0].Args, want) || m.Launchables[0].Env["TOKEN"] != "abc" {
			t.Errorf("%s: %v, %v", doc, m, err)
		}
	}
}
