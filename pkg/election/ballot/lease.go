package ballot

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Holder is the value of the lease's lock.
type Holder struct {
	ID        string `json:"id,omitempty"`         // of the candidate that took it
	Round     string `json:"round,omitempty"`      // by which it was chosen; of who gave it up: by which its successor was
	Since     *Time  `json:"since,omitempty"`      // when it took it
	Unique    string `json:"stamp,omitempty"`      // another one each time that the lock is taken
	Last      string `json:"last,omitempty"`       // who gave it up
	YieldedTo string `json:"yielded_to,omitempty"` // for whom
}

// Round asks every candidate to answer, and says what operators want.
type Round struct {
	Nonce    string `json:"nonce"`
	OpenedBy string `json:"opened_by"`
	At       Time   `json:"at"`
	Why      string `json:"why"`
	Pin      string `json:"pin,omitempty"`     // candidate that goes before all others
	Without  []Ref  `json:"without,omitempty"` // candidates that go behind all others
}

// Ref names a candidate until it starts anew.
type Ref struct {
	ID      string `json:"id"`
	Created uint64 `json:"created"` // see Candidate
}

// Lease is what stands on the lease: its lock, and the last round.
type Lease struct {
	Holder      Holder
	Session     string // that holds the lock; empty: it is free
	HolderIndex uint64 // at which the lock was last written, taken or freed; zero: there is none
	Round       Round
	RoundIndex  uint64 // at which the round was opened; zero: there is none
	Corrupt     []error
}

// Held reports whether somebody leads.
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

// Open reports whether the last round counts: what was answered in it is about now. first is the nonce that was there already when the
// asking candidate came, whose answers may be of any age.
//   - A free lease needs a round that was opened since it became free, or the one by which its last holder gave it up.
//   - On a lease that is held a round is decided by who took the lock in it.
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

// Pings returns what Elect needs to know about the lease.
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

// Next returns the round after the last one. What operators want stays, except about candidates that have started anew.
func (l *Lease) Next(nonce, by, why string, at Time, candidates []Candidate) Round {
	next := Round{Nonce: nonce, OpenedBy: by, At: at, Why: why, Pin: l.Round.Pin}
	for _, ref := range l.Round.Without {
		if slices.ContainsFunc(candidates, ref.is) {
			next.Without = append(next.Without, ref)
		}
	}
	return next
}

// Put adds a candidate to those that go behind all others.
func (r *Round) Put(behind Candidate) {
	ref := Ref{ID: behind.ID, Created: behind.Created}
	if !slices.Contains(r.Without, ref) {
		r.Without = append(r.Without, ref)
	}
}

// PinTo has a candidate go before all others, none where the id is empty.
func (r *Round) PinTo(id string) {
	r.Pin = id
	r.Without = slices.DeleteFunc(r.Without, func(ref Ref) bool { return ref.ID == id })
}

func (ref Ref) is(c Candidate) bool { return c.ID == ref.ID && c.Created == ref.Created }

// DecodeCandidate returns a record as it stands in the store.
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
