// Package local decides about the services that a node runs for itself, which no controller has, and keeps what they shall be on the disk (ADR 22).
// A request becomes the next state of a service (Take); what the node has done since becomes the one after it (Next); both have a claim on the node
// in its reservation (Book), and become intents (Intents). All of these are pure. Disk writes a state before anything follows from it.
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

// Service is what one local service shall be.
type Service struct {
	Version  int             `json:"version"`
	Name     string          `json:"service"`
	Revision int64           `json:"revision,omitempty"` // of the last request that bore one
	Digest   string          `json:"digest"`             // of the manifest that all replicas are to run in the end
	Specs    map[string]Spec `json:"specs"`              // by digest: that one, and those that replicas run still
	Replicas []Replica       `json:"replicas"`           // by role and index
	// StoppedAt is since when there are no replicas; nil while there are. What the service was is remembered, see Forgotten.
	StoppedAt *time.Time `json:"stopped_at,omitempty"`
}

// Spec is one version of a service.
type Spec struct {
	Manifest  json.RawMessage   `json:"manifest"` // canonical
	Signature string            `json:"signature,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`

	parsed *manifest.Manifest
}

// Parsed returns the manifest, which was decoded when the file was read.
func (s Spec) Parsed() *manifest.Manifest { return s.parsed }

// NewSpec returns a version with its digest. The manifest is valid.
func NewSpec(m *manifest.Manifest, signature string, labels map[string]string) (spec Spec, digest string, err error) {
	canonical, err := m.Canonical()
	if err != nil {
		return Spec{}, "", err
	}
	return Spec{Manifest: canonical, Signature: signature, Labels: labels, parsed: m}, manifest.Digest(canonical), nil
}

// Replica is one of a service's replicas.
type Replica struct {
	Role     string         `json:"role"`
	Index    int            `json:"index"`
	Digest   string         `json:"digest"` // of the manifest that it is told to run now
	Ports    map[string]int `json:"ports,omitempty"`
	Next     map[string]int `json:"next_ports,omitempty"` // while the service's digest is another one: the ports that go with that
	Revision int64          `json:"revision"`
	Stop     bool           `json:"stop,omitempty"`

	wants bool // room is to be found for it: it is new, or is to run another version
}

// Seen is what the node has done about one replica.
type Seen struct {
	Revision  int64 // highest that was accepted
	Stopped   bool  // nothing of it runs, which is on the disk
	Converged bool  // at that revision it is available, or has ended well for good
}

// Identity returns the identity of one of the service's replicas.
func (s *Service) Identity(r *Replica) pod.Identity {
	return pod.Identity{RCID: pod.LocalRC(s.Name), Role: r.Role, Index: r.Index}
}

// Running is how many replicas shall run.
func (s *Service) Running() (n int) {
	for i := range s.Replicas {
		if !s.Replicas[i].Stop {
			n++
		}
	}
	return n
}

// Resting reports whether the service has no replicas, and none that is still to stop: it has no name and no room here, and is only remembered.
func (s *Service) Resting() bool { return len(s.Replicas) == 0 }

// stopped is since when the service has no replicas.
func (s *Service) stopped() time.Time {
	if s.StoppedAt == nil {
		return time.Time{}
	}
	return *s.StoppedAt
}

// byRole returns how many replicas of each role shall run.
func (s *Service) byRole() map[string]int {
	count := map[string]int{}
	for i := range s.Replicas {
		if r := &s.Replicas[i]; !r.Stop {
			count[r.Role]++
		}
	}
	return count
}

// Intents returns what the node shall do about each replica.
func (s *Service) Intents() []pod.Intent {
	out, count := make([]pod.Intent, len(s.Replicas)), s.byRole()
	for i := range s.Replicas {
		r := &s.Replicas[i]
		out[i] = pod.Intent{
			Identity: s.Identity(r), PodID: s.Name, Digest: r.Digest, Labels: s.Specs[r.Digest].Labels, Ports: r.Ports, State: pod.Running, Revision: r.Revision,
			Replicas: count[r.Role],
		}
		if r.Stop {
			out[i].State = pod.Stopped
		}
	}
	return out
}

// Wants reports whether room is to be found for some replica.
func (s *Service) Wants() bool {
	return slices.ContainsFunc(s.Replicas, func(r Replica) bool { return r.wants })
}

// Clone returns a copy of which the replicas and the set of versions can be changed.
func (s *Service) Clone() *Service {
	next := *s
	next.Specs, next.Replicas = maps.Clone(s.Specs), slices.Clone(s.Replicas)
	return &next
}

// tidy puts the replicas in order, drops versions that nothing needs, and notes since when there are no replicas.
func (s *Service) tidy(now time.Time) {
	if !s.Resting() {
		s.StoppedAt = nil
	} else if s.StoppedAt == nil {
		s.StoppedAt = new(now.UTC())
	}
	slices.SortFunc(s.Replicas, func(a, b Replica) int { return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Index, b.Index)) })
	needed := map[string]bool{s.Digest: true}
	for i := range s.Replicas {
		needed[s.Replicas[i].Digest] = true
	}
	maps.DeleteFunc(s.Specs, func(digest string, _ Spec) bool { return !needed[digest] })
}
