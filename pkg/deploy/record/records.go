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

// Deployed is the record at deployments/<service>/spec: the document in effect, or on its way. By and At say who wrote
// it last, and when: a change of numbers or knobs writes it again.
type Deployed struct {
	ID       string      `json:"id"` // ULID of the service, with which the ids of its controllers begin; one that is made again after its deletion has another
	Service  string      `json:"service"`
	Revision int64       `json:"revision"` // from 1
	RC       string      `json:"rc"`       // id of its controller
	Spec     ServiceSpec `json:"spec"`     // resolved
	By       string      `json:"by"`
	At       time.Time   `json:"at"`
	Rollout  string      `json:"rollout,omitempty"` // id of the one that it was deployed by; empty: none was needed
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

// checkStored reports numbers of a stored document that no document may have, besides the mistakes that are known.
func checkStored(errs field.Errors, revision int64, s *ServiceSpec) error {
	field.CheckRange(&errs, "revision", revision, 1, rc.MaxGeneration)
	errs.Nest("spec", s.validateLimits())
	return errs.Err()
}

// Entry is the record at deployments/<service>/history/<rev>: what was deployed, and what came of it. By and At say who
// made the revision, and when; its document is the one that it had last.
type Entry struct {
	Service  string            `json:"service"`
	Revision int64             `json:"revision"`
	RC       string            `json:"rc"`
	Name     string            `json:"name"` // of the controller
	Manifest string            `json:"manifest"`
	Digests  map[string]string `json:"digests,omitempty"` // of artifacts, by URL
	Spec     ServiceSpec       `json:"spec"`
	By       string            `json:"by"`
	At       time.Time         `json:"at"`
	Ending
}

// Ending is which rollout a revision was deployed by, and what came of it.
type Ending struct {
	Rollout string        `json:"rollout,omitempty"`  // id; empty: none was needed
	EndedAt *time.Time    `json:"ended_at,omitempty"` // nil: it is under way
	Outcome rollout.State `json:"outcome,omitempty"`  // done, failed or aborted
	Reason  string        `json:"reason,omitempty"`
}

// ErrOtherRollout means that an entry is not about a rollout, or has its ending already.
var ErrOtherRollout = errors.New("the entry is of another rollout, or has an outcome")

// Into returns a stored entry with how its rollout ended. All else in it stays as it is, fields of later versions too. It returns
// ErrOtherRollout, or why the entry cannot be read.
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

// Controller is one of a service's revisions as it was read.
type Controller struct {
	RC     rc.RC
	Index  uint64
	Status *rc.Status // nil: its owner has not reported
}

// HasPods reports whether the controller has pods, or may get some.
func (c *Controller) HasPods() bool {
	seen := rollout.Seen{RC: c.RC, Status: c.Status}
	return seen.HasPods()
}

// Service is what is known about a service that is there.
type Service struct {
	Deployed    Deployed
	Index       uint64       // of that record
	Controllers []Controller // its revisions, the oldest first
	Rollout     *rollout.Record
	RolloutAt   uint64  // index of that record
	History     []Entry // the oldest first
}

// Controller returns one of the service's controllers by its id, nil where it has none of that id.
func (s *Service) Controller(id string) *Controller {
	return field.Find(s.Controllers, func(c *Controller) bool { return c.RC.ID == id })
}

// Others returns the controllers besides one, without those that are being deleted.
func (s *Service) Others(id string) []Controller {
	return slices.DeleteFunc(slices.Clone(s.Controllers), func(c Controller) bool { return c.RC.ID == id || c.RC.DeletedAt != nil })
}

// InEffect returns the revision whose pods make the service: the one deployed last or, where its rollout failed, the
// newest that was done before and has pods. While a rollout is under way it is the one that it goes to. After a failed
// rollout the counts are those that the revision's controller asks for: somebody may have scaled the service while the
// rollout was under way.
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
	if !slices.ContainsFunc(s.Others(e.RC), func(o Controller) bool { return o.RC.Desired() > 0 }) { // else it went back half the way
		spec = *spec.WithCounts(s.Controller(e.RC).RC.ReplicaGroups)
	}
	return Deployed{ID: s.Deployed.ID, Service: e.Service, Revision: e.Revision, RC: e.RC, Spec: spec, By: e.By, At: e.At, Rollout: e.Rollout}
}

// LastDone returns the newest entry, besides that of one revision, whose rollout was done or which needed none, and
// whose controller has pods. A rollout that fails goes back to it. Nil where there is none.
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

// Entry returns what a revision was, nil where nothing is known of it.
func (s *Service) Entry(revision int64) *Entry {
	return field.Find(s.History, func(e *Entry) bool { return e.Revision == revision })
}

// KnownDigests returns the digest of each artifact in the newest of the entries that have it, by the artifact's URL.
// The entries may be of several services, in any order.
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

// DigestsOf returns the digests of a manifest's artifacts, by URL.
func DigestsOf(m *manifest.Manifest) map[string]string {
	digests := map[string]string{}
	for i := range m.Launchables {
		if a := m.Launchables[i].Artifact; a.Kind == manifest.ArtifactTar {
			digests[a.URL] = a.SHA256
		}
	}
	return digests
}

// NextRevision returns a number that no revision has had. The id of the revision's controller is made of it.
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

// Draft is all that a plan writes, in one transaction.
type Draft struct {
	Service string
	Seen    *Service // what it was made from, with the indices that are its conditions; nil: there must be no such service
	// Settings is the index of the cluster's settings that the document's host name is of, zero where there were none:
	// they must be the same still. Nil: the document does not depend on them.
	Settings *uint64
	// Manifests are the new ones, in canonical JSON by digest.
	Manifests  map[string][]byte
	Signatures map[string]string // of those, where there are any
	Create     []rc.RC           // new controllers
	Change     []rc.RC           // controllers that are there, each with its next generation where that moves
	Delete     []string
	// Rollout is the record of the rollout; nil: none is needed.
	Rollout  *rollout.Record
	Deployed Deployed
	Entry    Entry
	// Forget are the revisions whose history goes.
	Forget []int64
	Audit  []string // what changes in the document
	Steps  []string // what the rollout begins with
}
