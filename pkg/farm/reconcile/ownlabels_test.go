package reconcile_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// labels asks for own labels of the first pod of a row.
func labels(id, node string, set map[string]string, remove ...string) reconcile.Request {
	return reconcile.Request{
		ID: id, Node: node, Pod: running(0, "n0", 1, 0).Identity, Label: &reconcile.Labels{Set: set, Remove: remove},
	}
}

// with returns the labels that each pod of a row has, and more labels.
func with(more map[string]string) map[string]string { return field.Merge(given("p"), more) }

// A pod gets the own labels that operators ask for, with a new revision and no other change. It loses the labels that
// they take back.
func TestOperatorsGivePodsOwnLabels(t *testing.T) {
	t.Parallel()
	x := map[string]string{"x": "1"}
	many := map[string]string{}
	for i := range field.MaxLabels {
		many[fmt.Sprint("k", i)] = "v"
	}
	for name, c := range map[string]struct {
		change    func(*reconcile.Snapshot)
		own, all  map[string]string // after the change; own nil: there is none
		unchanged bool
		void      string // in the reason
		waits     bool
	}{
		"one is set": {
			change: func(s *reconcile.Snapshot) { s.Requests = []reconcile.Request{labels("r", "n0", x)} }, own: x,
			all: with(x),
		},
		"it is set": {
			change: func(s *reconcile.Snapshot) {
				s.Requests = []reconcile.Request{labels("r", "n0", x)}
				has(s, x)
			},
			unchanged: true,
		},
		"one goes": {
			change: func(s *reconcile.Snapshot) {
				s.Requests = []reconcile.Request{labels("r", "n0", nil, "x")}
				has(s, x)
			},
			all: with(nil),
		},
		"there is none": {
			change:    func(s *reconcile.Snapshot) { s.Requests = []reconcile.Request{labels("r", "n0", nil, "x")} },
			unchanged: true,
		},
		"elsewhere by now": {
			change: func(s *reconcile.Snapshot) { s.Requests = []reconcile.Request{labels("r", "n7", x)} },
			void:   "not there any more",
		},
		"gone": {change: func(s *reconcile.Snapshot) {
			s.Requests = []reconcile.Request{labels("r", "n0", x)}
			s.Pods = s.Pods[1:]
		}, void: "not there any more"},
		"stops": {change: func(s *reconcile.Snapshot) {
			s.Requests = []reconcile.Request{labels("r", "n0", x)}
			stopAt(&s.Pods[0], s)
		}, void: "the pod stops"},
		"deleted": {change: func(s *reconcile.Snapshot) {
			s.Requests, s.RC.DeletedAt = []reconcile.Request{labels("r", "n0", x)}, &s.Now
		}, void: "its controller is deleted"},
		"too many": {
			change: func(s *reconcile.Snapshot) {
				s.Requests = []reconcile.Request{labels("r", "n0", x)}
				has(s, many)
			},
			void: "65 labels of its own; allowed: at most 64",
		},
		"as many as allowed": {
			change: func(s *reconcile.Snapshot) {
				s.Requests = []reconcile.Request{labels("r", "n0", map[string]string{"k0": "new"})}
				has(s, many)
			},
			own: field.Merge(many, map[string]string{"k0": "new"}),
			all: with(field.Merge(many, map[string]string{"k0": "new"})),
		},
		"holding": {change: func(s *reconcile.Snapshot) {
			s.Requests, s.Hold = []reconcile.Request{labels("r", "n0", x)}, "n3 has not spoken"
		}, waits: true},
		"hides the controller's": {change: func(s *reconcile.Snapshot) {
			s.Requests, s.RC.PodLabels = []reconcile.Request{labels("r", "n0",
				map[string]string{"team": "own"})}, map[string]string{
				"team": "rc",
			}
		}, own: map[string]string{"team": "own"}, all: with(map[string]string{"team": "own"})},
		"shows the controller's": {change: func(s *reconcile.Snapshot) {
			s.Requests, s.RC.PodLabels = []reconcile.Request{labels("r", "n0", nil, "team")}, map[string]string{
				"team": "rc",
			}
			has(s, map[string]string{"team": "own"})
		}, all: with(map[string]string{"team": "rc"})},
		"disabled": {change: func(s *reconcile.Snapshot) {
			s.Requests, s.RC.PodLabels, s.RC.Disabled = []reconcile.Request{labels("r", "n0",
				x)}, map[string]string{"team": "rc"}, true
		}, own: x, all: with(x)},
		"found running": {change: func(s *reconcile.Snapshot) {
			s.Requests, s.RC.PodLabels, s.Pods[0].AdoptedAtGeneration = []reconcile.Request{labels("r", "n0",
				x)}, map[string]string{"team": "rc"}, s.RC.Generation
		}, own: x, all: with(x)},
		"waits for its turn": {change: func(s *reconcile.Snapshot) {
			s.Requests, s.RC.PodLabels = []reconcile.Request{labels("r", "n0", x)}, map[string]string{"version": "2"}
			s.RC.InPlace, s.Rollout, s.Manifests = &rc.InPlace{
				From:  "m0",
				Limit: 1,
			}, "r", map[string]*manifest.Manifest{
				"m0": s.Manifest,
			}
			s.Pods[0].Digest, s.Pods[0].Reality.Digest = "m0", "m0"
		}, own: x, all: with(x)},
	} {
		s := row(2, 2)
		c.change(s)
		before := field.Copy(s.Pods[0].Placement)
		plan := reconcile.Compute(s)
		var ch *reconcile.Change
		if i := slices.IndexFunc(plan.Changes, func(ch reconcile.Change) bool { return len(ch.Answers) > 0 }); i >= 0 {
			ch = &plan.Changes[i]
		}
		answered := slices.Contains(plan.Answered, "r")
		switch {
		case c.void != "":
			if ch != nil || !answered || len(plan.Void) != 1 || !strings.Contains(plan.Void[0].Reason, c.void) {
				t.Errorf("%s: change %+v, answered %t, void %+v", name, ch, answered, plan.Void)
			}
		case c.waits:
			if ch != nil || answered || !plan.Status.Is(rc.Holding) {
				t.Errorf("%s: change %+v, answered %t, status %+v", name, ch, answered, plan.Status.Conditions)
			}
		case c.unchanged:
			if ch != nil || !answered || len(plan.Void) > 0 {
				t.Errorf("%s: change %+v, answered %t, void %+v", name, ch, answered, plan.Void)
			}
		case ch == nil:
			t.Errorf("%s: no change answers the request; %+v", name, plan)
		case answered || ch.Action != reconcile.Relabel || !slices.Equal(ch.Answers, []string{"r"}) ||
			!maps.Equal(ch.Placement.OwnLabels, c.own) ||
			!maps.Equal(ch.Placement.Labels, c.all) || !maps.Equal(ch.Intents[0].Intent.Labels, c.all) ||
			ch.Placement.Revision <= before.Revision ||
			ch.Intents[0].Intent.Revision != ch.Placement.Revision || ch.Placement.Digest != before.Digest ||
			!ch.Placement.ChangedAt.Equal(before.ChangedAt) ||
			ch.Intents[0].Intent.State != pod.Running || ch.TakesAvailable || len(ch.Reserve) > 0 || !ch.NeedsSchema:
			t.Errorf("%s: %+v", name, ch)
		}
	}
}

// has gives the first pod labels of its own.
func has(s *reconcile.Snapshot, own map[string]string) {
	s.Pods[0].OwnLabels, s.Pods[0].Labels = own, with(own)
}

// The requests of several operators for one pod are carried out in their order, as one change.
func TestOwnLabelsOfTwoOperatorsAreOneChange(t *testing.T) {
	t.Parallel()
	s := row(1, 1)
	s.Requests = []reconcile.Request{
		labels("a", "n0", map[string]string{"x": "1", "y": "1"}), labels("b", "n0", map[string]string{"x": "2"}, "y"),
		labels("c", "n9", nil, "x"),
	}
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || !slices.Equal(plan.Changes[0].Answers, []string{"a", "b"}) ||
		!maps.Equal(plan.Changes[0].Placement.OwnLabels, map[string]string{"x": "2"}) ||
		!slices.Equal(plan.Answered, []string{"c"}) {
		t.Errorf("%+v", plan)
	}
}

// Own labels survive an upgrade in place and changes of pod_labels. The copy on another node has none.
func TestOwnLabelsSurviveAnUpgrade(t *testing.T) {
	t.Parallel()
	x := map[string]string{"x": "1"}
	for name, c := range map[string]struct {
		change func(*reconcile.Snapshot)
		action reconcile.Action
		own    map[string]string
	}{
		"upgrade": {
			func(s *reconcile.Snapshot) { s.Pods[0].Digest, s.RC.MinAvailable = "m0", count(0) }, reconcile.Upgrade, x,
		},
		"relabel": {
			func(s *reconcile.Snapshot) { s.RC.PodLabels = map[string]string{"team": "a"} }, reconcile.Relabel, x,
		},
	} {
		s := row(1, 1)
		has(s, x)
		c.change(s)
		plan := reconcile.Compute(s)
		if len(plan.Changes) != 1 || plan.Changes[0].Action != c.action ||
			!maps.Equal(plan.Changes[0].Placement.OwnLabels, c.own) || plan.Changes[0].Placement.Labels["x"] != "1" {
			t.Errorf("%s: %+v", name, plan.Changes)
		}
	}
	s := row(1, 1)
	has(s, x)
	plan := reconcile.Compute(s)
	moved := plan.Placer().On(s.Pods[0].Identity, "n1")
	if p := moved.Placement; p.Node != "n1" || len(p.OwnLabels) > 0 || !maps.Equal(p.Labels, given("p")) {
		t.Errorf("moved: %+v", moved.Placement)
	}
}
