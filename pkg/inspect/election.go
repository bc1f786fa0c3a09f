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
	Name       string             `json:"name"`
	Leader     string             `json:"leader,omitempty"` // empty: nobody leads, or a program that does not say its name
	Held       bool               `json:"held"`             // somebody holds the lock
	Since      *time.Time         `json:"since,omitempty"`  // by the leader's clock
	Strategy   string             `json:"strategy,omitempty"`
	Pin        string             `json:"pin,omitempty"`     // candidate that goes before all others
	Yielded    []string           `json:"yielded,omitempty"` // candidates that go behind all others until they start anew
	Round      *RoundView         `json:"round,omitempty"`   // the last one
	Candidates []CandidateView    `json:"candidates"`        // by their ids
	Conditions []ballot.Condition `json:"conditions"`
}

// RoundView is the last time that candidates were asked.
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
	Answered         bool       `json:"answered"`             // the last round
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
			ID: c.ID, BinaryVersion: c.Record.BinaryVersion, EmulationVersion: c.Record.EmulationVersion, Strategy: string(c.Record.Strategy),
			Leads: v.Held && c.ID == v.Leader, Answered: v.Round != nil && c.Record.Round == lease.Round.Nonce, RenewTime: momentOf(c.Record.RenewTime),
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

// Who says in a word who leads.
func (v *ElectionView) Who() string {
	switch {
	case !v.Held:
		return "nobody"
	case v.Leader == "":
		return "unnamed"
	default:
		return v.Leader
	}
}

// Says lists the types of the conditions.
func (v *ElectionView) Says() string {
	var types []string
	for _, c := range v.Conditions {
		if !slices.Contains(types, string(c.Type)) {
			types = append(types, string(c.Type))
		}
	}
	return strings.Join(types, ",")
}

// Notes says of a candidate what is special about it.
func (v *ElectionView) Notes(c *CandidateView) string {
	var notes []string
	for _, n := range []struct {
		is   bool
		text string
	}{
		{c.Leads, "leads"},
		{c.ID == v.Pin, "pinned"},
		{slices.Contains(v.Yielded, c.ID), "has yielded"},
		{c.Excluded != "", "out: " + c.Excluded},
		{v.Round != nil && !c.Answered && c.Excluded == "", "silent"},
	} {
		if n.is {
			notes = append(notes, n.text)
		}
	}
	return strings.Join(notes, ", ")
}

// Story says in lines who leads, since when, and what holds.
func (v *ElectionView) Story() []string {
	first := "nobody leads " + v.Name
	switch {
	case v.Held && v.Leader == "":
		first = "a program that does not say its name leads " + v.Name
	case v.Held:
		first = v.Leader + " leads " + v.Name
	}
	if v.Since != nil {
		first += " since " + v.Since.UTC().Format(time.RFC3339)
	}
	lines := []string{first}
	if v.Strategy != "" {
		lines = append(lines, "strategy "+v.Strategy)
	}
	if v.Pin != "" {
		lines = append(lines, v.Pin+" is pinned")
	}
	if v.Round != nil {
		lines = append(lines, fmt.Sprintf("last round %s, opened by %s: %s", v.Round.At.UTC().Format(time.RFC3339), v.Round.OpenedBy, v.Round.Why))
	}
	for _, c := range v.Conditions {
		lines = append(lines, fmt.Sprintf("%s: %s", c.Type, c.Message))
	}
	return lines
}
