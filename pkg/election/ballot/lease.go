package ballot

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Holder is the value of the lease's lock.
type Holder struct {
	ID string `json:"id,omitempty"` // of the candidate that took the lock
	// Round is the nonce of the round in which the holder, or the successor of a released lock, was chosen.
	Round     string `json:"round,omitempty"`
	Since     *Time  `json:"since,omitempty"`      // when the holder took the lock
	Unique    string `json:"stamp,omitempty"`      // differs each time that the lock is taken
	Last      string `json:"last,omitempty"`       // the candidate that released the lock
	YieldedTo string `json:"yielded_to,omitempty"` // the candidate for which it was released
}

// Round asks every candidate to answer, and has what operators requested.
type Round struct {
	Nonce    string `json:"nonce"`
	OpenedBy string `json:"opened_by"`
	At       Time   `json:"at"`
	Why      string `json:"why"`
	Pin      string `json:"pin,omitempty"`     // the candidate that comes before all others
	Without  []Ref  `json:"without,omitempty"` // the candidates that come after all others
}

// Ref names a candidate until it restarts.
type Ref struct {
	ID      string `json:"id"`
	Created uint64 `json:"created"` // see Candidate
}

// Lease is the lock, and the last round.
type Lease struct {
	Holder      Holder
	Session     string // the session that holds the lock; empty: none
	HolderIndex uint64 // index at which the lock was last written, taken or released; zero: there is no lock
	Round       Round
	RoundIndex  uint64 // index at which the round was opened; zero: there is no round
	Corrupt     []error
}

// Held reports whether there is a leader.
func (l *Lease) Held() bool { return l.Session != "" }

// DecodeHolder reads the value of the lock.
func (l *Lease) DecodeHolder(value []byte) {
	if err := json.Unmarshal(value, &l.Holder); err != nil {
		l.Holder = Holder{}
		l.Corrupt = append(l.Corrupt, fmt.Errorf("the lease's holder cannot be read: %w", err))
	}
}

// DecodeRound reads the round.
func (l *Lease) DecodeRound(value []byte) {
	if err := json.Unmarshal(value, &l.Round); err != nil {
		l.Round = Round{}
		l.Corrupt = append(l.Corrupt, fmt.Errorf("the lease's round cannot be read: %w", err))
	}
}

// Open reports whether the last round is open, so that the answers to it are current. On a held lease, a round is over
// when a candidate has taken the lock because of it. The round first, which existed when this candidate started, is not
// open on a held lease, because the answers to it may be old. On a free lease, a round is open if it was opened after
// the lease became free, or if the last holder released the lease because of it.
func (l *Lease) Open(first string) bool {
	nonce := l.Round.Nonce
	switch {
	case nonce == "":
		return false
	case l.Held():
		return nonce != first && nonce != l.Holder.Round
	default:
		return l.RoundIndex > l.HolderIndex || l.Holder.YieldedTo != "" && l.Holder.Round == nonce
	}
}

// Pings returns the part of the lease that Elect needs.
func (l *Lease) Pings(lease, first string, over bool) Pings {
	p := Pings{Lease: lease, Held: l.Held(), Over: over, Pin: l.Round.Pin, Without: l.Round.Without}
	if p.Held {
		p.Holder = l.Holder.ID
	}
	if l.Open(first) {
		p.Round = l.Round.Nonce
	}
	return p
}

// Next keeps the requests of operators, except about candidates that have restarted.
func (l *Lease) Next(nonce, by, why string, at Time, candidates []Candidate) Round {
	next := Round{Nonce: nonce, OpenedBy: by, At: at, Why: why, Pin: l.Round.Pin}
	for _, ref := range l.Round.Without {
		if slices.ContainsFunc(candidates, ref.is) {
			next.Without = append(next.Without, ref)
		}
	}
	return next
}

// Put puts a candidate behind all other candidates.
func (r *Round) Put(behind Candidate) {
	ref := Ref{ID: behind.ID, Created: behind.Created}
	if !slices.Contains(r.Without, ref) {
		r.Without = append(r.Without, ref)
	}
}

// PinTo puts a candidate before all others. If the id is empty, none is pinned.
func (r *Round) PinTo(id string) {
	r.Pin = id
	r.Without = slices.DeleteFunc(r.Without, func(ref Ref) bool { return ref.ID == id })
}

func (r Ref) is(c Candidate) bool { return c.ID == r.ID && c.Created == r.Created }

// DecodeCandidate decodes a candidate's record.
func DecodeCandidate(id string, value []byte, created uint64, session string) Candidate {
	c := Candidate{ID: id, Created: created, Session: session}
	var errs field.Errors
	if errs.CheckName("id", id); errs != nil {
		c.Err = errs
	}
	if err := json.Unmarshal(value, &c.Record); err != nil {
		c.Record, c.Err = Record{}, fmt.Errorf("the record cannot be read: %w", err)
	}
	return c
}
