package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
)

// ElectionView is one election.
type ElectionView struct {
	Name string `json:"name"`
	// empty: no leader, or a leader without a name
	Leader   string     `json:"leader,omitempty"`
	Held     bool       `json:"held"`            // a program holds the lock
	Since    *time.Time `json:"since,omitempty"` // by the leader's clock
	Strategy string     `json:"strategy,omitempty"`
	Pin      string     `json:"pin,omitempty"` // candidate that comes before all others
	// candidates that come after all others until they restart
	Yielded    []string           `json:"yielded,omitempty"`
	Round      *RoundView         `json:"round,omitempty"` // the last one
	Candidates []CandidateView    `json:"candidates"`      // by their ids
	Conditions []ballot.Condition `json:"conditions"`
}

// RoundView is the last round.
type RoundView struct {
	At       time.Time `json:"at"`
	OpenedBy string    `json:"opened_by"`
	Why      string    `json:"why"`
}

// CandidateView is one candidate.
type CandidateView struct {
	ID               string     `json:"id"`
	BinaryVersion    string     `json:"binary_version"`
	EmulationVersion string     `json:"emulation_version,omitempty"`
	Strategy         string     `json:"strategy"`
	Leads            bool       `json:"leads,omitempty"`
	Answered         bool       `json:"answered"`             // whether it answered the last round
	RenewTime        *time.Time `json:"renew_time,omitempty"` // when it answered a round last, by its own clock
	Excluded         string     `json:"excluded,omitempty"`   // why it cannot be chosen
}

// JoinElection returns the view of an election.
func JoinElection(name string, lease ballot.Lease, candidates []ballot.Candidate, verdict ballot.Verdict) ElectionView {
	v := ElectionView{
		Name: name, Held: lease.Held(), Strategy: string(verdict.Strategy), Pin: lease.Round.Pin,
		Candidates: []CandidateView{}, Conditions: append([]ballot.Condition{}, verdict.Conditions...),
	}
	if v.Held {
		v.Leader, v.Since = lease.Holder.ID, momentOf(lease.Holder.Since)
	}
	for _, ref := range lease.Round.Without {
		v.Yielded = append(v.Yielded, ref.ID)
	}
	if lease.Round.Nonce != "" {
		v.Round = &RoundView{At: lease.Round.At.Time, OpenedBy: lease.Round.OpenedBy, Why: lease.Round.Why}
	}
	for _, c := range candidates {
		view := CandidateView{
			ID: c.ID, BinaryVersion: c.Record.BinaryVersion, EmulationVersion: c.Record.EmulationVersion,
			Strategy: string(c.Record.Strategy), Leads: v.Held && c.ID == v.Leader,
			Answered:  v.Round != nil && c.Record.Round == lease.Round.Nonce,
			RenewTime: momentOf(c.Record.RenewTime),
		}
		if i := slices.IndexFunc(verdict.Excluded, func(e ballot.Exclusion) bool { return e.ID == c.ID }); i >= 0 {
			view.Excluded = verdict.Excluded[i].Reason
		}
		v.Candidates = append(v.Candidates, view)
	}
	return v
}

func momentOf(t *ballot.Time) *time.Time {
	if t == nil {
		return nil
	}
	return &t.Time
}

// Who names the leader in one word.
func (e *ElectionView) Who() string {
	switch {
	case !e.Held:
		return "nobody"
	case e.Leader == "":
		return "unnamed"
	default:
		return e.Leader
	}
}

// Says lists the types of the conditions.
func (e *ElectionView) Says() string {
	var types []string
	for _, c := range e.Conditions {
		if !slices.Contains(types, string(c.Type)) {
			types = append(types, string(c.Type))
		}
	}
	return strings.Join(types, ",")
}

// Notes lists what is special about a candidate.
func (e *ElectionView) Notes(c *CandidateView) string {
	var notes []string
	for _, n := range []struct {
		is   bool
		text string
	}{
		{c.Leads, "leads"},
		{c.ID == e.Pin, "pinned"},
		{slices.Contains(e.Yielded, c.ID), "has yielded"},
		{c.Excluded != "", "out: " + c.Excluded},
		{e.Round != nil && !c.Answered && c.Excluded == "", "silent"},
	} {
		if n.is {
			notes = append(notes, n.text)
		}
	}
	return strings.Join(notes, ", ")
}

// Story describes the election in lines.
func (e *ElectionView) Story() []string {
	first := "nobody leads " + e.Name
	switch {
	case e.Held && e.Leader == "":
		first = "a program without a name leads " + e.Name
	case e.Held:
		first = e.Leader + " leads " + e.Name
	}
	if e.Since != nil {
		first += " since " + At(*e.Since)
	}
	lines := []string{first}
	if e.Strategy != "" {
		lines = append(lines, "strategy "+e.Strategy)
	}
	if e.Pin != "" {
		lines = append(lines, e.Pin+" is pinned")
	}
	if e.Round != nil {
		lines = append(lines,
			fmt.Sprintf("last round %s, opened by %s: %s", At(e.Round.At), e.Round.OpenedBy, e.Round.Why))
	}
	for _, c := range e.Conditions {
		lines = append(lines, fmt.Sprintf("%s: %s", c.Type, c.Message))
	}
	return lines
}
