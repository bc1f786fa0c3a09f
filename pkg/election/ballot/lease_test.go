package ballot_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
)

func TestOpen(t *testing.T) {
	held := ballot.Lease{
		Session: "s", Holder: ballot.Holder{ID: "a", Round: "n1"}, HolderIndex: 20,
		Round: ballot.Round{Nonce: "n2"}, RoundIndex: 30,
	}
	for _, tt := range []struct {
		name   string
		first  string
		change func(*ballot.Lease)
		want   bool
	}{
		{"held, a new round", "n1", func(*ballot.Lease) {}, true},
		{"held, nothing was there at the start", "", func(*ballot.Lease) {}, true},
		{"held, the round was there at the start", "n2", func(*ballot.Lease) {}, false},
		{"held since this round", "", func(l *ballot.Lease) { l.Holder.Round = "n2" }, false},
		{"held, no round", "", func(l *ballot.Lease) { l.Round = ballot.Round{} }, false},
		{"free since before the round", "n2", func(l *ballot.Lease) { l.Session = "" }, true},
		{"free since the round", "", func(l *ballot.Lease) { l.Session, l.HolderIndex = "", 40 }, false},
		{"free and round at one index", "", func(l *ballot.Lease) { l.Session, l.HolderIndex = "", 30 }, false},
		{"yielded in this round", "n2", func(l *ballot.Lease) {
			l.Session, l.HolderIndex, l.Holder = "", 40, ballot.Holder{Last: "a", YieldedTo: "b", Round: "n2"}
		}, true},
		{"yielded in an earlier round", "", func(l *ballot.Lease) {
			l.Session, l.HolderIndex, l.Holder = "", 40, ballot.Holder{Last: "a", YieldedTo: "b", Round: "n1"}
		}, false},
		{
			"the holder of this round died", "",
			func(l *ballot.Lease) { l.Session, l.HolderIndex, l.Holder.Round = "", 40, "n2" }, false,
		},
		{
			"never held, a round", "n2",
			func(l *ballot.Lease) { l.Session, l.HolderIndex, l.Holder = "", 0, ballot.Holder{} }, true,
		},
		{"nothing at all", "", func(l *ballot.Lease) { *l = ballot.Lease{} }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := held
			tt.change(&l)
			if got := l.Open(tt.first); got != tt.want {
				t.Errorf("open: %t", got)
			}
			p := l.Pings(lease, tt.first, true)
			if (p.Round == l.Round.Nonce) != tt.want && p.Round != "" || !tt.want && p.Round != "" {
				t.Errorf("pings: %+v", p)
			}
		})
	}
}

func TestPings(t *testing.T) {
	l := ballot.Lease{
		Session: "s", Holder: ballot.Holder{ID: "a", Round: "n1"}, HolderIndex: 20,
		Round: ballot.Round{Nonce: "n2", Pin: "b", Without: []ballot.Ref{{ID: "c", Created: 3}}}, RoundIndex: 30,
	}
	want := ballot.Pings{
		Lease: lease, Held: true, Holder: "a", Round: "n2", Over: true, Pin: "b",
		Without: l.Round.Without,
	}
	if diff := cmp.Diff(want, l.Pings(lease, "", true)); diff != "" {
		t.Error(diff)
	}
	l.Session = ""
	want.Held, want.Holder, want.Over = false, "", false
	if diff := cmp.Diff(want, l.Pings(lease, "", false)); diff != "" {
		t.Errorf("who held a free lease does not count:\n%s", diff)
	}
}

func TestNextRound(t *testing.T) {
	l := ballot.Lease{Round: ballot.Round{
		Nonce: "n1", OpenedBy: "b", Why: "x", Pin: "b",
		Without: []ballot.Ref{{"a", 1}, {"b", 2}, {"c", 3}},
	}}
	got := l.Next("n2", "a", "why", *at("2026-11-23T08:00:00Z"),
		[]ballot.Candidate{of("a", "1.19", 1), of("b", "1.19", 9), of("d", "1.19", 3)})
	want := ballot.Round{
		Nonce: "n2", OpenedBy: "a", Why: "why", At: *at("2026-11-23T08:00:00Z"), Pin: "b",
		Without: []ballot.Ref{{"a", 1}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got.Put(of("d", "1.19", 3))
	got.Put(of("d", "1.19", 3))
	if diff := cmp.Diff([]ballot.Ref{{"a", 1}, {"d", 3}}, got.Without); diff != "" {
		t.Error(diff)
	}
	got.PinTo("a")
	if diff := cmp.Diff([]ballot.Ref{{"d", 3}}, got.Without); got.Pin != "a" || diff != "" {
		t.Errorf("pin %q\n%s", got.Pin, diff)
	}
	got.PinTo("")
	if got.Pin != "" || len(got.Without) != 1 {
		t.Errorf("%+v", got)
	}
	data, err := json.Marshal(want)
	if text := `{"nonce":"n2","opened_by":"a","at":"2026-11-23T08:00:00.000000Z","why":"why","pin":"b","without":[{"id":"a","created":1}]}`; err != nil || string(data) != text {
		t.Errorf("got %s, %v", data, err)
	}
}

func TestDecodeLease(t *testing.T) {
	var l ballot.Lease
	l.DecodeHolder([]byte(`{"id": "a", "round": "n1", "since": "2026-11-23T08:00:00Z", "later": 1}`))
	l.DecodeRound([]byte(`{"nonce": "n2", "pin": "b"}`))
	if l.Corrupt != nil || l.Holder.ID != "a" || l.Holder.Round != "n1" || l.Round.Nonce != "n2" || l.Round.Pin != "b" {
		t.Errorf("%+v", l)
	}
	l.DecodeHolder([]byte(`{"id": "x", "round": 1}`))
	l.DecodeRound([]byte(`{"nonce": "x", "pin": 1}`))
	if len(l.Corrupt) != 2 || l.Holder != (ballot.Holder{}) || l.Round.Nonce != "" {
		t.Errorf("%+v", l)
	}
}
