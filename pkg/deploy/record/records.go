package record

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Deployed is the record at deployments/<service>/spec: the document in effect, or the one that a rollout under way
// brings into effect. By and At are of the last write, also of counts or knobs.
type Deployed struct {
	// ULID of the service. The ids of its controllers begin with it. A service that is deleted and created again gets
	// another id.
	ID       string      `json:"id"`
	Service  string      `json:"service"`
	Revision int64       `json:"revision"` // from 1
	RC       string      `json:"rc"`       // id of its controller
	Spec     ServiceSpec `json:"spec"`     // resolved
	By       string      `json:"by"`
	At       time.Time   `json:"at"`
	Rollout  string      `json:"rollout,omitempty"` // id of the rollout that deployed it; empty: none was needed
}

// Check reports why a stored record cannot be acted on.
func (d *Deployed) Check() error {
	switch {
	case d.Service == "":
		return errors.New("the record names no service")
	case d.Revision < 1 || d.RC == "":
		return errors.New("the record names no revision, or no controller of it")
	case d.Spec.Pod == nil || len(d.Spec.Groups()) == 0 && d.Spec.Mode != rc.EachNode:
		return errors.New("the record has no document")
	}
	var errs field.Errors
	if !field.IsULID(d.ID) { // the ids of the service's controllers begin with it
		errs.Add("id", d.ID, "the id of the service, a ULID in lower case")
	}
	return checkStored(errs, d.Revision, &d.Spec)
}

func checkStored(errs field.Errors, revision int64, s *ServiceSpec) error {
	field.CheckRange(&errs, "revision", revision, 1, rc.MaxGeneration)
	errs.Nest("spec", s.validateLimits())
	return errs.Err()
}

// Entry is the record at deployments/<service>/history/<rev>: a revision and its outcome. Spec is the revision's last
// document.
type Entry struct {
	Service  string            `json:"service"`
	Revision int64             `json:"revision"`
	RC       string            `json:"rc"`
	Name     string            `json:"name"` // of the controller
	Manifest string            `json:"manifest"`
	Digests  map[string]string `json:"digests,omitempty"` // of artifacts, by Artifact.Source
	Spec     ServiceSpec       `json:"spec"`
	By       string            `json:"by"`
	At       time.Time         `json:"at"`
	Ending
}

// Ending is how a revision was deployed.
type Ending struct {
	Rollout string        `json:"rollout,omitempty"`  // id; empty: none was needed
	EndedAt *time.Time    `json:"ended_at,omitempty"` // nil: it is under way
	Outcome rollout.State `json:"outcome,omitempty"`  // done, failed or aborted
	Reason  string        `json:"reason,omitempty"`
}

// ErrOtherRollout means that an entry is of another rollout, or has an outcome already.
var ErrOtherRollout = errors.New("the entry is of another rollout, or has an outcome")

// Into returns a stored entry with the ending. It keeps all other fields, also those that only later versions know. The
// error is ErrOtherRollout, or why the entry cannot be read.
func (e Ending) Into(entry []byte) ([]byte, error) {
	var before Ending
	if err := json.Unmarshal(entry, &before); err != nil {
		return nil, err
	}
	if before.Rollout != e.Rollout || before.EndedAt != nil {
		return nil, ErrOtherRollout
	}
	text, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	all := map[string]json.RawMessage{}
	if err := errors.Join(json.Unmarshal(entry, &all), json.Unmarshal(text, &all)); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// Check reports why a stored record cannot be acted on.
func (e *Entry) Check() error {
	if e.Service == "" || e.Revision < 1 || e.Spec.Pod == nil {
		return errors.New("the record names no service, no revision, or has no document")
	}
	return checkStored(nil, e.Revision, &e.Spec)
}

// Controller is one of a service's controllers, as it was read.
type Controller struct {
	RC     rc.RC
	Index  uint64
	Status *rc.Status // nil: its owner has not reported
}

// HasPods reports whether the controller has pods or may get pods.
func (c *Controller) HasPods() bool {
	seen := rollout.Seen{RC: c.RC, Status: c.Status}
	return seen.HasPods()
}

// Service is an existing service with all its records.
type Service struct {
	Deployed    Deployed
	Index       uint64       // of that record
	Controllers []Controller // its revisions, the oldest first
	Rollout     *rollout.Record
	RolloutAt   uint64  // index of that record
	History     []Entry // the oldest first
}

// Controller returns nil for an unknown id.
func (s *Service) Controller(id string) *Controller {
	return field.Find(s.Controllers, func(c *Controller) bool { return c.RC.ID == id })
}

// Others returns the controllers except this one, and except those that are being deleted.
func (s *Service) Others(id string) []Controller {
	return slices.DeleteFunc(slices.Clone(s.Controllers), func(c Controller) bool {
		return c.RC.ID == id || c.RC.DeletedAt != nil
	})
}

// InEffect returns the revision whose pods make up the service: the last deployed one, also while its rollout is under
// way. If that rollout failed, it is the newest earlier revision with the outcome done and with pods. The counts then
// come from its controller, because somebody may have scaled the service during the rollout.
func (s *Service) InEffect() Deployed {
	last := s.Entry(s.Deployed.Revision)
	if s.Rollout != nil || last == nil || last.Outcome != rollout.Failed {
		return s.Deployed
	}
	e := s.LastDone(s.Deployed.Revision)
	if e == nil {
		return s.Deployed
	}
	spec := e.Spec
	if !slices.ContainsFunc(s.Others(e.RC), func(o Controller) bool { return o.RC.Desired() > 0 }) {
		spec = *spec.WithCounts(s.Controller(e.RC).RC.ReplicaGroups)
	}
	return Deployed{
		ID: s.Deployed.ID, Service: e.Service, Revision: e.Revision, RC: e.RC, Spec: spec, By: e.By,
		At: e.At, Rollout: e.Rollout,
	}
}

// LastDone returns the entry to which a failed rollout goes back, nil for none: the newest one with the outcome done,
// or without a rollout, whose controller has pods. It skips the revision besides.
func (s *Service) LastDone(besides int64) *Entry {
	for i := range slices.Backward(s.History) {
		e := &s.History[i]
		if e.Revision == besides || e.Outcome != rollout.Done && e.Rollout != "" {
			continue
		}
		if c := s.Controller(e.RC); c != nil && c.HasPods() {
			return e
		}
	}
	return nil
}

// Entry returns the history entry of a revision, nil for none.
func (s *Service) Entry(revision int64) *Entry {
	return field.Find(s.History, func(e *Entry) bool { return e.Revision == revision })
}

// KnownDigests returns the newest digest of each artifact, by its source. The entries may be of several services, in
// any order.
func KnownDigests(entries []Entry) map[string]string {
	oldestFirst := slices.SortedFunc(slices.Values(entries), func(a, b Entry) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Revision, b.Revision))
	})
	known := map[string]string{}
	for i := range oldestFirst {
		for artifact, digest := range oldestFirst[i].Digests {
			if digest != "" {
				known[artifact] = digest
			}
		}
	}
	return known
}

// DigestsOf returns the digests of a manifest's artifacts, by their source.
func DigestsOf(m *manifest.Manifest) map[string]string {
	digests := map[string]string{}
	for i := range m.Launchables {
		a := &m.Launchables[i].Artifact
		if source := a.Source(); source != "" {
			digests[source] = a.Digest()
		}
	}
	return digests
}

// NextRevision returns a number that no revision has had, because the id of a controller has it.
func (s *Service) NextRevision() int64 {
	last := s.Deployed.Revision
	for i := range s.History {
		last = max(last, s.History[i].Revision)
	}
	for i := range s.Controllers {
		if of := s.Controllers[i].RC.Service; of != nil {
			last = max(last, of.Revision)
		}
	}
	return last + 1
}

// Draft is what a plan writes, in one transaction.
type Draft struct {
	Service string
	// Seen is the service that the draft was made from. Its records must have the same indices. nil: there must be no
	// such service.
	Seen *Service
	// Settings is the index that the cluster's settings (with the domain) must still have, zero for none. nil: the
	// document does not depend on them.
	Settings *uint64
	// Manifests are the new manifests in canonical JSON, by digest.
	Manifests  map[string][]byte
	Signatures map[string]string // of the manifests that have one
	Create     []rc.RC           // new controllers
	Change     []rc.RC           // existing controllers, with the next generation if it changes
	Delete     []string
	// Rollout is nil if none is needed.
	Rollout  *rollout.Record
	Deployed Deployed
	Entry    Entry
	Forget   []int64  // revisions whose history entries are removed
	Audit    []string // changes of the document
	Steps    []string // first steps of the rollout
}
