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

// owner is a farm that owns a controller. Each look computes the next status, stores it and sends notifications.
type owner struct {
	t         *testing.T
	now       time.Time
	stored    *rc.Status // in Consul
	delivered map[string]bool
	sent      []string // ids of all notifications so far
	due       time.Duration
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
	st.Incidents, o.due = alert.Track(alert.Input{
		Before: o.stored, After: st, Now: o.now, Quiet: quiet, Notified: o.delivered,
	})
	return st
}

// store stores a status through JSON, as Consul does.
func (o *owner) store(st *rc.Status) {
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

// send sends the notifications that are due.
func (o *owner) send() {
	delivered := map[string]bool{}
	for _, n := range alert.Due(o.stored, o.now) {
		if !o.delivered[n.ID()] {
			o.sent = append(o.sent, n.ID())
		}
		delivered[n.ID()] = true
	}
	o.delivered = delivered
}

// look runs passes until nothing changes any more.
func (o *owner) look(conds ...rc.ConditionType) {
	o.t.Helper()
	for range 4 {
		o.store(o.compute(false, 0, conds...))
		o.send()
	}
}

func (o *owner) after(d time.Duration) { o.now = o.now.Add(d) }

func newOwner(t *testing.T) *owner {
	t.Helper()
	return &owner{t: t, now: start}
}

func TestAnIncidentAndItsEndAreAlertedOnce(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.look(rc.Converged, rc.NodeLost)
	key := rc.IncidentKey("web", rc.NodeLost, start)
	if !slices.Equal(o.sent, []string{key}) {
		t.Fatalf("sent %v", o.sent)
	}
	o.after(time.Hour)
	o.look(rc.Converged, rc.NodeLost)
	i := o.stored.Incidents
	if len(i) != 1 || i[0].AlertedAt == nil || !i[0].AlertedAt.Equal(start) || i[0].Reason != "because" {
		t.Errorf("stored %+v", i)
	}
	o.look(rc.Converged)
	if !slices.Equal(o.sent, []string{key, key + "/resolved"}) || len(o.stored.Incidents) != 0 {
		t.Errorf("sent %v, stored %+v", o.sent, o.stored.Incidents)
	}
	o.after(time.Second)
	o.look(rc.Converged, rc.NodeLost)
	if len(o.sent) != 3 || o.sent[2] == key {
		t.Errorf("the next incident is not a new one: %v", o.sent)
	}
}

// A crash loop is alerted at once and only once, although other conditions change meanwhile.
func TestACrashLoopIsAlertedOnceThoughConditionsFlip(t *testing.T) {
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
	if !slices.Equal(o.sent, []string{key}) {
		t.Errorf("sent %v", o.sent)
	}
	if o.look(rc.Converged); !slices.Equal(o.sent, []string{key, key + "/resolved"}) {
		t.Errorf("sent %v", o.sent)
	}
}

// A farm of another version may leave incidents of an unknown kind. If the alert was delivered, its end is sent. If
// not, nothing is sent.
func TestIncidentsOfAnotherVersionEnd(t *testing.T) {
	t.Parallel()
	for _, alerted := range []bool{false, true} {
		o := newOwner(t)
		incident := rc.Incident{Key: "k", Type: "OfTomorrow", Since: start}
		if alerted {
			incident.AlertedAt = &start
		}
		o.stored = &rc.Status{RCID: "web", Incidents: []rc.Incident{incident}}
		if active := alert.Active(o.stored, o.now); (len(active) > 0) != alerted {
			t.Errorf("alerted %t: active %v", alerted, active)
		}
		var want []string
		if alerted {
			want = []string{"k/resolved"}
		}
		if o.look(rc.Converged); len(o.stored.Incidents) > 0 || !slices.Equal(o.sent, want) {
			t.Errorf("alerted %t: sent %v, stored %+v", alerted, o.sent, o.stored.Incidents)
		}
	}
}

func TestTheNextOwnerDoesNotAlertAgain(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.look(rc.Converged, rc.NodeLost)
	next := &owner{t: t, now: o.now.Add(time.Minute), stored: o.stored}
	next.look(rc.Converged, rc.NodeLost)
	if len(next.sent) != 0 {
		t.Errorf("sent again: %v", next.sent)
	}
	next.look(rc.Converged)
	if len(next.sent) != 1 || !strings.HasSuffix(next.sent[0], "/resolved") {
		t.Errorf("sent %v", next.sent)
	}
}

// If a farm dies before it has sent a notification, the next owner sends it.
func TestTheNextOwnerSendsWhatWasNotSent(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.store(o.compute(false, 0, rc.Converged, rc.NodeLost)) // stored; the farm died before it sent
	next := &owner{t: t, now: o.now, stored: o.stored}
	next.look(rc.Converged, rc.NodeLost)
	if len(next.sent) != 1 {
		t.Fatalf("sent %v", next.sent)
	}
	next.store(next.compute(false, 0, rc.Converged)) // over, stored; the farm died before it sent
	last := &owner{t: t, now: o.now, stored: next.stored}
	last.look(rc.Converged)
	if len(last.sent) != 1 || len(last.stored.Incidents) != 0 {
		t.Errorf("sent %v, stored %+v", last.sent, last.stored.Incidents)
	}
}

// An alert was sent, but its delivery was not stored before the incident was over and another farm became owner. That
// farm sends the end.
func TestTheEndIsSentThoughTheDeliveryWasNotStored(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.look(rc.Converged, rc.Unclaimed)
	o.after(time.Minute)
	o.store(o.compute(false, 0, rc.Converged, rc.Unclaimed))
	o.send()
	key := rc.IncidentKey("web", rc.Unclaimed, start)
	if !slices.Equal(o.sent, []string{key}) {
		t.Fatalf("sent %v", o.sent)
	}
	next := &owner{t: t, now: o.now, stored: o.stored}
	next.look(rc.Converged)
	if !slices.Equal(next.sent, []string{key + "/resolved"}) || len(next.stored.Incidents) != 0 {
		t.Errorf("sent %v, stored %+v", next.sent, next.stored.Incidents)
	}
}

func TestAnIncidentThatEndsSoonIsNotAlerted(t *testing.T) {
	t.Parallel()
	o := newOwner(t)
	o.look(rc.Converged, "InsufficientNodes")
	if o.due != 10*time.Second {
		t.Errorf("the next look is due after %s, want 10 s", o.due)
	}
	o.after(9 * time.Second)
	o.look(rc.Converged, "InsufficientNodes")
	if len(alert.Active(o.stored, o.now)) != 0 {
		t.Error("active too early")
	}
	o.after(time.Second / 2)
	o.look(rc.Converged)
	if len(o.sent) != 0 || len(o.stored.Incidents) != 0 {
		t.Errorf("sent %v, stored %+v", o.sent, o.stored.Incidents)
	}
	o.look(rc.Converged, "InsufficientNodes")
	o.after(10 * time.Second)
	o.look(rc.Converged, "InsufficientNodes")
	active := alert.Active(o.stored, o.now)
	if len(o.sent) != 1 || o.due != 0 || !slices.Equal(active, []rc.ConditionType{"InsufficientNodes"}) {
		t.Errorf("sent %v, due %s, active %v", o.sent, o.due, active)
	}
}

func TestIncidentsWithoutAConditionOfTheSameName(t *testing.T) {
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
		"preparer gone": {
			unmanaged: 1, conds: []rc.ConditionType{rc.Converged, rc.NodeLost},
			want: []rc.ConditionType{rc.PreparerGone},
		},
		"node lost": {conds: []rc.ConditionType{rc.Converged, rc.NodeLost}, want: []rc.ConditionType{rc.NodeLost}},
	} {
		o := newOwner(t)
		o.store(o.compute(tt.quiet, tt.unmanaged, tt.conds...))
		o.after(time.Hour)
		o.store(o.compute(tt.quiet, tt.unmanaged, tt.conds...))
		if got := alert.Active(o.stored, o.now); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestAlertsAreLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := obs.NewLogger(&out, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	end := start.Add(90 * time.Second)
	in := incident("k")
	alert.Log{Logger: log}.Raise(t.Context(), in)
	in.ResolvedAt = &end
	alert.Log{Logger: log}.Resolve(t.Context(), in)
	for _, want := range []string{
		"level=warning msg=\"alert raised\"", "condition=NodeLost", "incident=k", "rc_id=web", `reason="n1 is gone"`,
		"alert resolved", "took=1m30s",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
