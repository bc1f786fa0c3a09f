package alert_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// owner is a farm's part in the life of a controller: each look computes the next status, stores it and tells.
type owner struct {
	t      *testing.T
	now    time.Time
	stored *rc.Status // what Consul has
	told   map[string]bool
	said   []string // everything that was ever told
	due    time.Duration
}

func (o *owner) compute(quiet bool, unmanaged int, conds ...rc.ConditionType) *rc.Status {
	st := &rc.Status{RCID: "web", Unmanaged: unmanaged}
	if slices.Contains(conds, rc.NodeLost) && unmanaged == 0 {
		st.Lost = 1
	}
	if o.stored != nil {
		st.Conditions = slices.Clone(o.stored.Conditions)
	}
	for _, rule := range rc.Alerts {
		st.Conditions = rc.SetCondition(st.Conditions, rule.Type, slices.Contains(conds, rule.Type), "because", o.now)
	}
	st.Conditions = rc.SetCondition(st.Conditions, rc.Converged, slices.Contains(conds, rc.Converged), "waiting", o.now)
	st.Incidents, o.due = alert.Track(alert.Input{Before: o.stored, After: st, Now: o.now, Quiet: quiet, Notified: o.told})
	return st
}

// land stores a status as Consul would: through JSON.
func (o *owner) land(st *rc.Status) {
	o.t.Helper()
	data, err := json.Marshal(st)
	if err != nil {
		o.t.Fatal(err)
	}
	o.stored = &rc.Status{}
	if err := json.Unmarshal(data, o.stored); err != nil {
		o.t.Fatal(err)
	}
}

func (o *owner) tell() {
	pending := map[string]bool{}
	for _, tell := range alert.Due(o.stored, o.now) {
		if !o.told[tell.ID()] {
			o.said = append(o.said, tell.ID())
		}
		pending[tell.ID()] = true
	}
	o.told = pending
}

// look is one undisturbed pass, repeated until nothing changes any more.
func (o *owner) look(conds ...rc.ConditionType) {
	o.t.Helper()
	for range 4 {
		o.land(o.compute(false, 0, conds...))
		o.tell()
	}
}

func (o *owner) after(d time.Duration) { o.now = o.now.Add(d) }

func newOwner(t *testing.T) *owner {
	t.Helper()
	return &owner{t: t, now: start}
}

func TestAnIncidentIsToldOnceAndItsEndOnce(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.look(rc.Converged, rc.NodeLost)
	key := rc.IncidentKey("web", rc.NodeLost, start)
	if !slices.Equal(o.said, []string{key}) {
		t.Fatalf("told %v", o.said)
	}
	o.after(time.Hour)
	o.look(rc.Converged, rc.NodeLost)
	if i := o.stored.Incidents; len(i) != 1 || i[0].AlertedAt == nil || !i[0].AlertedAt.Equal(start) || i[0].Reason != "because" {
		t.Errorf("stored %+v", i)
	}
	o.look(rc.Converged)
	if !slices.Equal(o.said, []string{key, key + "/resolved"}) || len(o.stored.Incidents) != 0 {
		t.Errorf("told %v, stored %+v", o.said, o.stored.Incidents)
	}
	o.after(time.Second)
	o.look(rc.Converged, rc.NodeLost)
	if len(o.said) != 3 || o.said[2] == key {
		t.Errorf("the next incident is not a new one: %v", o.said)
	}
}

// A crash loop is told at once and once, however other conditions flip meanwhile.
func TestACrashLoopIsToldThroughFlips(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	key := rc.IncidentKey("web", rc.CrashLooping, start)
	for range 5 {
		o.look(rc.CrashLooping)
		o.after(3 * time.Second)
		o.look(rc.CrashLooping, rc.Blocked, rc.Converged)
		o.after(3 * time.Second)
		o.look(rc.CrashLooping, rc.InsufficientNodes)
	}
	if !slices.Equal(o.said, []string{key}) {
		t.Errorf("told %v", o.said)
	}
	if o.look(rc.Converged); !slices.Equal(o.said, []string{key, key + "/resolved"}) {
		t.Errorf("told %v", o.said)
	}
}

// A farm of another version may leave incidents of a kind that is unknown here. What was told ends, what was not is not told.
func TestIncidentsOfAnotherVersion(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{false, true} {
		o := newOwner(t)
		incident := rc.Incident{Key: "k", Type: "OfTomorrow", Since: start}
		if told {
			incident.AlertedAt = &start
		}
		o.stored = &rc.Status{RCID: "web", Incidents: []rc.Incident{incident}}
		if active := alert.Active(o.stored, o.now); (len(active) > 0) != told {
			t.Errorf("told %t: active %v", told, active)
		}
		if o.look(rc.Converged); len(o.stored.Incidents) > 0 || told != slices.Equal(o.said, []string{"k/resolved"}) || !told && len(o.said) > 0 {
			t.Errorf("told %t: said %v, stored %+v", told, o.said, o.stored.Incidents)
		}
	}
}

func TestASuccessorDoesNotTellAgain(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.look(rc.Converged, rc.NodeLost)
	next := &owner{t: t, now: o.now.Add(time.Minute), stored: o.stored}
	next.look(rc.Converged, rc.NodeLost)
	if len(next.said) != 0 {
		t.Errorf("told again: %v", next.said)
	}
	next.look(rc.Converged)
	if len(next.said) != 1 || !strings.HasSuffix(next.said[0], "/resolved") {
		t.Errorf("told %v", next.said)
	}
}

// Whatever instant a farm dies at, nothing is forgotten: what it had not recorded as told is told by its successor.
func TestNothingIsForgotten(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.land(o.compute(false, 0, rc.Converged, rc.NodeLost)) // landed; the farm died before it told
	next := &owner{t: t, now: o.now, stored: o.stored}
	next.look(rc.Converged, rc.NodeLost)
	if len(next.said) != 1 {
		t.Fatalf("told %v", next.said)
	}
	next.land(next.compute(false, 0, rc.Converged)) // resolved, landed, died before it told
	last := &owner{t: t, now: o.now, stored: next.stored}
	last.look(rc.Converged)
	if len(last.said) != 1 || len(last.stored.Incidents) != 0 {
		t.Errorf("told %v, stored %+v", last.said, last.stored.Incidents)
	}
}

// What was told, and not stored as told before it was over and somebody else's to look at, ends for those who were told.
func TestAnEndIsToldThoughTheBeginningWasNotStored(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.look(rc.Converged, rc.Unclaimed)
	o.after(time.Minute)
	o.land(o.compute(false, 0, rc.Converged, rc.Unclaimed))
	o.tell()
	key := rc.IncidentKey("web", rc.Unclaimed, start)
	if !slices.Equal(o.said, []string{key}) {
		t.Fatalf("told %v", o.said)
	}
	next := &owner{t: t, now: o.now, stored: o.stored}
	next.look(rc.Converged)
	if !slices.Equal(next.said, []string{key + "/resolved"}) || len(next.stored.Incidents) != 0 {
		t.Errorf("told %v, stored %+v", next.said, next.stored.Incidents)
	}
}

func TestWhatMendsItselfWakesNobody(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.look(rc.Converged, "InsufficientNodes")
	if o.due != 10*time.Second {
		t.Errorf("the next look is due after %s", o.due)
	}
	o.after(9 * time.Second)
	o.look(rc.Converged, "InsufficientNodes")
	if len(alert.Active(o.stored, o.now)) != 0 {
		t.Error("active too early")
	}
	o.after(time.Second / 2)
	o.look(rc.Converged)
	if len(o.said) != 0 || len(o.stored.Incidents) != 0 {
		t.Errorf("told %v, stored %+v", o.said, o.stored.Incidents)
	}
	o.look(rc.Converged, "InsufficientNodes")
	o.after(10 * time.Second)
	o.look(rc.Converged, "InsufficientNodes")
	if len(o.said) != 1 || o.due != 0 || !slices.Equal(alert.Active(o.stored, o.now), []rc.ConditionType{"InsufficientNodes"}) {
		t.Errorf("told %v, due %s", o.said, o.due)
	}
}

func TestIncidentsWithoutAConditionOfTheirName(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		quiet     bool
		unmanaged int
		conds     []rc.ConditionType
		want      []rc.ConditionType
	}{
		"well":                      {conds: []rc.ConditionType{rc.Converged}},
		"not converged":             {want: []rc.ConditionType{rc.NotConverged}},
		"not converged, not wanted": {quiet: true},
		"preparer gone":             {unmanaged: 1, conds: []rc.ConditionType{rc.Converged, rc.NodeLost}, want: []rc.ConditionType{rc.PreparerGone}},
		"node gone":                 {conds: []rc.ConditionType{rc.Converged, rc.NodeLost}, want: []rc.ConditionType{rc.NodeLost}},
	} {
		o := newOwner(t)
		o.land(o.compute(tt.quiet, tt.unmanaged, tt.conds...))
		o.after(time.Hour)
		o.land(o.compute(tt.quiet, tt.unmanaged, tt.conds...))
		if got := alert.Active(o.stored, o.now); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := obs.NewLogger(&out, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	end := start.Add(90 * time.Second)
	in := alert.Incident{RCID: "web", Farm: "f1", Incident: rc.Incident{Key: "k", Type: rc.NodeLost, Reason: "n1 is gone", Since: start}}
	alert.Log{Logger: log}.Raise(t.Context(), in)
	in.ResolvedAt = &end
	alert.Log{Logger: log}.Resolve(t.Context(), in)
	for _, want := range []string{"level=warning msg=\"alert raised\"", "condition=NodeLost", "incident=k", "rc_id=web", `reason="n1 is gone"`, "alert resolved", "took=1m30s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
