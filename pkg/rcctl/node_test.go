package rcctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func putRecord(t *testing.T, s *conn, key, value string) {
	t.Helper()
	if _, err := s.consul.Commit(t.Context(), []consul.Op{consul.Set(key, []byte(value))}); err != nil {
		t.Fatal(err)
	}
}

// livingNode stores the record of a node that lives and has capacity.
func livingNode(t *testing.T, s *conn) {
	t.Helper()
	schema, err := s.EnsureSchema(t.Context())
	if err == nil {
		record := fmt.Sprintf(`{"name": "n1", "capacity": {"slots": 100}, "nonce": %q}`, schema.Value.Epoch)
		err = putHeld(consultest.Shared(t).Addr, s.Keys().Nodes.Key("n1"), record)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A drain of a node is written although farms keep changing the node's reservation, and it loses nothing that they
// wrote.
func TestDrainOfABusyNode(t *testing.T) {
	s, _ := testConn(t)
	putRecord(t, s, s.Keys().Nodes.Key("n1"), `{"name":"n1"}`)
	ctx, cancel := context.WithCancel(t.Context())
	var farm sync.WaitGroup
	written := 0
	farm.Go(func() { // this goroutine reserves like an owner, and stops when the node is ineligible
		for ctx.Err() == nil {
			found, _, err := s.ReservationsOf(ctx, []string{"n1"})
			if err != nil || found["n1"].Value.Ineligible {
				return
			}
			next := found["n1"].Value.Clone()
			next.Claims[fmt.Sprintf("rc/main.%d", written)] = node.Claim{}
			data := fmt.Sprintf(`{"holders":%s}`, claimsText(next))
			_, err = s.consul.Commit(ctx,
				[]consul.Op{consul.CAS(s.Keys().Reservations.Key("n1"), []byte(data), found["n1"].Index)})
			if err == nil {
				written++
			}
		}
	})
	want := wantedDrain{now: time.Now().UTC()}
	_, err := changeNode(t.Context(), s, "n1", func(ops node.Ops) (nodeChange, error) {
		c, _ := computeDrain(ops, want)
		return c, nil
	})
	if err != nil {
		cancel()
	}
	farm.Wait() // the goroutine ends when it sees that the node is ineligible
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	found, _, err := s.ReservationsOf(t.Context(), []string{"n1"})
	if err != nil || !found["n1"].Value.Ineligible || len(found["n1"].Value.Claims) != written {
		t.Errorf("%d written, reservation %+v, %v", written, found["n1"].Value, err)
	}
	t.Logf("%d reservations came first", written)
}

func claimsText(r node.Reservation) string {
	var parts []string
	for key := range r.Claims {
		parts = append(parts, fmt.Sprintf("%q:{}", key))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func TestComputeDrain(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	later := now.Add(time.Minute)
	running := &node.Drain{Since: now.Add(-time.Hour), Deadline: &now}
	for name, tt := range map[string]struct {
		ops   node.Ops
		want  wantedDrain
		lines int
		after node.Drain
		ok    bool
	}{
		"begin": {want: wantedDrain{now: now}, lines: 1, after: node.Drain{Since: now}, ok: true},
		"begin with a deadline": {
			want: wantedDrain{now: now, deadline: &later}, lines: 2,
			after: node.Drain{Since: now, Deadline: &later}, ok: true,
		},
		"force without one": {
			want: wantedDrain{now: now, force: true}, lines: 2, after: node.Drain{Since: now, Force: true},
		},
		"again": {
			ops: node.Ops{Drain: running}, want: wantedDrain{now: later}, after: *running, ok: true,
		},
		"again, another deadline": {
			ops: node.Ops{Drain: running}, want: wantedDrain{now: now, deadline: &later},
			lines: 1, after: node.Drain{Since: running.Since, Deadline: &later}, ok: true,
		},
		"again, force": {
			ops: node.Ops{Drain: running}, want: wantedDrain{now: now, force: true}, lines: 1,
			after: node.Drain{Since: running.Since, Deadline: &now, Force: true}, ok: true,
		},
	} {
		c, ok := computeDrain(tt.ops, tt.want)
		if diff := cmp.Diff(tt.after, *c.ops.Drain); diff != "" || ok != tt.ok || len(c.lines) != tt.lines {
			t.Errorf("%s: %t, %v, %s", name, ok, c.lines, diff)
		}
	}
	if running.Force || !running.Deadline.Equal(now) {
		t.Errorf("the record that a change was computed from has changed: %+v", running)
	}
}

func TestPlanSweep(t *testing.T) {
	id := func(rcID string, i int) pod.Identity { return pod.Identity{RCID: rcID, Role: "main", Index: i} }
	in := inventory{
		node: "n1", rcs: map[string]bool{"a": true, "ab": true},
		orphans: []pod.Orphan{{Identity: id("gone", 0)}, {Identity: id("a", 7)}},
		claims:  map[string]node.Claim{"who/main.0": {}},
		placements: []pod.Placement{
			{Identity: id("a", 0), Node: "n1"},
			{Identity: id("a", 1), Node: "n2", Ghosts: []pod.Ghost{{Node: "n1"}}},
			{Identity: id("a", 2), Node: "n2"},
		},
	}
	for _, held := range []pod.Identity{
		id("a", 0), id("a", 1), id("a", 2), id("a", 7), id("ab", 0),
		id("gone", 0), id("gone", 9),
	} {
		in.claims[held.String()] = node.Claim{Pod: held}
	}
	own := id(pod.LocalRC("agent"), 0) // the node itself holds this share
	in.claims[own.String()] = node.Claim{Pod: own}
	got := planSweep(in)
	if len(got.orphans) != 1 || got.orphans[0].RCID != "gone" || got.adopted != 1 {
		t.Errorf("orphans %+v, %d adopted", got.orphans, got.adopted)
	}
	want := map[string][]string{"a": {"a/main.2"}, "ab": {"ab/main.0"}, "gone": {"gone/main.9"}}
	if diff := cmp.Diff(want, got.leaked); diff != "" || !slices.Equal(got.repairs, []string{"a", "ab", "gone"}) ||
		!slices.Equal(got.unexplained, []string{"who/main.0"}) {
		t.Errorf("repairs %v, unexplained %v\n%s", got.repairs, got.unexplained, diff)
	}
	in.placements = append(in.placements, pod.Placement{Identity: id("lost", 0), Node: "n1"},
		pod.Placement{Identity: id("lost", 1), Node: "n2"}, pod.Placement{Identity: id("other", 0), Node: "n2"})
	if got := planSweep(in).strays; len(got) != 2 || got[0].Identity != id("lost", 0) ||
		got[1].Identity != id("lost", 1) {
		t.Errorf("strays %+v", got)
	}
	in.intents = []pod.Intent{
		{Identity: id("a", 0)},
		{Identity: id("lost", 1)},
		{Identity: id("gone", 9)},
		{Identity: own},
		{Identity: id("told", 0)},
	}
	if got := planSweep(in); len(got.intents) != 2 || got.intents[0].Identity != id("gone", 9) ||
		got.intents[1].Identity != id("told", 0) || got.leaked["gone"] != nil {
		t.Errorf("told %+v, leaked %v", got.intents, got.leaked)
	}
	// a placement on another node, of the same controller without a record, is stopped, too
	in.placements = append(in.placements, pod.Placement{Identity: id("told", 1), Node: "n2"})
	if got := planSweep(in).strays; len(got) != 3 || got[2].Identity != id("told", 1) {
		t.Errorf("strays %+v", got)
	}
	in.leftOut = 1 // a claim may be for an orphan that the node left out
	if got := planSweep(in); len(got.leaked)+len(got.unexplained) != 0 {
		t.Errorf("%+v", got)
	}
}

// If a node writes a report again and again, all other parts of a sweep are still requested.
func TestReportsThatMoveHoldUpNoSweep(t *testing.T) {
	s, _ := testConn(t)
	r := create(t, s)
	gone := func(i int) store.Rec[pod.Reality] {
		id := pod.Identity{RCID: "gone", Role: "main", Index: i}
		key := s.Keys().Realities.Key("n1", id.String())
		if _, err := s.consul.Commit(t.Context(), []consul.Op{consul.Set(key, []byte("{}"))}); err != nil {
			t.Fatal(err)
		}
		pair, err := s.consul.Get(t.Context(), key, consul.Consistent)
		if err != nil {
			t.Fatal(err)
		}
		return store.Rec[pod.Reality]{Index: pair.ModifyIndex, Value: pod.Reality{Identity: id}}
	}
	plan := sweepPlan{repairs: []string{r.ID}, leaked: map[string][]string{r.ID: {"web/main.0"}}}
	for i := range 2 * store.ReportsPerTxn {
		plan.reports = append(plan.reports, gone(i))
	}
	plan.reports[0].Index-- // as if the report was written since
	err := askSweep(t.Context(), s, "n1", plan)
	if !errors.Is(err, store.ErrConflict) {
		t.Errorf("%v", err)
	}
	if asked, _, err := s.Requests.List(t.Context(), store.Consistent, r.ID); err != nil || len(asked) != 1 ||
		asked[0].Value.Kind != store.RepairReservation {
		t.Errorf("%+v, %v", asked, err)
	}
	if left, err := s.consul.Keys(t.Context(), s.Keys().Realities.Below("n1")); err != nil ||
		len(left) != store.ReportsPerTxn {
		t.Errorf("%d reports are left, %v", len(left), err)
	}
}

// A watch shows each state once, and ends with Ctrl-C, with its goal, or with the controller.
func TestFollow(t *testing.T) {
	s, _ := testConn(t)
	r := create(t, s)
	putRecord(t, s, s.Keys().Farms.Key("f1"), `{"id":"f1"}`)
	for name, tt := range map[string]struct {
		until string
		act   func(cancel context.CancelFunc)
		code  int
		says  []string
	}{
		"interrupted": {
			"", func(cancel context.CancelFunc) { cancel() }, exitDone,
			[]string{"Pending: generation 0 of 1"},
		},
		"interrupted, with a goal": {
			"Converged", func(cancel context.CancelFunc) { cancel() }, exitWait,
			[]string{"Pending: generation 0 of 1", "interrupted; last seen: Pending"},
		},
		"goal": {
			"Blocked", func(context.CancelFunc) {
				putRecord(t, s, s.Keys().Statuses.Key(r.ID),
					`{"rc_id":"`+r.ID+
						`","observed_generation":1,"desired":3,"stopping":2,`+
						`"conditions":[{"type":"Blocked","true":true,"reason":"no room"}],"last_error":"bad"}`)
			}, exitDone,
			[]string{"Blocked: generation 1 of 1, 3 desired, 0 placed, 0 available, 2 stopping; Blocked: no room; " +
				"error: bad"},
		},
		"gone, as wanted": {
			"Gone", func(context.CancelFunc) { removeRecord(t, s, s.Keys().RCs.Key(r.ID)) }, exitDone,
			[]string{"the rc is gone"},
		},
		"gone": {
			"Converged", func(context.CancelFunc) { removeRecord(t, s, s.Keys().RCs.Key(r.ID)) }, exitRefused,
			[]string{"the rc is gone", "was deleted before it was Converged"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			removeRecord(t, s, s.Keys().Statuses.Key(r.ID))
			putRecord(t, s, s.Keys().RCs.Key(r.ID), rcText(r))
			var out, errs syncBuffer
			s.stdio = &stdio{out: &out, err: &errs}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- followRC(ctx, s, &r, watching{until: tt.until}) }()
			consultest.Eventually(t, 20*time.Second, func() error {
				if out.String() == "" {
					return errors.New("nothing shown yet")
				}
				return nil
			})
			tt.act(cancel)
			if code := s.report(<-ended); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			text := out.String() + errs.String()
			for _, want := range tt.says {
				if strings.Count(text, want) == 0 {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			if n := strings.Count(out.String(), "Pending"); n != 1 {
				t.Errorf("the first state was shown %d times\n%s", n, text)
			}
		})
	}
}

func TestScreenOnATerminal(t *testing.T) {
	var out bytes.Buffer
	sc := screen{out: &out, terminal: true}
	v := inspect.StatusView{Name: "web", State: "Progressing", ObservedGeneration: 1}
	for range 3 {
		if err := sc.show(v, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
	}
	v.Available = 1
	if err := sc.show(v, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\x1b[H\x1b[2J"); n != 2 {
		t.Errorf("drawn %d times", n)
	}
}

func rcText(r rc.RC) string {
	return fmt.Sprintf(`{"id":%q,"name":%q,"manifest":%q,"generation":1,"replica_groups":[{"role":"main","count":3}]}`,
		r.ID, r.Name, r.ManifestDigest)
}

func removeRecord(t *testing.T, s *conn, key string) {
	t.Helper()
	if _, err := s.consul.Commit(t.Context(), []consul.Op{consul.Delete(key)}); err != nil {
		t.Fatal(err)
	}
}

// syncBuffer is a buffer that a command writes while a test reads it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// A change of labels also changes the label version in the node's reservation, and nothing else there. Other commands
// do not change the reservation, unless the label version in it is wrong.
func TestLabelsAreInTheReservation(t *testing.T) {
	s, _ := testConn(t)
	putRecord(t, s, s.Keys().Nodes.Key("n1"), `{"name":"n1"}`)
	read := func() store.Rec[node.Reservation] {
		t.Helper()
		found, _, err := s.ReservationsOf(t.Context(), []string{"n1"})
		if err != nil {
			t.Fatal(err)
		}
		return found["n1"]
	}
	act := func(compute func(node.Ops) nodeChange) {
		t.Helper()
		_, err := changeNode(t.Context(), s, "n1", func(ops node.Ops) (nodeChange, error) { return compute(ops), nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	label := func(value string) func(node.Ops) nodeChange {
		return func(ops node.Ops) nodeChange {
			ops.Labels = map[string]string{"rack": value}
			return nodeChange{what: "label", ops: ops, lines: []string{"rack"}}
		}
	}
	cordon := func(ops node.Ops) nodeChange { return computeCordon(ops, !ops.Unschedulable) }
	nothing := func(ops node.Ops) nodeChange { return nodeChange{what: "label", ops: ops} }
	version := func(value string) string { return node.LabelVersion(map[string]string{"rack": value}) }

	act(cordon)
	if res := read(); res.Index != 0 {
		t.Errorf("after a cordon: %+v", res)
	}
	act(label("a"))
	if res := read(); res.Value.Labels != (node.LabelVersions{Operators: version("a")}) {
		t.Errorf("after the first label: %+v", res)
	}
	putRecord(t, s, s.Keys().Reservations.Key("n1"),
		`{"labels":{"own":"x","operators":"`+version("a")+`"},"holders":{"web/main.0":{"cpu":5}}}`)
	before := read()
	act(cordon)
	act(nothing)
	if res := read(); res.Index != before.Index {
		t.Errorf("after acts that change no label: %+v, was %+v", res, before)
	}
	act(label("b"))
	if res := read(); res.Value.Labels != (node.LabelVersions{Own: "x", Operators: version("b")}) ||
		res.Value.Claims["web/main.0"].CPU != 5 {
		t.Errorf("after another label: %+v", res)
	}
	putRecord(t, s, s.Keys().Reservations.Key("n1"), `{"labels":{"operators":"wrong"},"holders":{}}`)
	act(nothing)
	if res := read(); res.Value.Labels.Operators != version("b") {
		t.Errorf("a wrong label version: %+v", res)
	}
}
