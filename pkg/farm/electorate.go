package farm

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// electorate is what this farm sees of the election of the leader. While a farm leads, only the leader alerts people to
// trouble with the election. While no farm leads, each farm that sees the trouble does, with the same incident key.
type electorate struct {
	mu     sync.Mutex
	reason string    // why there is trouble; empty: there is none
	since  time.Time // when it began, by this farm's clock
	led    bool      // a farm leads
	ended  bool      // this farm has ended: later events of its election are not reported
}

const electionKey = "election/" + store.FarmLease

const electionKind = "election"

// SetElection records what this farm sees of the election: the conditions that are true, and the id of the leader, ""
// for none.
func (f *Farm) SetElection(conditions []ballot.Condition, leader string) {
	var texts []string
	held := map[ballot.ConditionType]bool{}
	for _, c := range conditions {
		texts = append(texts, string(c.Type)+": "+c.Message)
		held[c.Type] = true
	}
	reason := field.Cut(strings.Join(texts, "; "), rc.MaxReason)
	e := &f.electorate
	e.mu.Lock()
	if !e.ended {
		f.cfg.Metrics.setElection(held)
	}
	if (e.reason == "") != (reason == "") {
		e.since = time.Now().UTC()
	}
	e.reason, e.led = reason, leader != ""
	e.mu.Unlock()
	found := map[string]string{}
	if reason != "" {
		found[electionKey] = reason
	}
	f.leaderReporter.unreadable.set(electionKind, found)
}

func (e *electorate) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
}

// leaderless returns the incident if no farm leads and the trouble has lasted for rc.ElectionTroubleAfter, else nil.
func (e *electorate) leaderless(now time.Time) *rc.Incident {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.led || e.reason == "" || now.Sub(e.since) < rc.ElectionTroubleAfter {
		return nil
	}
	return &rc.Incident{
		Key: electionKey + "/" + string(rc.ElectionTrouble) + "/leaderless", Type: rc.ElectionTrouble,
		Since: e.since, Reason: e.reason,
	}
}

const electionEvery = time.Second

// alertLeaderless alerts people if trouble keeps the farms from electing a leader, and again when it is over.
func (f *Farm) alertLeaderless(ctx context.Context) error {
	var alerted *rc.Incident
	received := false // by the alerter
	for {
		now := time.Now().UTC()
		switch is := f.electorate.leaderless(now); {
		case is != nil && !received:
			alerted = is
			received = f.kit.notifier.Notify(ctx, "", alert.Notification{Incident: *is})
		case is == nil && alerted != nil:
			alerted.ResolvedAt = &now
			f.kit.notifier.Notify(ctx, "", alert.Notification{Incident: *alerted, Resolved: true})
			alerted, received = nil, false
		}
		if err := wait.Pause(ctx, electionEvery); err != nil {
			return err
		}
	}
}
