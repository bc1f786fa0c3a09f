package farm

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// If there has been no leader for some time, each farm alerts to the cause. All farms use the same incident key. While
// a farm leads, they do not alert.
func TestLeaderless(t *testing.T) {
	t.Parallel()
	f := NewFarm(Config{ID: "f1"})
	now := time.Now().UTC()
	soon, late := now.Add(29*time.Second), now.Add(31*time.Second)
	silent := []ballot.Condition{{Type: ballot.AllSilent, Message: "none of 3 candidates has answered"}}
	if f.electorate.leaderless(late) != nil {
		t.Error("an alert without trouble")
	}
	f.SetElection(silent, "")
	if f.electorate.leaderless(soon) != nil {
		t.Error("an alert before the time is over")
	}
	is := f.electorate.leaderless(late)
	if is == nil || is.Key != "election/farm/ElectionTrouble/leaderless" ||
		is.Reason != "AllSilent: none of 3 candidates has answered" {
		t.Fatalf("%+v", is)
	}
	since := f.electorate.since
	f.SetElection(append(silent, ballot.Condition{Type: ballot.PinAbsent, Message: "f9 is pinned"}), "")
	if f.electorate.since != since {
		t.Error("more trouble must not begin the time again")
	}
	f.SetElection(silent, "f1")
	if f.electorate.leaderless(late) != nil {
		t.Error("an alert although a leader alerts")
	}
	f.SetElection(nil, "")
	if f.electorate.leaderless(late) != nil {
		t.Error("an alert after the trouble is over")
	}
}

// The leader alerts to trouble with the election in the same way as to unreadable records, if the trouble lasts.
func TestTheLeaderAlertsToTheElection(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	wrong := findings{texts: map[string]string{electionKey: "StrategyConflict: they disagree"}, complete: true}
	next, tells, active, later := trackRecords(nil, wrong, now, nil)
	if got := next[electionKey]; len(got) != 1 || got[0].Type != rc.ElectionTrouble || len(tells)+len(active) != 0 ||
		later != 30*time.Second {
		t.Fatalf("%+v, %+v, %v, %s", next, tells, active, later)
	}
	next, tells, active, _ = trackRecords(next, wrong, now.Add(31*time.Second), nil)
	if len(tells) != 1 || len(active) != 1 || active[0] != rc.ConditionType("ElectionTrouble") {
		t.Fatalf("%+v, %+v, %v", next, tells, active)
	}
	notified := map[string]bool{tells[0].ID(): true}
	next, tells, _, later = trackRecords(next, findings{complete: true}, now.Add(40*time.Second), notified)
	if len(tells) != 1 || !tells[0].Resolved || later != 0 {
		t.Errorf("%+v, %+v, %s", next, tells, later)
	}
}
