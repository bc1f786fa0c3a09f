package farm

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Every farm tells what keeps all of them from electing a leader, under one key, once that has lasted; while somebody leads none does.
func TestLeaderless(t *testing.T) {
	t.Parallel()
	f := NewFarm(Config{ID: "f1"})
	now := time.Now().UTC()
	soon, late := now.Add(29*time.Second), now.Add(31*time.Second)
	silent := []ballot.Condition{{Type: ballot.AllSilent, Message: "none of 3 candidates has answered"}}
	if f.electorate.leaderless(late) != nil {
		t.Error("nothing is wrong")
	}
	f.SawElection(silent, false)
	if f.electorate.leaderless(soon) != nil {
		t.Error("it may mend itself")
	}
	is := f.electorate.leaderless(late)
	if is == nil || is.Key != "election/farm/ElectionTrouble/leaderless" || is.Reason != "AllSilent: none of 3 candidates has answered" {
		t.Fatalf("%+v", is)
	}
	since := f.electorate.since
	f.SawElection(append(silent, ballot.Condition{Type: ballot.PinAbsent, Message: "f9 is pinned"}), false)
	if f.electorate.since != since {
		t.Error("it goes on, although it is more now")
	}
	f.SawElection(silent, true)
	if f.electorate.leaderless(late) != nil {
		t.Error("the leader tells it")
	}
	f.SawElection(nil, false)
	if f.electorate.leaderless(late) != nil {
		t.Error("it is over")
	}
}

// The leader tells what is wrong with the election as it tells of records, once it has lasted.
func TestTheLeaderTellsOfTheElection(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	wrong := map[string]string{electionKey: "StrategyConflict: they disagree"}
	next, tells, active, later := trackRecords(nil, wrong, now, nil, true)
	if got := next[electionKey]; len(got) != 1 || got[0].Type != rc.ElectionTrouble || len(tells)+len(active) != 0 || later != 30*time.Second {
		t.Fatalf("%+v, %+v, %v, %s", next, tells, active, later)
	}
	next, tells, active, _ = trackRecords(next, wrong, now.Add(31*time.Second), nil, true)
	if len(tells) != 1 || len(active) != 1 || active[0] != rc.ConditionType("ElectionTrouble") {
		t.Fatalf("%+v, %+v, %v", next, tells, active)
	}
	told := map[string]bool{tells[0].ID(): true}
	next, tells, _, later = trackRecords(next, nil, now.Add(40*time.Second), told, true)
	if len(tells) != 1 || !tells[0].Resolved || later != 0 {
		t.Errorf("%+v, %+v, %s", next, tells, later)
	}
}
