package farm

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// electorate is what this farm sees of the election of the leader. While one leads it tells what is wrong, as of records that belong to no
// controller; while none does, every farm that sees it tells, under the same key.
type electorate struct {
	mu     sync.Mutex
	reason string    // what is wrong; empty: nothing is
	since  time.Time // when it began, by our own clock
	led    bool      // somebody leads
}

// electionKey is the key of what is wrong with the election, among those of records.
const electionKey = "election/" + store.FarmLease

// electionKind is that as a kind of finding.
const electionKind = "election"

// SawElection is told what this farm sees of the election of the leader: which conditions hold, and whether somebody leads.
func (f *Farm) SawElection(conditions []ballot.Condition, led bool) {
	var texts []string
	held := map[ballot.ConditionType]bool{}
	for _, c := range conditions {
		texts = append(texts, string(c.Type)+": "+c.Message)
		held[c.Type] = true
	}
	reason := field.Cut(strings.Join(texts, "; "), rc.MaxReason)
	for _, t := range ballot.ConditionTypes {
		f.cfg.Metrics.election.WithLabelValues(string(t)).Set(obs.Flag(held[t]))
	}
	e := &f.electorate
	e.mu.Lock()
	if (e.reason == "") != (reason == "") {
		e.since = time.Now().UTC()
	}
	e.reason, e.led = reason, led
	e.mu.Unlock()
	found := map[string]string{}
	if reason != "" {
		found[electionKey] = reason
	}
	f.speaker.unreadable.say(electionKind, found)
}

// leaderless returns what is wrong while nobody leads, once that has lasted for as long as the rule says.
func (e *electorate) leaderless(now time.Time) *rc.Incident {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.led || e.reason == "" || now.Sub(e.since) < rc.ElectionTroubleAfter {
		return nil
	}
	return &rc.Incident{Key: electionKey + "/" + string(rc.ElectionTrouble) + "/leaderless", Type: rc.ElectionTrouble, Since: e.since, Reason: e.reason}
}

const electionEvery = time.Second

// tellLeaderless tells what keeps all farms from electing a leader, until ctx ends.
func (f *Farm) tellLeaderless(ctx context.Context) error {
	var told *rc.Incident
	heard := false // whoever is told has heard of it
	for {
		now := time.Now().UTC()
		switch is := f.electorate.leaderless(now); {
		case is != nil && !heard:
			told = is
			heard = f.kit.teller.One(ctx, "", alert.Tell{Incident: *is})
		case is == nil && told != nil:
			told.ResolvedAt = &now
			f.kit.teller.One(ctx, "", alert.Tell{Incident: *told, Resolved: true})
			told, heard = nil, false
		}
		if err := wait.Pause(ctx, electionEvery); err != nil {
			return err
		}
	}
}
