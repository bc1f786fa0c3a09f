package plan_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

const (
	oneEpoch   = "01arz3ndektsv4rrffq69g5fav"
	otherEpoch = "01arz3ndektsv4rrffq69g5faw"
)

// withRoom is a cluster with an epoch and two nodes that have capacity.
func withRoom(epoch string) *plan.State {
	s := nodes(100, 100)
	s.Epoch = epoch
	for _, view := range s.Nodes {
		view.Epoch = epoch
	}
	return s
}

// saves plans a document on a cluster, saves the plan, and reads it again.
func saves(t *testing.T, c *cluster, epoch string, changes ...string) *plan.Saved {
	t.Helper()
	d := deployment(t, c, changes...)
	d.Planner.(*plan.ServicePlanner).State = withRoom(epoch)
	p, err := d.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := plan.Saved{
		By: "ann", At: when,
		Services: []plan.SavedService{plan.Save(d, &p, epoch, d.Planner.(*plan.ServicePlanner).Domain)},
	}
	data, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := plan.DecodeSaved(data)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// carriesOut plans a saved plan again on a cluster with an epoch, and runs it.
func carriesOut(t *testing.T, c *cluster, epoch string, s *plan.Saved) (plan.Plan, error) {
	t.Helper()
	r := rolling()
	r.State = withRoom(epoch)
	one := s.Services[0]
	return plan.NewDeployment(c, one.Document, &plan.SavedPlanner{ServicePlanner: *r, Saved: one}).Run(t.Context())
}

// With any document, a saved plan is read back unchanged, and writes the same as the plan itself.
func TestSavedPlanIsCarriedOut(t *testing.T) {
	for _, changes := range [][]string{
		{newManifest},
		{`replicas=5`},
		{`mode="each-node"`, `replicas=null`, `update.strategy="in-place"`},
		{`replicas=null`, `replica_groups=[{"role": "a", "count": 1, "env": {"A": "b"}}, {"role": "b", "count": 2}]`},
		{
			`update.step="25%"`, `update.canary={"pods": 2}`, `update.stage_timeout="0s"`, `spread="rack"`,
			`pre_deploy={"args": ["up"]}`,
		},
	} {
		c, direct := &cluster{}, &cluster{}
		if changes[0] == newManifest || changes[0] == `replicas=5` {
			c.deployed(t, sample(t))
			direct.deployed(t, sample(t))
		}
		saved := saves(t, c, oneEpoch, changes...)
		p, err := carriesOut(t, c, oneEpoch, saved)
		if err != nil {
			t.Errorf("%v: %v", changes, err)
			continue
		}
		if all, _ := saved.Services[0].Shows(&p); !all {
			t.Errorf("%v: other operations than shown: %s", changes, cmp.Diff(saved.Services[0].Operations, p.Lines()))
		}
		if _, err := deployment(t, direct, changes...).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, want := c.commits[len(c.commits)-1], direct.commits[len(direct.commits)-1]
		if !reflect.DeepEqual(got.Deployed.Spec, want.Deployed.Spec) || !cmp.Equal(got.Audit, want.Audit) {
			t.Errorf("%v: it wrote %+v, want %+v", changes, got.Deployed.Spec, want.Deployed.Spec)
		}
	}
}

func TestSavedPlanOfNothing(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	if p, err := carriesOut(t, c, oneEpoch, saves(t, c, oneEpoch)); err != nil || !p.Empty() || len(c.commits) != 1 {
		t.Error(p, err, len(c.commits))
	}
}

// A saved plan is refused if any record that it was made from is different. The error names the record. Nothing is
// written.
func TestSavedPlanIsRefused(t *testing.T) {
	five := 5
	for _, tt := range []struct {
		name   string
		epoch  string
		change func(*record.Service)
		says   string // text of one of the changes
	}{
		{name: "the epoch", epoch: otherEpoch, says: "epoch: " + oneEpoch + " -> " + otherEpoch},
		{
			name: "the document", change: func(s *record.Service) { s.Deployed.By = "joe" },
			says: "document: revision 1 by ann at 2026-01-02T03:04:05Z, sha256 ",
		},
		{
			name: "a controller", change: func(s *record.Service) {
				s.Controllers[0].RC.ReplicaGroups, s.Controllers[0].RC.Generation = []rc.ReplicaGroup{
					{Role: rc.DefaultRole, Count: &five},
				}, 2
			},
			says: "controller web-r1: generation 1 by rollout web/",
		},
		{name: "a rollout", change: func(s *record.Service) {
			s.Rollout = &rollout.Record{
				ID:        "01arz3ndektsv4rrffq69g5fax",
				State:     rollout.Progressing,
				Revisions: []rollout.Revision{{RC: s.Controllers[0].RC.ID, Direction: rollout.Up}},
			}
		}, says: "rollout: none -> 01arz3ndektsv4rrffq69g5fax, progressing"},
		{name: "a new controller", change: func(s *record.Service) {
			more := s.Controllers[0]
			more.RC.Name, more.RC.ID = "web-r7", more.RC.ID+"7"
			s.Controllers = append(s.Controllers, more)
		}, says: "controller web-r7: none -> generation 1"},
		{
			name: "a deleted controller", change: func(s *record.Service) { s.Controllers[0].RC.DeletedAt = new(when) },
			says: "controller web-r1: generation 1",
		},
	} {
		c := &cluster{}
		c.deployed(t, sample(t))
		saved := saves(t, c, oneEpoch, newManifest)
		if tt.epoch == "" {
			tt.epoch = oneEpoch
			tt.change(c.svc)
		}
		_, err := carriesOut(t, c, tt.epoch, saved)
		var stale *plan.StaleError
		if !errorsAs(err, &stale) || !strings.Contains("\n"+strings.Join(stale.Changes, "\n"), "\n"+tt.says) ||
			len(c.commits) != 1 {
			t.Errorf("%s: %v, %d commits", tt.name, err, len(c.commits))
			if stale != nil {
				t.Errorf("%q, want %s", stale.Changes, tt.says)
			}
		}
	}

	// The service was created, or deleted and created again.
	c := &cluster{}
	saved := saves(t, c, oneEpoch)
	c.deployed(t, sample(t))
	if _, err := carriesOut(t, c, oneEpoch, saved); err == nil || !strings.Contains(err.Error(), "stale") {
		t.Errorf("a plan of a new service: %v", err)
	}
	saved = saves(t, c, oneEpoch, newManifest)
	c.svc = nil
	if _, err := carriesOut(t, c, oneEpoch, saved); err == nil || !strings.Contains(err.Error(), "stale") {
		t.Errorf("a plan of a service that is gone: %v", err)
	}
}

// A saved plan is not refused because pods have moved, because owners have reported something new, or because a
// controller that was being deleted has gone.
func TestSavedPlanOfOtherPods(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	gone := c.svc.Controllers[0]
	gone.RC.Name, gone.RC.ID, gone.RC.DeletedAt = "web-r0", gone.RC.ID+"0", new(when)
	gone.RC.Service = &rc.Service{Name: "web"}
	c.svc.Controllers = append([]record.Controller{gone}, c.svc.Controllers...)
	saved := saves(t, c, oneEpoch, newManifest, `replicas=2`)
	c.svc.Controllers[1].Status = &rc.Status{Placed: 1, ObservedGeneration: 1}
	c.svc.Controllers[1].Index += 7 // as after a restore
	c.svc.Controllers = c.svc.Controllers[1:]
	p, err := carriesOut(t, c, oneEpoch, saved)
	// The plans do not show the same, because the forecast of pods is different.
	if _, alike := saved.Services[0].Shows(&p); err != nil || len(c.commits) != 2 || alike {
		t.Error(err, p.Lines())
	}
}

// If there is no capacity any more, a saved plan is refused like any other plan.
func TestSavedPlanWithoutRoom(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	saved := saves(t, c, oneEpoch, newManifest, `max_per_node=2`)
	r := rolling()
	r.State = withRoom(oneEpoch)
	for name := range r.State.Nodes {
		r.State.Nodes[name].Capacity.Slots = 0
	}
	one := saved.Services[0]
	_, err := plan.NewDeployment(c, one.Document, &plan.SavedPlanner{ServicePlanner: *r, Saved: one}).Run(t.Context())
	var refused *plan.RefusedError
	if !errorsAs(err, &refused) || !strings.HasPrefix(refused.Reason, "no-room: ") || len(c.commits) != 1 {
		t.Errorf("%v", err)
	}
}

// While a rollout is under way, its steps change controllers. A saved plan is not refused because of that, but it is
// refused if the state of the rollout has changed.
func TestSavedPlanInMidCourse(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	c.under(t, sample(t, newManifest))
	saved := saves(t, c, oneEpoch, newManifest, `max_per_node=2`)
	c.svc.Controllers[0].RC.Generation++
	if _, err := carriesOut(t, c, oneEpoch, saved); err != nil {
		t.Error(err)
	}
	c.svc.Rollout.State = rollout.RollingBack
	if _, err := carriesOut(t, c, oneEpoch, saved); err == nil || !strings.Contains(err.Error(), "stale") {
		t.Error(err)
	}
}

// A saved plan is refused if it would do anything else than it showed.
func TestSavedPlanDoesWhatItShows(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	saved := saves(t, c, oneEpoch, newManifest)
	ops := saved.Services[0].Operations
	for i := range ops {
		ops[i].Text = strings.Replace(ops[i].Text, "rollout availability", "rollout resourceutil", 1)
	}
	_, err := carriesOut(t, c, oneEpoch, saved)
	var stale *plan.StaleError
	want := "operation 3: ~ start rollout resourceutil -> ~ start rollout availability"
	if !errorsAs(err, &stale) || len(stale.Changes) != 1 || stale.Changes[0] != want || len(c.commits) != 1 {
		t.Errorf("%v %+v", err, stale)
	}
}

// A saved plan is carried out with the options with which it was made.
func TestSavedOptions(t *testing.T) {
	o := plan.Options{Strategy: "canary", Recreate: true, SkipGates: true, AllowMassStop: true}
	r := o.Planner(withRoom(oneEpoch), "joe")
	if r.Override != "canary" || !r.ForceRecreate || !r.SkipGates || !r.MassStop || r.By != "joe" ||
		r.State.Epoch != oneEpoch {
		t.Errorf("%+v", r)
	}
}

// A file that was changed after the plan was saved is refused. The error names all mistakes.
func TestSavedPlanMistakes(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	good, err := saves(t, c, oneEpoch, newManifest).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ old, new, want string }{
		{`"version": 1`, `"version": 2`, "version: 2 is not valid; allowed: 1"},
		{`"version": 1`, `"versions": 1`, "version: missing; allowed: 1"},
		{`"by": "ann"`, `"buy": "ann"`, "buy: unknown field; allowed: at, by, options, services, sha256, version"},
		{`"by": "ann"`, `"by": "joe"`, "sha256: "},
		{`"TOKEN": "abc"`, `"TOKEN": "abd"`, "sha256: "},
		{
			`"options": {}`, `"options": {"strategy": "fast"}`,
			`options.strategy: "fast" is not valid; allowed: availability, blue-green`,
		},
		{`"document": {`, `"document": {"nope": 1,`, "services[0].document.nope: unknown field"},
		{`"name": "web",`, ``, "services[0].document.name: missing"},
		{
			`"sha256": "` + strings.Repeat("a", 64) + `"`, `"sha256": ""`,
			"services[0].document.pod.launchables: an artifact without its digest is not valid",
		},
		{`"epoch": "` + oneEpoch + `"`, `"epoch": "now"`, `services[0].seen.epoch: "now" is not valid; allowed: `},
		{
			`"rollout": "none"`, `"rollout": "none", "role": "none"`,
			`services[0].seen.role: "none" is not valid; allowed: `,
		},
		{`"rollout": "none"`, `"controller web-r0": "none"`, `services[0].seen.rollout: missing`},
		{`"sign": "+"`, `"sign": "*"`, `services[0].operations[0].sign: "*" is not valid; allowed: +, -, ~ or -/+`},
		{`"depth": 1`, `"depth": 1000000`, `depth: 1000000 is not valid; allowed: a whole number from 0 to `},
		{string(good), `{"version": 1, "services": []}`, "services: missing; allowed: at least one service"},
		{string(good), "{", "parse document"},
		{string(good), "[]", "a list is not valid; allowed: a map"},
		{string(good), string(good) + "{}", "parse document: something follows"},
		{string(good), strings.Repeat(" ", plan.MaxSavedBytes), "parse document"},
		{
			string(good), strings.Repeat(" ", plan.MaxSavedBytes+1),
			"plan: a larger size is not valid; allowed: at most 8388608 bytes",
		},
	} {
		if !strings.Contains(string(good), tt.old) {
			t.Fatalf("the good plan has no %s:\n%s", tt.old, good)
		}
		_, err := plan.DecodeSaved([]byte(strings.Replace(string(good), tt.old, tt.new, 1)))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.60s: got %.300v, want %s", tt.new, err, tt.want)
		}
	}
	var twice plan.Saved
	if err := json.Unmarshal(good, &twice); err != nil {
		t.Fatal(err)
	}
	twice.Services = append(twice.Services, twice.Services[0])
	if _, err := twice.Encode(); err == nil ||
		!strings.Contains(err.Error(),
			`services[1].document.name: "web" is not valid; allowed: a name that no other service of the plan has`) {
		t.Error(err)
	}
}

// Any file is read as a plan that can be written again, or it gives an error.
func FuzzDecodeSaved(f *testing.F) {
	f.Add([]byte(`{"version": 1, "services": [{"document": ` + sampleText + `, "seen": {"epoch": "` + oneEpoch +
		`", "document": "none", "rollout": "none"}}]}`))
	f.Add([]byte("{}"))
	s := plan.Saved{By: "ann", At: when, Services: []plan.SavedService{{
		Document: *sample(f), Seen: plan.Seen{"epoch": oneEpoch, "document": "none", "rollout": "none"},
	}}}
	whole, err := s.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := plan.DecodeSaved(data)
		if err != nil {
			return
		}
		if _, err := s.Encode(); err != nil {
			t.Error(err)
		}
	})
}

// Plans of many large services fit into a file. If they do not fit, the error advises to put fewer into each file.
func TestSavedPlansOfLargeServices(t *testing.T) {
	const all = 4096
	slots := slices.Repeat([]int{9}, all)
	state, c := wide(slots...), &cluster{}
	state.Epoch = oneEpoch
	for name := range state.Nodes {
		state.Nodes[name].Epoch = oneEpoch
	}
	resolved, _ := (&plan.ServiceSpecResolver{}).Resolve(t.Context(), sample(t, fmt.Sprintf("replicas=%d", all),
		`pod.volumes=[{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}]`))
	strategy := rolling()
	strategy.State = state
	d := plan.NewDeployment(c, *resolved, strategy)
	p, err := d.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one := plan.Save(d, &p, oneEpoch, nil)
	if same, _ := one.Shows(&p); !same {
		t.Error("the plan is not what was saved of it")
	}
	saved := plan.Saved{By: "ann", At: when}
	add := func(n int) {
		for range n {
			one.Document.Name = fmt.Sprint("web", len(saved.Services))
			saved.Services = append(saved.Services, one)
		}
	}
	add(25)
	data, err := saved.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := plan.DecodeSaved(data)
	if err != nil {
		t.Fatal(err)
	}
	if same, _ := read.Services[24].Shows(&p); !same {
		t.Error("the plan is not what was read of it")
	}
	add(60)
	if _, err := saved.Encode(); err == nil || !strings.Contains(err.Error(), "save plans of fewer services each") {
		t.Error(err)
	}
}

// If a saved plan would reach the size limit with line breaks, it is written without them. If it reaches the limit even
// without line breaks, it is refused, because the file ends with one more byte.
func TestSavedPlansThatReachTheLimit(t *testing.T) {
	t.Parallel()
	with := savedOfSize(t, plan.MaxSavedBytes, func(s any) ([]byte, error) { return json.MarshalIndent(s, "", "  ") })
	data, err := with.Encode()
	if err != nil || len(data) >= plan.MaxSavedBytes || bytes.Count(data, []byte("\n")) != 1 {
		t.Errorf("with line breaks: %d bytes, %v", len(data), err)
	}
	want := "it takes 8388608 bytes, and a saved plan may have 8388608: save plans of fewer services each"
	if data, err := savedOfSize(t, plan.MaxSavedBytes, json.Marshal).Encode(); err == nil || err.Error() != want {
		t.Errorf("without them: %d bytes, %v", len(data), err)
	}
}

// savedOfSize makes a saved plan whose encoded form has the given size in bytes. It fills the plan with warnings.
func savedOfSize(t *testing.T, size int, encode func(any) ([]byte, error)) *plan.Saved {
	t.Helper()
	const long = 16 << 10 // the most bytes of a warning
	warnings := make([]string, size/long)
	s := &plan.Saved{
		Version: plan.SavedVersion, By: "ann", At: when, SHA256: strings.Repeat("0", 64),
		Services: []plan.SavedService{{
			Document: *sample(t), Warnings: warnings,
			Seen: plan.Seen{"epoch": oneEpoch, "document": "none", "rollout": "none"},
		}},
	}
	data, err := encode(s)
	if err != nil {
		t.Fatal(err)
	}
	for i, lack := 0, size-len(data); lack > 0; i++ {
		warnings[i] = strings.Repeat("w", min(lack, long))
		lack -= len(warnings[i])
	}
	return s
}
