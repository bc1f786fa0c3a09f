// Package local decides about the local services of a node, which belong to no controller (ADR 22). The functions that
// decide only compute. The caller writes each state to the disk before it does anything else with the state.
package local

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Version is the only format of files that this build reads and writes.
const Version = 1

// Service is the desired state of one local service.
type Service struct {
	Version  int             `json:"version"`
	Name     string          `json:"service"`
	Revision int64           `json:"revision,omitempty"` // of the last request that had a revision
	Digest   string          `json:"digest"`             // of the manifest that all replicas will run in the end
	Specs    map[string]Spec `json:"specs"`              // by digest: Digest, and versions that replicas still have
	Replicas []Replica       `json:"replicas"`           // by role and index
	// StoppedAt is since when the service has no replicas; nil while it has some. See Forgotten.
	StoppedAt *time.Time `json:"stopped_at,omitempty"`
}

// Spec is one version of a service.
type Spec struct {
	Manifest  json.RawMessage   `json:"manifest"` // canonical
	Signature string            `json:"signature,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`

	parsed *manifest.Manifest
}

// Parsed returns the decoded manifest.
func (s Spec) Parsed() *manifest.Manifest { return s.parsed }

// NewSpec returns a version and its digest. The caller has validated the manifest.
func NewSpec(m *manifest.Manifest, signature string, labels map[string]string) (spec Spec, digest string, err error) {
	canonical, err := m.Canonical()
	if err != nil {
		return Spec{}, "", err
	}
	return Spec{Manifest: canonical, Signature: signature, Labels: labels, parsed: m}, manifest.Digest(canonical), nil
}

// Replica is one replica of a service.
type Replica struct {
	Role     string         `json:"role"`
	Index    int            `json:"index"`
	Digest   string         `json:"digest"` // of the manifest that it must run now
	Ports    map[string]int `json:"ports,omitempty"`
	Next     map[string]int `json:"next_ports,omitempty"`
	Revision int64          `json:"revision"`
	Stop     bool           `json:"stop,omitempty"`

	wants bool // needs a place, because it is new or gets another version
}

// Seen has what the node has done about one replica.
type Seen struct {
	Revision  int64 // the highest accepted revision
	Stopped   bool  // no process of it runs, and the disk has its tombstone
	Converged bool  // at this revision it is available, or has ended with success
}

// Identity returns the identity of a replica.
func (s *Service) Identity(r *Replica) pod.Identity {
	return pod.Identity{RCID: pod.LocalRC(s.Name), Role: r.Role, Index: r.Index}
}

// Running returns how many replicas must run.
func (s *Service) Running() (n int) {
	for i := range s.Replicas {
		if !s.Replicas[i].Stop {
			n++
		}
	}
	return n
}

// Resting reports whether the service has no replicas, not even some that must still stop. Such a service has no share
// on the node, and its name is free.
func (s *Service) Resting() bool { return len(s.Replicas) == 0 }

func (s *Service) stopped() time.Time {
	if s.StoppedAt == nil {
		return time.Time{}
	}
	return *s.StoppedAt
}

func (s *Service) byRole() map[string]int {
	count := map[string]int{}
	for i := range s.Replicas {
		if r := &s.Replicas[i]; !r.Stop {
			count[r.Role]++
		}
	}
	return count
}

// Intents returns the intents of all replicas.
func (s *Service) Intents() []pod.Intent {
	out, count := make([]pod.Intent, len(s.Replicas)), s.byRole()
	for i := range s.Replicas {
		r := &s.Replicas[i]
		out[i] = pod.Intent{
			Identity: s.Identity(r), PodID: s.Name,
			Digest: r.Digest, Labels: s.Specs[r.Digest].Labels, Ports: r.Ports,
			State: pod.Running, Revision: r.Revision, Replicas: count[r.Role],
		}
		if r.Stop {
			out[i].State = pod.Stopped
		}
	}
	return out
}

// Wants reports whether a replica needs a place.
func (s *Service) Wants() bool {
	return slices.ContainsFunc(s.Replicas, func(r Replica) bool { return r.wants })
}

// Clone returns a copy whose Replicas and Specs can be changed.
func (s *Service) Clone() *Service {
	next := *s
	next.Specs, next.Replicas = maps.Clone(s.Specs), slices.Clone(s.Replicas)
	return &next
}

// tidy sorts the replicas, removes unused versions, and sets StoppedAt.
func (s *Service) tidy(now time.Time) {
	if !s.Resting() {
		s.StoppedAt = nil
	} else if s.StoppedAt == nil {
		s.StoppedAt = new(now.UTC())
	}
	slices.SortFunc(s.Replicas,
		func(a, b Replica) int { return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Index, b.Index)) })
	needed := map[string]bool{s.Digest: true}
	for i := range s.Replicas {
		needed[s.Replicas[i].Digest] = true
	}
	maps.DeleteFunc(s.Specs, func(digest string, _ Spec) bool { return !needed[digest] })
}
