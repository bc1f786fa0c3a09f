// Package scale is the wire between whoever says how many replicas of a service a node runs, and the node: one JSON document that
// hands the node its share, and one that says what became of it. The node's API takes requests at Path; docs/adr/0022-scale.md says what a node
// does with them. Farms, rcctl and other programs make requests; preparers answer them.
package scale

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Path is where a node's API takes requests, with POST.
const Path = "/v1/internal/scale"

// DefaultGroup is the role of the replicas of a request without assignments. Only the wire knows the name: a node runs them in the
// role that controllers without groups have.
const DefaultGroup = "default"

// Request hands a node its share of one service. With assignments the node runs exactly these indices, and Replicas informs: a sum that
// differs is accepted. Without, it runs indices 0 to Replicas-1 of one group.
type Request struct {
	Service     string            `json:"service"`
	Replicas    uint32            `json:"replicas"`
	Assignments []ScaleAssignment `json:"assignments,omitempty"`
	Spec        *Spec             `json:"spec,omitempty"`  // nil: the one that the node has of the service. With an epoch it is ignored: the node has it from Consul
	Epoch       *Epoch            `json:"epoch,omitempty"` // nil: a service of this node alone, which no farm knows
	// Revision orders the requests of one term, and those without an epoch where it is not zero. With an epoch it is the index of Consul's at
	// which what the request is about was written.
	Revision int64 `json:"revision,omitempty"`
}

// ScaleAssignment says which replicas of one role a node runs.
type ScaleAssignment struct { //nolint:revive // its name on the wire's other ends, which are written in several languages
	Role    string   `json:"role"`
	Indices []uint32 `json:"indices"`
}

// MarshalJSON writes no indices as an empty list: other languages have no null in its place.
func (a ScaleAssignment) MarshalJSON() ([]byte, error) {
	type plain ScaleAssignment
	if a.Indices == nil {
		a.Indices = []uint32{}
	}
	return json.Marshal(plain(a))
}

// Spec is what a node needs to run a service that it has never seen.
type Spec struct {
	Manifest  json.RawMessage   `json:"manifest"`            // as pkg/manifest reads it
	Signature string            `json:"signature,omitempty"` // of the manifest's canonical form, armored; the node's trust policy asks for it
	Labels    map[string]string `json:"labels,omitempty"`    // of the pods, besides those of the manifest
}

// Epoch says in whose name a farm speaks. A request that bears one starts and upgrades what the cluster's records say, and stops nothing
// by leaving it out.
type Epoch struct {
	Cluster string `json:"nonce"` // of the cluster, as in the record schema
	RCID    string `json:"rc_id"`
	Term    string `json:"term"` // of the controller's owner, as Term writes it: later terms sort after earlier ones
}

// Term is that of a controller's owner, whose lock has an index, under an epoch of the cluster.
func Term(cluster string, lockIndex uint64) string {
	return fmt.Sprintf("%s/%020d", cluster, lockIndex)
}

// Response says what became of a request.
type Response struct {
	Success  bool   `json:"success"`
	Service  string `json:"service"`
	Replicas uint32 `json:"replicas"` // that the node is to run now; without success it says nothing
	Message  string `json:"message,omitempty"`
}

// New asks for so many replicas of a service.
func New(service string, replicas uint32) Request {
	return Request{Service: service, Replicas: replicas}
}

// NewWithAssignments asks for given replicas of a service. Replicas is their number.
func NewWithAssignments(service string, assignments []ScaleAssignment) Request {
	r := Request{Service: service, Assignments: assignments}
	for _, a := range assignments {
		r.Replicas += uint32(len(a.Indices))
	}
	return r
}

// WithSpec returns the request with a spec.
func (r Request) WithSpec(spec Spec) Request {
	r.Spec = &spec
	return r
}

// Clone returns a copy that shares nothing with the request.
func (r Request) Clone() Request { return field.Copy(r) }

// Assigned returns what the node is to run: the assignments, or those that a bare number of replicas means. A number beyond MaxReplicas is
// for Validate to refuse.
func (r Request) Assigned() []ScaleAssignment {
	if len(r.Assignments) > 0 {
		return r.Assignments
	}
	if r.Replicas == 0 {
		return nil
	}
	group := ScaleAssignment{Role: DefaultGroup, Indices: make([]uint32, min(r.Replicas, MaxReplicas))}
	for i := range group.Indices {
		group.Indices[i] = uint32(i)
	}
	return []ScaleAssignment{group}
}

// Decode reads one request and validates it. Fields that it does not know are ignored, also those whose names differ from its own in case; a field that
// occurs twice, a number that is null, and a body that is cut off, too long, or followed by anything are errors.
func Decode(body io.Reader) (Request, error) {
	data, err := io.ReadAll(io.LimitReader(body, MaxBytes+1))
	switch {
	case err != nil:
		return Request{}, fmt.Errorf("read the request: %w", err)
	case len(data) > MaxBytes:
		return Request{}, fmt.Errorf("the request is longer than %d bytes", MaxBytes)
	}
	var r Request
	switch err := field.DecodeKnown(data, &r); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Request{}, errors.New("the request is cut off")
	case err != nil:
		return Request{}, fmt.Errorf("the request is not what it should be: %w", err)
	}
	return r, r.Validate()
}

// What may become of a request; the node's API has a status for each, and 500 for what is none of them.
var (
	// ErrInvalid: a field of the request, or of its manifest, is wrong (400).
	ErrInvalid = errors.New("the request is not valid")
	// ErrUnknownService: the node does not know the service, and the request has no spec (404).
	ErrUnknownService = errors.New("unknown service")
	// ErrConflict: the request is older than the last one, its name is taken, or the node has no room (409).
	ErrConflict = errors.New("refused")
	// ErrUnavailable: the node cannot say now (503).
	ErrUnavailable = errors.New("not now")
)

// The bounds of a request.
const (
	MaxBytes    = 1 << 20 // of the JSON
	MaxService  = 57      // letters of a service's name: with "local-" it is the name of what the node has in place of a controller
	MaxReplicas = 1000    // of one service on one node
	MaxIndex    = 9_999   // as of a controller's replicas
	maxText     = 256     // bytes of what names the epoch
)

// Validate returns what is wrong with the request, field by field. What the manifest says is for the node to judge.
func (r Request) Validate() error {
	var errs field.Errors
	if r.Epoch == nil {
		errs.CheckShortName("service", r.Service, MaxService)
	} else {
		errs.CheckName("service", r.Service)
	}
	if len(r.Assignments) == 0 && r.Replicas > MaxReplicas {
		errs.Add("replicas", r.Replicas, fmt.Sprintf("0 to %d", MaxReplicas))
	}
	r.checkAssignments(&errs)
	if r.Spec != nil && (len(r.Spec.Manifest) == 0 || r.Spec.Manifest[0] != '{') {
		errs.Add("spec.manifest", nil, "a manifest")
	}
	if e := r.Epoch; e != nil {
		for _, text := range []struct{ name, value string }{{"epoch.nonce", e.Cluster}, {"epoch.rc_id", e.RCID}, {"epoch.term", e.Term}} {
			if text.value == "" || len(text.value) > maxText {
				errs.Add(text.name, field.Cut(text.value, maxText), fmt.Sprintf("1 to %d bytes", maxText))
			}
		}
		if r.Revision < 1 {
			errs.Add("revision", r.Revision, "1 or more, with an epoch")
		}
	}
	if r.Revision < 0 {
		errs.Add("revision", r.Revision, "0 (none) or more")
	}
	return errs.Err()
}

func (r Request) checkAssignments(errs *field.Errors) {
	roles, total := map[string]bool{}, 0
	for i, a := range r.Assignments {
		path := fmt.Sprintf("assignments[%d]", i)
		errs.CheckName(path+".role", a.Role)
		if roles[a.Role] {
			errs.Add(path+".role", a.Role, "a role that no other assignment has")
		}
		roles[a.Role] = true
		seen := map[uint32]bool{}
		for j, index := range a.Indices {
			at := fmt.Sprintf("%s.indices[%d]", path, j)
			switch {
			case index > MaxIndex:
				errs.Add(at, index, fmt.Sprintf("0 to %d", MaxIndex))
			case seen[index]:
				errs.Add(at, index, "an index that this role does not have yet")
			}
			seen[index] = true
		}
		total += len(a.Indices)
	}
	if total > MaxReplicas {
		errs.Add("assignments", total, fmt.Sprintf("0 to %d indices in all", MaxReplicas))
	}
}
