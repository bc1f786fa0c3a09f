package election

import (
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/field"
)

// docs/consul-keys.md describes the keys of an election.
type keys struct{ base string }

// KeyPrefix returns the common prefix of the keys of all elections.
func KeyPrefix(prefix string) string { return prefix + "elections/" }

func keysOf(prefix, lease string) keys { return keys{KeyPrefix(prefix) + lease + "/"} }

func (k keys) candidates() string         { return k.base + "candidates/" }
func (k keys) candidate(id string) string { return k.candidates() + id }
func (k keys) lease() string              { return k.base + "lease/" }
func (k keys) holder() string             { return k.lease() + "holder" }
func (k keys) round() string              { return k.lease() + "round" }

func (k keys) leaseOf(pairs []consul.Pair) ballot.Lease {
	var l ballot.Lease
	for _, p := range pairs {
		switch p.Key {
		case k.holder():
			l.Session, l.HolderIndex = p.Session, p.ModifyIndex
			l.DecodeHolder(p.Value)
		case k.round():
			l.RoundIndex = p.ModifyIndex
			l.DecodeRound(p.Value)
		}
	}
	return l
}

type record struct {
	ballot.Candidate
	index uint64
}

// If there are no records, recordsOf returns an empty list, not nil.
func (k keys) recordsOf(pairs []consul.Pair) []record {
	found := []record{}
	for _, p := range pairs {
		if id, below := strings.CutPrefix(p.Key, k.candidates()); below {
			found = append(found, record{ballot.DecodeCandidate(id, p.Value, p.CreateIndex, p.Session), p.ModifyIndex})
		}
	}
	return found
}

func candidatesOf(records []record) []ballot.Candidate {
	return field.Each(records, func(r record) ballot.Candidate { return r.Candidate })
}
