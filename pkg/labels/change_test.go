package labels_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/labels"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// web is a pod that cluster writes.
var web = pod.Identity{RCID: "a", Role: "main"}

// applicator returns an Applicator for the records of cluster, with records of two controllers.
func applicator(t *testing.T) (a *labels.Applicator, records *counting, put func(key string, value any)) {
	t.Helper()
	records, put = cluster(t)
	if _, err := records.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	one := 1
	for _, id := range []string{"a", "ab"} {
		put(records.Keys().RCs.Key(id), rc.RC{
			ID: id, Name: id, ManifestDigest: fmt.Sprintf("%064d", 0),
			ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}},
			Labels:        map[string]string{"tier": "front"}, Generation: 3,
		})
	}
	return labels.NewApplicator(records.Store, "alice"), records, put
}

// acts returns the audit records of alice, one line for each.
func acts(t *testing.T, s *store.Store) (lines []string) {
	t.Helper()
	all, bad, err := s.ListAudit(t.Context(), store.AuditFilter{})
	if err = errors.Join(append(bad, err)...); err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.Who == "alice" {
			lines = append(lines, a.What+" "+strings.Join(a.Changes, "; "))
		}
	}
	return lines
}

// ChangeLabels sets and removes labels of a node, a controller or a pod in one transaction, with an audit record. If no
// label changes, it writes nothing.
func TestChangeLabels(t *testing.T) {
	t.Parallel()
	a, records, _ := applicator(t)
	for _, tt := range []struct {
		of       labels.Object
		set      map[string]string
		remove   []string
		lines    string // of the change
		all, own string // the labels after the change
		waiting  string
	}{
		{
			labels.NodeObject("n1"),
			map[string]string{"rack": "r9", "x": "1"},
			nil,
			"labels.rack: none -> r9; labels.x: none -> 1", "map[disk:ssd rack:r9 x:1]", "map[rack:r9 x:1]", "",
		},
		{
			labels.NodeObject("n1"),
			map[string]string{"rack": "r9"},
			[]string{"disk"},
			"",
			"map[disk:ssd rack:r9 x:1]", "map[rack:r9 x:1]", "",
		},
		{
			labels.NodeObject("n1"),
			map[string]string{"x": "2"},
			[]string{"rack"},
			"labels.rack: r9 -> none; labels.x: 1 -> 2", "map[disk:ssd rack:r1 x:2]", "map[x:2]", "",
		},
		{
			labels.RCObject("a"),
			map[string]string{"team": "a"},
			nil, "labels.team: none -> a",
			"map[team:a tier:front]", "map[team:a tier:front]", "",
		},
		{
			labels.RCObject("a"), nil,
			[]string{"team", "tier", "none"},
			"labels.team: a -> none; labels.tier: front -> none", "map[]", "map[]", "",
		},
		{
			labels.PodObject(web),
			map[string]string{"x": "1"},
			nil, "labels.x: none -> 1",
			"map[app:web pod_id:web replication_controller_id:a tier:front]", "map[]", "[labels.x: none -> 1]",
		},
		{
			labels.PodObject(web),
			map[string]string{"x": "1"},
			[]string{"app"},
			"",
			"map[app:web pod_id:web replication_controller_id:a tier:front]", "map[]", "[labels.x: none -> 1]",
		},
		{
			labels.PodObject(web), nil,
			[]string{"x"},
			"labels.x: 1 -> none",
			"map[app:web pod_id:web replication_controller_id:a tier:front]", "map[]", "",
		},
	} {
		before := len(acts(t, records.Store))
		done, err := a.ChangeLabels(t.Context(), tt.of, tt.set, tt.remove)
		if got := strings.Join(done.Lines, "; "); err != nil || got != tt.lines {
			t.Errorf("%s: %q, %v; want %q", tt.of, got, err, tt.lines)
		}
		found, err := a.GetLabels(t.Context(), tt.of)
		if err != nil || fmt.Sprint(found.Labels) != tt.all || fmt.Sprint(found.Set) != tt.own ||
			fmt.Sprint(found.Waiting) != cmp.Or(tt.waiting, "[]") {
			t.Errorf("%s has %+v, %v; want %s, %s and %s", tt.of, found, err, tt.all, tt.own, tt.waiting)
		}
		said := acts(t, records.Store)[before:]
		if written := tt.lines != ""; len(said) != map[bool]int{true: 1}[written] ||
			written && !strings.HasPrefix(said[0], "label ") {
			t.Errorf("%s: audited is %q", tt.of, said)
		}
	}
	rec, err := records.RCs.Get(t.Context(), store.Consistent, "a")
	if err != nil || rec.Value.Generation != 5 || rec.Value.ChangedBy != "alice" {
		t.Errorf("the controller is %+v, %v", rec.Value, err)
	}
	found, _, err := records.ReservationsOf(t.Context(), []string{"n1"})
	if want := node.LabelVersion(map[string]string{"x": "2"}); err != nil ||
		found["n1"].Value.Labels.Operators != want {
		t.Errorf("the label version of n1 is %+v, %v", found["n1"].Value, err)
	}
}

// A label that is not allowed is refused: the error names it and what is allowed, and nothing is written.
func TestBadLabels(t *testing.T) {
	t.Parallel()
	a, records, put := applicator(t)
	deleted := time.Now().UTC()
	one := 1
	service := rc.RC{
		ID: "s", Name: "s-r2", ManifestDigest: fmt.Sprintf("%064d", 0),
		ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}}, Service: &rc.Service{Name: "s", Revision: 2},
	}
	put(records.Keys().RCs.Key("s"), service)
	put(records.Keys().Deployed.Key("s"), map[string]any{"service": "s"})
	gone := service
	gone.ID, gone.Name, gone.Service, gone.DeletedAt = "d", "d", nil, &deleted
	put(records.Keys().RCs.Key("d"), gone)
	full := map[string]string{}
	for i := range labels.MaxLabels {
		full[fmt.Sprint("k", i)] = "v"
	}
	if _, err := a.SetLabels(t.Context(), labels.NodeObject("n1"), full); err != nil {
		t.Fatal(err)
	}
	huge := map[string]string{}
	for i := range 100_000 {
		huge[fmt.Sprint("k", i)] = "v"
	}
	stops := pod.Identity{RCID: "ab", Role: "main"}
	orphan := pod.Identity{RCID: "b", Role: "main"}
	before := len(acts(t, records.Store))
	for name, tt := range map[string]struct {
		of     labels.Object
		set    map[string]string
		remove []string
		want   string
	}{
		"none": {
			labels.NodeObject("n1"), nil, nil,
			"labels: missing; allowed: 1 to 64 labels to set or keys to remove",
		},
		"too many": {labels.NodeObject("n1"), huge, nil, "labels: 100000 entries is not valid; allowed: 1 to 64"},
		"one too many": {
			labels.NodeObject("n1"),
			map[string]string{"more": "v"},
			nil,
			"labels: 65 entries on node n1 after the change is not valid; allowed: 0 to 64 entries",
		},
		"no key": {labels.NodeObject("n1"), map[string]string{"": "v"}, nil, field.LabelAllowed},
		"a hostile value": {
			labels.NodeObject("n1"),
			map[string]string{"x": "a\x1b[2J\n../../b"},
			nil,
			field.LabelAllowed,
		},
		"a long value": {
			labels.NodeObject("n1"),
			map[string]string{"x": strings.Repeat("a", 1<<20)},
			nil,
			field.LabelAllowed,
		},
		"a hostile key": {labels.PodObject(web), nil, []string{"a b"}, field.LabelAllowed},
		"set and removed": {
			labels.NodeObject("n1"),
			map[string]string{"x": "v"},
			[]string{"x"},
			`labels: "x-" is not valid; allowed: each key once`,
		},
		"removed twice": {labels.NodeObject("n1"), nil, []string{"x", "x"}, "each key once"},
		"reserved": {
			labels.PodObject(web),
			map[string]string{pod.PodIDLabel: "v"},
			nil,
			`labels: "pod_id=v" is not valid; allowed: any other key`,
		},
		"reserved, gone": {labels.PodObject(web), nil, []string{pod.RCIDLabel}, "any other key"},
		"no kind": {
			labels.Object{Name: "n1"},
			map[string]string{"x": "v"},
			nil,
			"kind: \"\" is not valid; allowed: pod, node or rc",
		},
		"no node": {labels.NodeObject("n9"), map[string]string{"x": "v"}, nil, "node n9: "},
		"no rc":   {labels.RCObject("z"), map[string]string{"x": "v"}, nil, "rc z: "},
		"no pod": {
			labels.PodObject(pod.Identity{RCID: "z", Role: "main"}),
			map[string]string{"x": "v"},
			nil, "pod z/main.0: ",
		},
		"a revision": {
			labels.RCObject("s"),
			map[string]string{"x": "v"},
			nil,
			"rc s-r2 is revision 2 of service s; change labels in the service's document: " +
				"rcctl deploy -f FILE; nothing was written",
		},
		"a deleted rc": {labels.RCObject("d"), map[string]string{"x": "v"}, nil, "rc d (d) is marked for deletion"},
		"a pod that stops": {
			labels.PodObject(stops),
			map[string]string{"x": "v"},
			nil,
			"pod ab/main.0 stops; it cannot be labelled; nothing was written",
		},
		"of no rc": {labels.PodObject(orphan), map[string]string{"x": "v"}, nil, "its controller has no record"},
		"on another node": {
			labels.Object{Kind: labels.KindPod, Pod: web, Node: "n2"},
			map[string]string{"x": "v"},
			nil, "it is placed on n1, not on n2",
		},
	} {
		if done, err := a.ChangeLabels(t.Context(), tt.of, tt.set, tt.remove); err == nil ||
			!strings.Contains(err.Error(), tt.want) || len(done.Lines) > 0 && done.Request == "" {
			t.Errorf("%s: %+v, %v; want %s", name, done, err, tt.want)
		}
	}
	if said := acts(t, records.Store); len(said) != before {
		t.Errorf("written was %q", said[before:])
	}
	if left, _, err := records.Requests.List(t.Context(), store.Consistent); err != nil || len(left) > 0 {
		t.Errorf("requests %+v, %v", left, err)
	}
}

// If no owner answers, only a bounded number of requests can wait for one pod.
func TestRequestsForOnePodAreBounded(t *testing.T) {
	t.Parallel()
	a, records, _ := applicator(t)
	asked := 0
	var refused *labels.RefusedError
	for i := range 100 {
		_, err := a.SetLabels(t.Context(), labels.PodObject(web), map[string]string{"x": fmt.Sprint(i)})
		if errors.As(err, &refused) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		asked++
	}
	left, _, err := records.Requests.List(t.Context(), store.Consistent, "a")
	if err != nil || asked != 16 || len(left) != asked || refused == nil ||
		!strings.Contains(refused.Why, "16 requests") {
		t.Errorf("asked %d times, %d wait, then %v; %v", asked, len(left), refused, err)
	}
}

// If several people label one object at once, no change undoes another change.
func TestConcurrentChangesOfLabelsAreAllKept(t *testing.T) {
	t.Parallel()
	const people = 8
	a, records, _ := applicator(t)
	for _, of := range []labels.Object{labels.NodeObject("n1"), labels.PodObject(web)} {
		var all sync.WaitGroup
		for i := range people {
			all.Go(func() {
				if _, err := a.SetLabels(t.Context(), of, map[string]string{fmt.Sprint("by", i): "me"}); err != nil {
					t.Errorf("%s: %v", of, err)
				}
			})
		}
		all.Wait()
		found, err := a.GetLabels(t.Context(), of)
		if err != nil || len(found.Set)+len(found.Waiting) != people {
			t.Errorf("%s: %+v, %v", of, found, err)
		}
	}
	if said := acts(t, records.Store); len(said) != 2*people {
		t.Errorf("audited is %q", said)
	}
}

// If the placement has changed since it was read, AskLabels writes no request.
func TestLabelsAreNotRequestedForAChangedPlacement(t *testing.T) {
	t.Parallel()
	_, records, put := applicator(t)
	rec, err := records.Pods.Get(t.Context(), store.Consistent, web.String())
	if err != nil {
		t.Fatal(err)
	}
	stopped := rec.Value
	stopped.RunState = pod.Stopped
	put(records.Keys().Pods.Key(web.String()), stopped)
	r := store.Request{
		ID: store.NewID(), RCID: "a", Kind: store.LabelPod, Node: "n1", Pod: web,
		Labels: map[string]string{"x": "1"}, By: "alice", At: time.Now(),
	}
	if err := records.Operator.AskLabels(t.Context(), r, rec.Index,
		store.NewAudit("alice", "label", "a", nil)); !errors.Is(err, store.ErrConflict) {
		t.Errorf("%v", err)
	}
	if there, err := records.Requests.Exists(t.Context(), "a", r.ID); there || err != nil {
		t.Errorf("the request is there: %t, %v", there, err)
	}
}

// If the version gate does not allow own labels, the change is refused.
func TestTheGateRefusesOwnLabels(t *testing.T) {
	t.Parallel()
	a, records, put := applicator(t)
	put(records.Keys().Gate.Key(), json.RawMessage(`{"version":"0.1.0","by":"f","at":"2026-01-02T03:04:05Z"}`))
	if _, err := a.SetLabels(t.Context(), labels.PodObject(web), map[string]string{"x": "1"}); err == nil ||
		!strings.Contains(err.Error(), "labels") || !strings.Contains(err.Error(), "0.2.0") {
		t.Errorf("%v", err)
	}
}

// The example asks for a label of one pod, and then for its removal. The owner of the pod's controller writes both
// changes.
func ExampleApplicator() {
	quarantine := func(ctx context.Context, s *store.Store, id pod.Identity) error {
		a := labels.NewApplicator(s, "watchdog")
		done, err := a.SetLabels(ctx, labels.PodObject(id), map[string]string{"quarantine": "yes"})
		if err != nil {
			return err
		}
		fmt.Println(done.Lines, "asked as", done.Request)
		_, err = a.RemoveLabels(ctx, labels.PodObject(id), "quarantine")
		return err
	}
	_ = quarantine
}
