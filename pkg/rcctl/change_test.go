package rcctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func ptr[T any](v T) *T { return &v }

// anySpec draws valid documents that differ in what people change.
func anySpec(t *testing.T) *rapid.Generator[*rc.Spec] {
	t.Helper()
	good := goodSpec(t)
	return rapid.Custom(func(t *rapid.T) *rc.Spec {
		spec, pod := *good, *good.Pod
		spec.Replicas = nil
		for _, role := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 3,
			rapid.ID).Draw(t, "roles") {
			spec.ReplicaGroups = append(spec.ReplicaGroups,
				rc.ReplicaGroup{Role: role, Count: ptr(rapid.IntRange(0, 3).Draw(t, role))})
		}
		spec.NodeSelector = rapid.SampledFrom([]string{"", "a=b"}).Draw(t, "selector")
		spec.Spread.Label = rapid.SampledFrom([]string{"", "rack", "zone"}).Draw(t, "spread")
		spec.Labels = rapid.MapOfN(rapid.SampledFrom([]string{"x", "y"}), rapid.SampledFrom([]string{"1", "2"}),
			0, 2).Draw(t, "labels")
		spec.MinAvailable = rapid.SampledFrom([]*int{nil, ptr(0), ptr(1)}).Draw(t, "minimum")
		spec.Disabled = rapid.Bool().Draw(t, "disabled")
		pod.Ports = append([]manifest.Port{}, pod.Ports...)
		pod.Ports[0].Port = rapid.IntRange(1, 3).Draw(t, "port")
		spec.Pod = &pod
		if err := spec.Validate().Err(); err != nil {
			t.Fatal(err)
		}
		return &spec
	})
}

// If a document is applied twice, the second time changes nothing. Another document changes something exactly if it
// asks for something else, and then the change has a line for each difference.
func TestApplyProperties(t *testing.T) {
	specs := anySpec(t)
	rapid.Check(t, func(rt *rapid.T) {
		first, second := specs.Draw(rt, "first"), specs.Draw(rt, "second")
		made, err := computeApply(applyRequest{spec: first}, current{}, "id")
		if err != nil || made.none || made.what != "create" || made.rc.Generation != 1 || len(made.manifests) == 0 ||
			len(made.lines) == 0 {
			rt.Fatalf("%+v, %v", made, err)
		}
		again, err := computeApply(applyRequest{spec: first}, current{rc: &made.rc, manifest: first.Pod}, "other")
		if err != nil || !again.none || again.manifests != nil || len(again.lines) > 0 || again.rc.Generation != 1 {
			rt.Fatalf("%+v, %v", again, err)
		}
		found, err := computeApply(applyRequest{spec: first},
			current{rc: &made.rc, manifest: first.Pod, found: true}, "other")
		if err != nil || found.none || len(found.lines) == 0 || found.rc.Generation != 2 || !same(&found.rc, &made.rc) {
			rt.Fatalf("%+v, %v", found, err)
		}
		next, err := computeApply(applyRequest{spec: second}, current{rc: &made.rc, manifest: first.Pod}, "other")
		if err != nil || next.rc.ID != "id" {
			rt.Fatalf("%+v, %v", next, err)
		}
		if equal := bytes.Equal(asJSON(rt, first), asJSON(rt, second)); equal != next.none {
			rt.Fatalf("equal is %v, none is %v: %v", equal, next.none, next.lines)
		}
		if next.none != (len(next.lines) == 0) || !next.none && next.rc.Generation != 2 {
			rt.Fatalf("%+v", next)
		}
		if err := next.rc.Check(); err != nil {
			rt.Fatal(err)
		}
		back, err := computeApply(applyRequest{spec: first}, current{rc: &next.rc, manifest: second.Pod}, "other")
		if err != nil || !same(&back.rc, &made.rc) || back.none != next.none {
			rt.Fatalf("back: %+v, %v", back, err)
		}
	})
}

func asJSON(t *rapid.T, v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestApplyRefuses(t *testing.T) {
	spec := goodSpec(t)
	made, err := computeApply(applyRequest{spec: spec}, current{}, "id")
	if err != nil {
		t.Fatal(err)
	}
	var refused *codedError
	deleted := made.rc
	deleted.DeletedAt = ptr(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	_, err = computeApply(applyRequest{spec: spec}, current{rc: &deleted, manifest: spec.Pod}, "")
	if !errors.As(err, &refused) ||
		!strings.Contains(err.Error(), "at 2026-01-02T03:04:05Z; apply again when it is gone") {
		t.Error(err)
	}
}

// The permission to stop many pods is for one generation only. If the present generation does not have the permission,
// giving it is a change. So an operator repeats the command that tripped the breaker, with the permission.
func TestMassStopIsForOneGeneration(t *testing.T) {
	made, err := computeApply(applyRequest{spec: goodSpec(t), massStop: true}, current{}, "id")
	if err != nil || made.rc.AllowMassStop != 1 {
		t.Fatalf("%+v, %v", made.rc, err)
	}
	unchanged, err := computeScale(current{rc: &made.rc}, "", 3, true)
	if err != nil || !unchanged.none || unchanged.rc.AllowMassStop != 1 {
		t.Errorf("%+v, %v", unchanged, err)
	}
	next, err := computeScale(current{rc: &made.rc}, "", 1, false)
	if err != nil || next.rc.AllowMassStop != 0 ||
		slices.ContainsFunc(next.lines, func(l string) bool { return strings.Contains(l, "mass") }) {
		t.Errorf("%+v, %v", next, err)
	}
	allowed, err := computeScale(current{rc: &next.rc}, "", 0, true)
	if err != nil || allowed.rc.AllowMassStop != 3 {
		t.Errorf("%+v, %v", allowed, err)
	}
	said := []string{"allow_mass_stop: for this generation"}
	again, err := computeScale(current{rc: &next.rc}, "", 1, true)
	if err != nil || again.none || again.rc.AllowMassStop != 3 || again.rc.Generation != 3 ||
		!slices.Equal(again.lines, said) {
		t.Errorf("%+v, %v", again, err)
	}
	spec := goodSpec(t)
	made, err = computeApply(applyRequest{spec: spec}, current{}, "id")
	if err != nil {
		t.Fatal(err)
	}
	for _, signature := range []string{"", "new"} {
		again, err = computeApply(applyRequest{
			spec: spec, massStop: true, signatures: map[string]string{made.rc.ManifestDigest: signature},
		}, current{
			rc: &made.rc, manifest: spec.Pod,
		}, "")
		if err != nil || again.none || again.signOnly || again.what != "apply" || again.rc.AllowMassStop != 2 ||
			again.manifests == nil || again.lines[len(again.lines)-1] != said[0] {
			t.Errorf("signature %q: %+v, %v", signature, again, err)
		}
	}
	if twice, err := computeApply(applyRequest{spec: spec, massStop: true}, current{rc: &again.rc, manifest: spec.Pod},
		""); err != nil || !twice.none {
		t.Errorf("%+v, %v", twice, err)
	}
}

// Disabling and enabling change only the field disabled, and add one to the generation. They change nothing if the
// field has the value already.
func TestDisable(t *testing.T) {
	made, err := computeApply(applyRequest{spec: goodSpec(t)}, current{}, "id")
	if err != nil {
		t.Fatal(err)
	}
	off, err := computeDisable(made.rc, true, false)
	if err != nil || off.none || off.what != "disable" || !off.rc.Disabled || off.rc.Generation != 2 ||
		off.rc.Toggled != 1 || off.manifests != nil {
		t.Errorf("%+v, %v", off, err)
	}
	if diff := cmp.Diff([]string{"disabled: (none) -> true"}, off.lines); diff != "" {
		t.Error(diff)
	}
	if again, err := computeDisable(off.rc, true, false); err != nil || !again.none || again.rc.Generation != 2 {
		t.Errorf("%+v, %v", again, err)
	}
	on, err := computeDisable(off.rc, false, true)
	if err != nil || on.none || on.what != "enable" || on.rc.AllowMassStop != 3 || on.rc.Generation != 3 ||
		on.rc.Toggled != 2 || !same(&on.rc, &made.rc) {
		t.Errorf("%+v, %v", on, err)
	}
	off.rc.DeletedAt = ptr(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	var refused *codedError
	if _, err := computeDisable(off.rc, false, false); !errors.As(err, &refused) ||
		!strings.Contains(err.Error(), "at 2026-01-02T03:04:05Z; it cannot be disabled or enabled") {
		t.Error(err)
	}
}

func TestScaleTouchesOneRole(t *testing.T) {
	before := rc.RC{
		Name: "web", Generation: 4,
		ReplicaGroups: []rc.ReplicaGroup{{Role: "a", Count: ptr(1)}, {Role: "b", Count: ptr(2)}},
	}
	c, err := computeScale(current{rc: &before}, "b", 5, false)
	if err != nil || c.none || *c.rc.ReplicaGroups[0].Count != 1 || *c.rc.ReplicaGroups[1].Count != 5 ||
		c.rc.Generation != 5 {
		t.Errorf("%+v, %v", c, err)
	}
	if *before.ReplicaGroups[1].Count != 2 {
		t.Error("the record that it was computed from is changed")
	}
	var bad *field.Error
	for _, role := range []string{"", "c"} {
		if _, err := computeScale(current{rc: &before}, role, 5, false); !errors.As(err, &bad) ||
			bad.Field != "--role" || !strings.Contains(bad.Allowed, "a or b") {
			t.Errorf("role %q: %v", role, err)
		}
	}
}

func TestDifferences(t *testing.T) {
	group := func(role string, n int) rc.ReplicaGroup { return rc.ReplicaGroup{Role: role, Count: &n} }
	launch := func(names ...string) *manifest.Manifest {
		m := &manifest.Manifest{}
		for _, name := range names {
			m.Launchables = append(m.Launchables, manifest.Launchable{Name: name})
		}
		return m
	}
	for _, tt := range []struct {
		name                string
		before, after       *rc.RC
		beforePod, afterPod *manifest.Manifest
		want                []string
	}{
		{"nothing", &rc.RC{}, &rc.RC{}, nil, nil, nil},
		{"bookkeeping", &rc.RC{Generation: 1, ChangedBy: "a"}, &rc.RC{Generation: 2, ChangedBy: "b"}, nil, nil, nil},
		{
			"a role in front", &rc.RC{ReplicaGroups: []rc.ReplicaGroup{group("b", 1)}},
			&rc.RC{ReplicaGroups: []rc.ReplicaGroup{group("a", 2), group("b", 1)}}, nil, nil,
			[]string{`replica_groups[a].count: (none) -> 2`, `replica_groups[a].role: (none) -> "a"`},
		},
		{
			"only the order", &rc.RC{ReplicaGroups: []rc.ReplicaGroup{group("b", 1), group("a", 1)}},
			&rc.RC{ReplicaGroups: []rc.ReplicaGroup{group("a", 1), group("b", 1)}}, nil, nil,
			[]string{`order of replica_groups changed`},
		},
		{
			"a label with a dot", &rc.RC{Labels: map[string]string{"a.b/c": "1"}}, &rc.RC{}, nil, nil,
			[]string{`labels.a.b/c: "1" -> (none)`},
		},
		{
			"long", &rc.RC{}, &rc.RC{NodeSelector: strings.Repeat("ä", 100)}, nil, nil,
			[]string{`node_selector: "" -> "` + strings.Repeat("ä", 79) + `...`},
		},
		{"a process less", &rc.RC{}, &rc.RC{}, launch("a", "b"), launch("b"), []string{
			`pod.launchables[a].artifact.kind: "" -> (none)`,
			`pod.launchables[a].name: "a" -> (none)`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, differences(tt.before, tt.beforePod, tt.after, tt.afterPod)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A change of a service's revision is refused, because operators change it through its service. Two things are not
// refused: a change that leaves the record as it is, and the deletion of an old revision without pods.
func TestRevisionsAreRefused(t *testing.T) {
	spec := goodSpec(t)
	made, err := computeApply(applyRequest{spec: spec}, current{}, "web-1")
	if err != nil {
		t.Fatal(err)
	}
	revision := func(number int64, count int) *rc.RC {
		r := made.rc
		r.ID, r.Name = rc.RevisionID("web", number), "web-r"+strconv.FormatInt(number, 10)
		r.Service = &rc.Service{Name: "web", Revision: number}
		r.ReplicaGroups = []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &count}}
		return &r
	}
	svc := &record.Service{Deployed: record.Deployed{Service: "web", Revision: 2, RC: rc.RevisionID("web", 2)}}
	deleted := revision(2, 3)
	deleted.DeletedAt = ptr(time.Now())
	everywhere := revision(1, 0)
	everywhere.Mode, everywhere.ReplicaGroups = rc.EachNode, nil
	scale := func(cur current) error { _, err := computeScale(cur, "", 5, true); return err }
	remove := func(cur current) error { _, err := computeDelete(cur, true, true, time.Now()); return err }
	apply := func(count int) func(current) error {
		return func(cur current) error {
			asks := *spec
			asks.Name, asks.Replicas = cur.rc.Name, &count
			_, err := computeApply(applyRequest{spec: &asks, massStop: true}, cur, "")
			return err
		}
	}
	for name, tt := range map[string]struct {
		r    *rc.RC
		act  func(current) error
		want string // empty: the change is made
	}{
		"scale": {
			revision(2, 3), scale,
			"rc web-r2 is revision 2 of service web; scale the service: rcctl scale web 5; nothing was written",
		},
		"scale as it is": {revision(2, 5), scale, "scale the service: rcctl scale web 5"},
		"scale an old one": {
			revision(1, 3), scale,
			"it is not the revision in effect; take the service to one revision: rcctl deploy -f FILE; nothing",
		},
		"delete": {
			revision(2, 3), remove,
			"delete the service: rcctl service delete web; nothing was written",
		},
		"delete without pods": {revision(2, 0), remove, "delete the service: rcctl service delete web"},
		"delete an old one": {
			revision(1, 1), remove,
			"rcctl deploy -f FILE, or delete the service: rcctl service delete web; nothing was written",
		},
		"delete a leftover": {revision(1, 0), remove, ""},
		"delete each-node":  {everywhere, remove, "rcctl service delete web"},
		"delete again":      {deleted, remove, ""},
		"apply": {
			revision(2, 3), apply(4),
			"deploy the service's document: rcctl deploy -f FILE; nothing was written",
		},
		"apply as it is": {revision(2, 3), apply(3), ""},
	} {
		err := tt.act(current{rc: tt.r, service: svc, manifest: spec.Pod})
		var refused *codedError
		if tt.want == "" && err != nil ||
			tt.want != "" &&
				(!errors.As(err, &refused) || refused.code != exitRefused || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if err := tt.act(current{rc: tt.r, manifest: spec.Pod}); err != nil {
			t.Errorf("%s, of a service without a record: %v", name, err)
		}
	}
}
