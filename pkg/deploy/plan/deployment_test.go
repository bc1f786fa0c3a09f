package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func errorsAs[T error](err error, target *T) bool { return errors.As(err, target) }

func deployment(t *testing.T, c *cluster, changes ...string) *plan.Deployment {
	t.Helper()
	resolved, err := (&plan.ServiceSpecResolver{}).Resolve(t.Context(), sample(t, changes...))
	if err != nil {
		t.Fatal(err)
	}
	return plan.NewDeployment(c, *resolved, rolling())
}

func TestDefaultStrategy(t *testing.T) {
	d := plan.NewDeployment(&cluster{}, *sample(t), nil)
	if _, is := d.Planner.(*plan.ServicePlanner); !is {
		t.Errorf("%T", d.Planner)
	}
	if p, err := d.Plan(t.Context()); err != nil || p.Empty() {
		t.Error(p, err)
	}
}

func TestPlanIsMadeOnce(t *testing.T) {
	c := &cluster{}
	d := deployment(t, c)
	first, err := d.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.err = errors.New("nobody may read")
	again, err := d.Plan(t.Context())
	if err != nil || &first.Operations[0] != &again.Operations[0] {
		t.Error(again, err)
	}
}

func TestRunTwice(t *testing.T) {
	d := deployment(t, &cluster{})
	if _, err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Run(t.Context()); !errors.Is(err, plan.ErrRan) {
		t.Error(err)
	}
}

func TestReadsThatFail(t *testing.T) {
	c := &cluster{err: errors.New("no answer")}
	d := deployment(t, c)
	if _, err := d.Plan(t.Context()); err == nil || err.Error() != "read service web: no answer" {
		t.Error(err)
	}
	if _, err := d.Run(t.Context()); err == nil {
		t.Error("it ran")
	}
	c.err = nil
	if _, err := d.Plan(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.err = errors.New("no answer")
	if _, err := d.Run(t.Context()); err == nil || len(c.commits) != 0 {
		t.Error(err)
	}
	reads := 0
	c = &cluster{}
	d = deployment(t, c)
	c.read = func(c *cluster) {
		if reads++; reads == 3 { // the read from which the rollout is made
			c.err = errors.New("no answer")
		}
	}
	if _, err := d.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no answer") || len(c.commits) != 0 {
		t.Error(err)
	}
}

// The same document again does nothing.
func TestRunNothing(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	c.read = func(c *cluster) { c.read = func(*cluster) { t.Error("read again") } }
	p, err := deployment(t, c).Run(t.Context())
	if err != nil || !p.Empty() || p.Rollout() != "" || len(c.commits) != 1 {
		t.Error(p, err)
	}
}

func TestRunWritesOnceAndWaits(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	p, err := deployment(t, c, newManifest, `replicas=2`).Run(t.Context())
	if err != nil || len(c.commits) != 2 {
		t.Fatal(err, len(c.commits))
	}
	d := c.commits[1]
	id := d.Rollout.ID
	old, up := d.Deployed.RC, ""
	for _, r := range d.Rollout.Revisions {
		if r.Direction == rollout.Up {
			up = r.RC
		} else {
			old = r.RC
		}
	}
	want := []plan.Goal{
		{Service: "web", Rollout: id, RC: up, Reached: plan.Available, Pods: 2},
		{Service: "web", Rollout: id, RC: old, Reached: plan.Left},
		{Service: "web", Rollout: id, RC: old, Reached: plan.Left},
		{Service: "web", Rollout: id, RC: old, Reached: plan.Gone},
	}
	if diff := cmp.Diff(want, c.goals); diff != "" {
		t.Error(diff)
	}
	if p.Rollout() != id || id == "" || d.Deployed.Rollout != id || d.Entry.Rollout != id || d.Service != "web" ||
		d.Seen.Index != 10 {
		t.Errorf("%+v", d)
	}
	if d.Deployed.RC != up || d.Deployed.Revision != 2 || d.Entry.Revision != 2 || d.Deployed.By != "ann" ||
		!d.Deployed.At.Equal(when) || d.Entry.By != "ann" ||
		d.Entry.Name != "web-r2" || d.Entry.RC != up ||
		d.Entry.Digests["https://files.example/web-1.2.tar.gz"] != strings.Repeat("a", 64) ||
		d.Deployed.ID != c.svc.Deployed.ID || d.Deployed.ID == "" || !d.Entry.At.Equal(when) {
		t.Errorf("%+v\n%+v", d.Deployed, d.Entry)
	}
	if len(d.Create) != 1 || d.Create[0].ID != up || d.Create[0].Desired() != 0 || d.Rollout.ID != id ||
		d.Create[0].Labels["service"] != "web" ||
		d.Create[0].Service.Revision != 2 || d.Create[0].Service.Name != "web" {
		t.Errorf("%+v", d.Create)
	}
	if len(d.Change) != 1 || d.Change[0].ID != old || len(d.Manifests[d.Create[0].ManifestDigest]) == 0 {
		t.Errorf("%+v", d.Change)
	}
	if !slices.Contains(d.Audit, `pod.labels.v: (none) -> "2"`) || len(d.Steps) == 0 {
		t.Error(d.Audit, d.Steps)
	}
	if err := d.Rollout.Check(); err != nil {
		t.Error(err)
	}
	if err := d.Deployed.Check(); err != nil {
		t.Error(err)
	}
	if err := d.Entry.Check(); err != nil {
		t.Error(err)
	}
}

func TestUpdateOfTheController(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	p, err := deployment(t, c, `replicas=5`, `update.min_available=2`).Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := c.commits[1]
	if p.Rollout() != "" || d.Rollout != nil || len(d.Create) != 0 || len(d.Change) != 1 || len(d.Manifests) != 0 {
		t.Fatalf("%+v", d)
	}
	r := d.Change[0]
	if want := []plan.Goal{{Service: "web", RC: r.ID, Reached: plan.Available, Pods: 5}}; !slices.Equal(c.goals, want) {
		t.Errorf("it waits for %+v", c.goals)
	}
	was := c.svc.Controllers[0].RC
	if r.Desired() != 5 || *r.MinAvailable != 2 || r.Generation != was.Generation+1 || r.AllowMassStop != 0 ||
		r.ID != was.ID || d.Deployed.Revision != 1 ||
		d.Deployed.RC != was.ID || was.Labels["service"] != "web" {
		t.Errorf("%+v", r)
	}
	strategy := rolling()
	strategy.MassStop = true
	resolved, _ := (&plan.ServiceSpecResolver{}).Resolve(t.Context(), sample(t, `replicas=1`))
	if _, err := plan.NewDeployment(c, *resolved, strategy).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := c.commits[2].Change[0]; r.AllowMassStop != r.Generation {
		t.Errorf("%+v", r)
	}
}

// An upgrade in place changes the controller, and gets a new revision number.
func TestInPlaceDraft(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t, `update.strategy="in-place"`))
	if _, err := deployment(t, c, newManifest, `update.strategy="in-place"`).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := c.commits[1]
	if len(d.Create) != 0 || len(d.Change) != 1 || d.Deployed.Revision != 2 || d.Change[0].Service.Revision != 2 ||
		d.Change[0].ManifestDigest != d.Entry.Manifest ||
		d.Rollout.Strategy != rollout.InPlaceStrategy || d.Change[0].Name != "web-r1" {
		t.Errorf("%+v", d)
	}
}

// If counts change while a rollout is under way, the rollout continues from the counts that it has reached.
func TestRescaleDraft(t *testing.T) {
	c := &cluster{}
	c.under(t, sample(t))
	id := c.svc.Rollout.ID
	if _, err := deployment(t, c, `replicas=5`).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := c.commits[1]; d.Rollout.ID != id || d.Rollout.Total() != 5 || len(d.Create) != 0 ||
		d.Deployed.Revision != 1 || d.Deployed.Spec.Total() != 5 {
		t.Errorf("%+v", d)
	}
}

func TestStalePlans(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*cluster)
		want   []string
	}{
		{"nothing", func(*cluster) {}, nil},
		{"what owners report", func(c *cluster) { c.svc.Controllers[0].Status = &rc.Status{Available: 1} }, nil},
		{"the document", func(c *cluster) {
			c.svc.Index++
			c.svc.Deployed.Spec.Labels, c.svc.Deployed.Spec.Spread = map[string]string{"a": "b"},
				rc.Spread{Label: "rack"}
		}, []string{`labels.a: (none) -> "b"`, `spread: (none) -> "rack"`}},
		{
			"who deployed it", func(c *cluster) { c.svc.Index++; c.svc.Deployed.By = "bob" },
			[]string{"the document was deployed again by bob"},
		},
		{"deleted", func(c *cluster) { c.svc = nil }, []string{"the service was deleted"}},
		{
			"a rollout began", func(c *cluster) { c.svc.Rollout = &rollout.Record{ID: "r", State: rollout.Paused} },
			[]string{"rollout: (none) -> paused"},
		},
		{
			"a controller was deleted", func(c *cluster) { c.svc.Controllers = nil },
			[]string{"controller web-r1: it was deleted"},
		},
		{"a controller was created", func(c *cluster) {
			c.svc.Controllers = append(c.svc.Controllers, record.Controller{RC: rc.RC{ID: "x", Name: "web-r9"}})
		}, []string{"controller web-r9: it was created"}},
		{"a controller changed", func(c *cluster) {
			c.svc.Controllers[0].Index++
			r := &c.svc.Controllers[0].RC
			r.Generation, r.ChangedBy, r.Spread, r.Disabled, r.Labels = 9, "bob", rc.Spread{Label: "rack"}, true, nil
		}, []string{"controller web-r1: disabled", "controller web-r1: labels", "controller web-r1: spread"}},
		{
			"a controller was written again", func(c *cluster) { c.svc.Controllers[0].Index++ },
			[]string{"controller web-r1: it was written again"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cluster{}
			c.deployed(t, sample(t))
			d := deployment(t, c, newManifest)
			if _, err := d.Plan(t.Context()); err != nil {
				t.Fatal(err)
			}
			changed := *c.svc
			changed.Controllers = slices.Clone(changed.Controllers)
			c.svc = &changed
			tt.change(c)
			_, err := d.Run(t.Context())
			var stale *plan.StaleError
			if tt.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.As(err, &stale) || len(c.commits) != 1 {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, stale.Changes); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := (&plan.StaleError{
		Service: "web", Changes: []string{"a", "b"},
	}).Error(); got != "service web: the plan is stale, 2 fields changed since it was made; plan again" {
		t.Error(got)
	}
	if got := (&plan.StaleError{Service: "web", Changes: []string{"a"}}).Error(); !strings.Contains(got,
		"1 field changed") {
		t.Error(got)
	}
}

// A plan is not stale because a controller that is being deleted has changed, or has gone since.
func TestWhatIsBeingDeletedMakesNoPlanStale(t *testing.T) {
	for name, change := range map[string]func(*cluster, record.Controller){
		"it goes on": func(c *cluster, going record.Controller) {
			going.Index, going.RC.Generation = 99, 99
			c.svc.Controllers = append(c.svc.Controllers, going)
		},
		"it is gone": func(*cluster, record.Controller) {},
	} {
		c := &cluster{}
		c.deployed(t, sample(t))
		present := *c.svc
		going := record.Controller{RC: rc.RC{ID: "x", Name: "web-r0", DeletedAt: new(time.Now())}, Index: 7}
		before := present
		before.Controllers = append(slices.Clone(present.Controllers), going)
		c.svc = &before
		d := deployment(t, c, newManifest)
		if _, err := d.Plan(t.Context()); err != nil {
			t.Fatal(err)
		}
		present.Controllers = slices.Clone(present.Controllers)
		c.svc = &present
		change(c, going)
		if _, err := d.Run(t.Context()); err != nil || len(c.commits) != 2 {
			t.Errorf("%s: %v, %d commits", name, err, len(c.commits))
		}
	}
}

func TestServiceThatSomebodyElseDeploysFirst(t *testing.T) {
	c := &cluster{}
	d := deployment(t, c)
	if _, err := d.Plan(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.deployed(t, sample(t))
	_, err := d.Run(t.Context())
	var stale *plan.StaleError
	if !errors.As(err, &stale) || stale.Changes[0] != "the service was deployed by ann" {
		t.Error(err)
	}
}

// A rollout under way changes its records all the time. A plan that replaces this rollout is made from the newest
// records. If they change before the commit, it is made again.
func TestMidCourseMovesOn(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	c.under(t, sample(t, newManifest))
	d := deployment(t, c, `pod.labels={"v": "3"}`)
	if _, err := d.Plan(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.refuse = 4
	c.read = func(c *cluster) {
		moved := *c.svc
		moved.Controllers = slices.Clone(moved.Controllers)
		moved.Controllers[1].Index++
		moved.RolloutAt++
		c.svc = &moved
	}
	if _, err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := c.commits[len(c.commits)-1]
	if last.Seen.RolloutAt != c.svc.RolloutAt || last.Deployed.Revision != 3 || len(last.Create) != 1 ||
		len(last.Change) != 2 {
		t.Errorf("%+v", last)
	}
}

func TestCommitsThatAreRefused(t *testing.T) {
	c := &cluster{refuse: 5}
	_, err := deployment(t, c).Run(t.Context())
	if !errors.Is(err, plan.ErrChanged) || len(c.commits) != 0 || c.refuse != 0 {
		t.Error(err, c.refuse)
	}
	c = &cluster{}
	c.deployed(t, sample(t))
	c.refuse = 1
	reads := 0
	c.read = func(c *cluster) {
		if reads++; reads == 3 { // after the refusal
			changed := *c.svc
			changed.Index++
			c.svc = &changed
		}
	}
	_, err = deployment(t, c, `replicas=9`).Run(t.Context())
	var stale *plan.StaleError
	if !errors.As(err, &stale) {
		t.Error(err)
	}
}

func TestRolloutThatFails(t *testing.T) {
	c := &cluster{await: &plan.RolloutError{Service: "web", State: rollout.Failed, Reason: "it crashed"}}
	p, err := deployment(t, c).Run(t.Context())
	var ended *plan.RolloutError
	if !errors.As(err, &ended) ||
		!strings.Contains(err.Error(), "run 3 pods of web-r1: the rollout of web is failed: it crashed") ||
		p.Rollout() == "" {
		t.Error(err)
	}
	if got := (&plan.RolloutError{
		Service: "web", State: rollout.Aborted,
	}).Error(); got != "the rollout of web is aborted" {
		t.Error(got)
	}
}

func TestDetach(t *testing.T) {
	c := &cluster{}
	d := deployment(t, c)
	d.Detach = true
	p, err := d.Run(t.Context())
	if err != nil || len(c.goals) != 0 || len(c.commits) != 1 || len(p.Operations) != 4 {
		t.Error(c.goals, err)
	}
}

func TestHistoryThatGoes(t *testing.T) {
	for _, tt := range []struct {
		keep string
		want []int64
	}{{`0`, []int64{1}}, {`1`, []int64{1}}, {`2`, []int64{}}, {`null`, []int64{}}} {
		c := &cluster{}
		c.deployed(t, sample(t))
		c.deployed(t, sample(t, newManifest))
		if _, err := deployment(t, c, `pod.labels={"v": "3"}`,
			`update.revision_history=`+tt.keep).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := c.commits[2]; !slices.Equal(d.Forget, tt.want) || d.Deployed.Revision != 3 {
			t.Errorf("keep %s: %v", tt.keep, d.Forget)
		}
	}
}

// The history keeps the revision that has the pods, even if its limit is 0. After rollouts to later revisions have
// failed, this revision is in effect again.
func TestHistoryKeepsTheRunningRevision(t *testing.T) {
	c := &cluster{}
	short := `update.revision_history=0`
	c.deployed(t, sample(t, short))
	c.under(t, sample(t, short, newManifest))
	c.under(t, sample(t, short, `pod.labels={"v": "3"}`)) // this rollout replaces the former one
	c.svc.Rollout, c.svc.History[len(c.svc.History)-1].Outcome = nil, rollout.Failed
	if d := c.svc.InEffect(); d.Revision != 1 {
		t.Errorf("revision %d is in effect, of the history %+v", d.Revision, c.svc.History)
	}
}

// If a document changes only knobs while a rollout is under way, the service keeps this rollout. The rollout's end is
// written into the revision's history entry.
func TestOtherKnobsInMidCourse(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	c.under(t, sample(t, newManifest))
	id := c.svc.Rollout.ID
	if _, err := deployment(t, c, newManifest, `update.delay="1s"`).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := c.commits[len(c.commits)-1]
	if d.Rollout != nil || d.Deployed.Revision != 2 || d.Deployed.Rollout != id || d.Entry.Rollout != id {
		t.Errorf("the document is of rollout %q, its entry of %q, and %s is under way",
			d.Deployed.Rollout, d.Entry.Rollout, id)
	}
}

// The number of a revision is not used again, even if only its history entry or only its controller is left.
func TestNumbersOfRevisions(t *testing.T) {
	for name, leave := range map[string]func(*record.Service){
		"history": func(s *record.Service) {
			s.History = append(s.History, record.Entry{Service: "web", Revision: 7})
		},
		"controller": func(s *record.Service) { s.Controllers[0].RC.Service.Revision = 7 },
		"record":     func(s *record.Service) { s.Deployed.Revision = 7 },
	} {
		c := &cluster{}
		c.deployed(t, sample(t))
		leave(c.svc)
		if _, err := deployment(t, c, newManifest).Run(t.Context()); err != nil {
			t.Fatal(name, err)
		}
		if got := c.commits[1].Deployed.Revision; got != 8 {
			t.Errorf("%s: revision %d", name, got)
		}
	}
}

// The number of a failed revision is not used again either, although the history limit is 0 and its controller is gone.
func TestNumberOfARevisionThatFailed(t *testing.T) {
	c := &cluster{}
	failed(t, c)
	short := `update.revision_history=0`
	if _, err := deployment(t, c, short, `replicas=4`).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.land(c.commits[2])
	c.svc.Controllers = c.svc.Controllers[:1]
	if _, err := deployment(t, c, short, `pod.labels={"v": "3"}`).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if was, is := c.commits[2].Deployed.Revision, c.commits[3].Deployed.Revision; was != 1 || is != 3 {
		t.Errorf("revision %d, then %d", was, is)
	}
}

// The ids of a service's controllers begin with the service's id. No id is given twice: not if a rollout is replaced,
// not if its transaction was refused and it is made again, and not if the controller is kept.
func TestIDsOfControllers(t *testing.T) {
	c := &cluster{}
	c.under(t, sample(t, migrates))
	unit := c.svc.Deployed.ID
	for number := int64(1); ; number++ {
		d := c.commits[number-1]
		var ids []string
		for _, r := range d.Create {
			ids = append(ids, r.ID)
		}
		want := []string{rc.PreDeployID(unit, number), rc.RevisionID(unit, number)}
		if !slices.Equal(ids, want) || d.Deployed.ID != unit || d.Deployed.RC != want[1] || d.Entry.RC != want[1] ||
			d.Rollout.PreDeploy.RC != want[0] {
			t.Errorf("%v, want %v; %+v", ids, want, d.Deployed)
		}
		if number == 3 {
			break
		}
		c.refuse = int(number - 1)
		c.under(t, sample(t, migrates, fmt.Sprintf(`pod.labels={"v": "%d"}`, number)))
	}
	c = &cluster{}
	c.deployed(t, sample(t, upgrades))
	c.deployed(t, sample(t, upgrades, newManifest, migrates))
	unit = c.svc.Deployed.ID
	if d := c.commits[1]; len(d.Create) != 1 || d.Create[0].ID != rc.PreDeployID(unit, 2) ||
		d.Deployed.RC != rc.RevisionID(unit, 1) || d.Deployed.Revision != 2 {
		t.Errorf("%+v, %+v", d.Create, d.Deployed)
	}
	c.deployed(t, sample(t, `pod.labels={"v": "3"}`))
	if got := c.svc.Deployed.RC; got != rc.RevisionID(unit, 3) {
		t.Error(got)
	}
}

func TestRollbackHurries(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t, `replicas=40`))
	gates := `"gates": {"before_stage": [{"url": "http://x/y"}]}`
	for _, tt := range []struct {
		knobs    string
		strategy string
		step     int
	}{
		{`{"strategy": "canary", "delay": "1m", ` + gates + `}`, "availability", 8},
		{`{"canary": {"pods": 1}, "step": 3}`, "availability", 6},
		{`{"step": "60%"}`, "availability", 40},
	} {
		strategy := rolling()
		strategy.Rollback = true
		resolved, _ := (&plan.ServiceSpecResolver{}).Resolve(t.Context(),
			sample(t, newManifest, `replicas=40`, `update=`+tt.knobs))
		d := plan.NewDeployment(c, *resolved, strategy)
		if _, err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := c.commits[len(c.commits)-1].Rollout
		if r.Strategy != tt.strategy || r.Update.Step != tt.step || r.Update.Delay != 0 ||
			r.Update.Gates.BeforeStage != nil || !r.SkipGates {
			t.Errorf("%s: %+v", tt.knobs, r)
		}
	}
}

// The history of a rollback has why pods of the failed revision were not available. Another deployment has other
// reasons.
func TestRollbackSaysWhy(t *testing.T) {
	failing := []rc.PodFailure{{Pod: "main.0", Node: "n1", Reason: "unhealthy: 503"}}
	for name, tt := range map[string]struct {
		back   bool
		status *rc.Status
		want   string
	}{
		"pods fail": {
			true, &rc.Status{ObservedGeneration: 1, Desired: 3, Available: 2, Failing: failing},
			"rolled back from revision 1 while 2 of 3 of its pods were available; main.0 on n1: unhealthy: 503",
		},
		"all available":    {true, &rc.Status{ObservedGeneration: 1, Desired: 3, Available: 3}, ""},
		"of other counts":  {true, &rc.Status{ObservedGeneration: 9, Desired: 3, Available: 2}, ""},
		"nothing is known": {true, nil, ""},
		"a deployment":     {false, &rc.Status{ObservedGeneration: 1, Desired: 3, Available: 2, Failing: failing}, ""},
	} {
		c := &cluster{}
		c.deployed(t, sample(t))
		c.svc.Controllers[0].Status = tt.status
		strategy := rolling()
		strategy.Rollback = tt.back
		resolved, _ := (&plan.ServiceSpecResolver{}).Resolve(t.Context(), sample(t, newManifest))
		d := plan.NewDeployment(c, *resolved, strategy)
		if _, err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := c.commits[len(c.commits)-1].Entry.Reason; got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// In place, all revisions have the same controller. Its name has the number of the first revision, so the reason names
// the revision.
func TestRollbackInPlaceNamesTheRevision(t *testing.T) {
	c := &cluster{}
	const inPlace = `update.strategy="in-place"`
	c.deployed(t, sample(t, inPlace))
	c.deployed(t, sample(t, inPlace, newManifest))
	r := &c.svc.Controllers[0]
	if r.RC.Name != "web-r1" || c.svc.Deployed.Revision != 2 {
		t.Fatalf("controller %s, revision %d", r.RC.Name, c.svc.Deployed.Revision)
	}
	r.RC.InPlace, r.RC.ManifestDigest = nil, c.svc.History[1].Manifest
	r.Status = &rc.Status{ObservedGeneration: r.RC.Generation, Desired: 3, Available: 2}
	strategy := rolling()
	strategy.Rollback = true
	if _, err := plan.NewDeployment(c, c.svc.History[0].Spec, strategy).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.commits[len(c.commits)-1].Entry.Reason; got != "rolled back from revision 2 while 2 of 3 of its pods "+
		"were available" {
		t.Errorf("%q", got)
	}
}

// A later change of counts or knobs keeps in the history why the service was rolled back. It does not keep why a
// rollout failed or was aborted, because that reason is not about the change.
func TestChangesKeepWhyItWasRolledBack(t *testing.T) {
	const why = "rolled back from revision 1 while 2 of 3 of its pods were available"
	for outcome, want := range map[rollout.State]string{rollout.Done: why, "": why, rollout.Aborted: ""} {
		for _, change := range []string{`replicas=4`, `update.delay="1s"`} {
			c := &cluster{}
			c.deployed(t, sample(t))
			c.svc.History[0].Reason, c.svc.History[0].Outcome = why, outcome
			if outcome == "" { // an earlier change had no rollout
				c.svc.History[0].Rollout = ""
			}
			if _, err := deployment(t, c, change).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := c.commits[len(c.commits)-1].Entry; got.Revision != 1 || got.Reason != want {
				t.Errorf("%s after %q: revision %d, reason %q, want %q",
					change, outcome, got.Revision, got.Reason, want)
			}
		}
	}
}

// A rollback is allowed even if its document gives a stage less time than the replaced pods need.
func TestRollbackAllowsTime(t *testing.T) {
	for limit, want := range map[string]time.Duration{"30s": time.Minute +
		rollout.DefaultStageTimeout, "61s": 61 * time.Second, "0s": 0} {
		c := &cluster{}
		c.deployed(t, sample(t, `pod.service={"drain": "1m"}`))
		strategy := rolling()
		strategy.Rollback = true
		resolved, _ := (&plan.ServiceSpecResolver{}).Resolve(t.Context(),
			sample(t, newManifest, fmt.Sprintf(`update.stage_timeout=%q`, limit)))
		d := plan.NewDeployment(c, *resolved, strategy)
		if _, err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(c.commits[len(c.commits)-1].Rollout.Update.StageTimeout); got != want {
			t.Errorf("%s: a stage may take %s, want %s", limit, got, want)
		}
	}
}

func TestOperationsNameTheirPods(t *testing.T) {
	d := deployment(t, &cluster{}, volumes)
	canonical, _ := d.Spec.Pod.Canonical()
	p, err := d.Plan(t.Context())
	if want := fmt.Sprintf("create manifest %.12s of pod web", manifest.Digest(canonical)); err != nil ||
		p.Operations[0].String() != want {
		t.Error(p.Operations, err)
	}
	lines := p.Lines()
	created := plan.Line{Depth: 1, Sign: plan.Added, Text: "create volume data for each of 3 pods, on its node"}
	if !slices.ContainsFunc(lines, func(l plan.Line) bool { l.Where = nil; return l == created }) {
		t.Error(lines)
	}
	if diff := cmp.Diff(map[plan.Sign]int{plan.Added: len(lines) - 1, plan.Changed: 1},
		plan.Counts(lines)); diff != "" {
		t.Error(diff)
	}
}

func TestRecordsThatCannotBeActedOn(t *testing.T) {
	good := record.Deployed{
		ID: "01m82rq476dk3dzcatmcv2vmc4", Service: "web",
		Revision: 1, RC: "01m82rq476dk3dzcatmcv2vmc4-1", Spec: *sample(t),
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*record.Deployed){
		"service": func(d *record.Deployed) { d.Service = "" }, "revision": func(d *record.Deployed) { d.Revision = 0 },
		"rc": func(d *record.Deployed) {
			d.RC = ""
		},
		"pod": func(d *record.Deployed) { d.Spec.Pod = nil }, "groups": func(d *record.Deployed) {
			d.Spec.Replicas = nil
		},
	} {
		d := good
		if spoil(&d); d.Check() == nil {
			t.Error(name)
		}
	}
	for _, id := range []string{"", "web", good.RC, strings.ToUpper(good.ID)} {
		d := good
		d.ID = id
		want := fmt.Sprintf("id: %q is not valid; allowed: the id of the service, a ULID in lower case", id)
		if err := d.Check(); err == nil || err.Error() != want {
			t.Errorf("%q: %v", id, err)
		}
	}
	entry := record.Entry{Service: "web", Revision: 1, Spec: *sample(t)}
	if err := entry.Check(); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*record.Entry){
		"service": func(e *record.Entry) { e.Service = "" }, "revision": func(e *record.Entry) { e.Revision = 0 },
		"pod": func(e *record.Entry) {
			e.Spec.Pod = nil
		},
	} {
		e := entry
		if spoil(&e); e.Check() == nil {
			t.Error(name)
		}
	}
}

// A later change of a revision keeps the time and author of its history entry. The document has the change's author.
func TestEntryKeepsWhenItWasMade(t *testing.T) {
	made := when.Add(-time.Hour)
	for name, tt := range map[string]struct {
		world  func(*cluster, *testing.T, *record.ServiceSpec)
		change string
		want   record.Entry
	}{
		"other counts": {(*cluster).deployed, `replicas=5`, record.Entry{Revision: 1, By: "bob", At: made}},
		"other knobs": {
			(*cluster).deployed, `update.step=2`,
			record.Entry{Revision: 1, By: "bob", At: made},
		},
		"other counts, under way": {(*cluster).under, `replicas=5`, record.Entry{Revision: 1, By: "bob", At: made}},
		"other knobs, under way":  {(*cluster).under, `update.step=2`, record.Entry{Revision: 1, By: "bob", At: made}},
		"other pods":              {(*cluster).deployed, newManifest, record.Entry{Revision: 2, By: "ann", At: when}},
	} {
		c := &cluster{}
		tt.world(c, t, sample(t))
		c.svc.History[0].By, c.svc.History[0].At = "bob", made
		c.svc.Deployed.By, c.svc.Deployed.At = "bob", made
		if _, err := deployment(t, c, tt.change).Run(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		d := c.commits[len(c.commits)-1]
		if got := (record.Entry{Revision: d.Entry.Revision, By: d.Entry.By, At: d.Entry.At}); !cmp.Equal(got, tt.want) {
			t.Errorf("%s: %s", name, cmp.Diff(tt.want, got))
		}
		if d.Deployed.By != "ann" || !d.Deployed.At.Equal(when) {
			t.Errorf("%s: the document was deployed by %s at %s", name, d.Deployed.By, d.Deployed.At)
		}
	}
}

func TestHasPods(t *testing.T) {
	one := 1
	for _, tt := range []struct {
		c    record.Controller
		want bool
	}{
		{record.Controller{}, false},
		{record.Controller{RC: rc.RC{ReplicaGroups: []rc.ReplicaGroup{{Role: "a", Count: &one}}}}, true},
		{record.Controller{Status: &rc.Status{}}, false},
		{record.Controller{Status: &rc.Status{Placed: 1}}, true},
		{record.Controller{Status: &rc.Status{Stopping: 1}}, true},
		{record.Controller{Status: &rc.Status{Lost: 1}}, true},
	} {
		if got := tt.c.HasPods(); got != tt.want {
			t.Errorf("%+v: %t", tt.c, got)
		}
	}
}
