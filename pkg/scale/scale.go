// Package scale has the messages by which programs ask a node to run replicas of a service; see
// docs/design/scale-requests.md.
package scale

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Path is where a node's API takes requests, by POST.
const Path = "/v1/internal/scale"

// DefaultGroup is the role of replicas without assignments. The node runs them in the role that controllers without
// groups have.
const DefaultGroup = "default"

// Request has a node's share of one service. With assignments, the node runs exactly these indices, and Replicas is
// only information. Without assignments, it runs the indices 0 to Replicas-1.
type Request struct {
	Service     string            `json:"service"`
	Replicas    uint32            `json:"replicas"`
	Assignments []ScaleAssignment `json:"assignments,omitempty"`
	// Spec is nil if the node knows the service. With an epoch it is ignored, because the node reads it from Consul.
	Spec  *Spec  `json:"spec,omitempty"`
	Epoch *Epoch `json:"epoch,omitempty"` // nil: a local service, which no farm knows
	// Revision orders the requests of one term. Without an epoch, zero means no order. With an epoch it is the Consul
	// index of the write that the request is about or, if unknown, the lowest number above the index of the owner's
	// lock.
	Revision int64 `json:"revision,omitempty"`
}

// ScaleAssignment has the replicas of one role.
type ScaleAssignment struct { //nolint:revive // its name in programs in other languages
	Role    string   `json:"role"`
	Indices []uint32 `json:"indices"`
}

// MarshalJSON never writes null, because not every language accepts it.
func (s ScaleAssignment) MarshalJSON() ([]byte, error) {
	type plain ScaleAssignment
	if s.Indices == nil {
		s.Indices = []uint32{}
	}
	return json.Marshal(plain(s))
}

// Spec has what a node needs to run a service that it does not know.
type Spec struct {
	Manifest json.RawMessage `json:"manifest"` // as pkg/manifest reads it
	// armored, of the manifest's canonical form; the node's trust policy asks for it
	Signature string            `json:"signature,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"` // of the pods, in addition to the manifest's labels
}

// Epoch has the cluster and the owner for which a farm asks. A request with an epoch stops no replica that it leaves
// out.
type Epoch struct {
	Cluster string `json:"nonce"` // of the cluster, as in the record schema
	RCID    string `json:"rc_id"`
	Term    string `json:"term"` // of the controller's owner, as Term writes it: later terms sort after earlier ones
}

// Term makes a term from the epoch of the cluster and the index of the owner's lock.
func Term(cluster string, lockIndex uint64) string {
	return fmt.Sprintf("%s/%020d", cluster, lockIndex)
}

// Response is the result.
type Response struct {
	Success  bool   `json:"success"`
	Service  string `json:"service"`
	Replicas uint32 `json:"replicas"` // how many the node is to run now; meaningless without success
	Message  string `json:"message,omitempty"`
}

// New returns a request without assignments.
func New(service string, replicas uint32) Request {
	return Request{Service: service, Replicas: replicas}
}

// NewWithAssignments sets Replicas to the number of indices.
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

// Clone returns a copy that shares nothing.
func (r Request) Clone() Request { return field.Copy(r) }

// Assigned returns what the node must run. Validate refuses a number above MaxReplicas.
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

// Decode reads one request and validates it. It ignores unknown fields, even if a name differs from a known name only
// in case. It refuses repeated fields, null numbers, and a body that is cut off, too long, or followed by anything.
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

// The node's API has a status for each of these results, and 500 for any other error.
var (
	// ErrInvalid: a field of the request, or of its manifest, is wrong (400).
	ErrInvalid = errors.New("the request is not valid")
	// ErrUnknownService: the node does not know the service, and there is no spec (404).
	ErrUnknownService = errors.New("unknown service")
	// ErrConflict: the request is old, its name is taken, or the node has no capacity (409).
	ErrConflict = errors.New("refused")
	// ErrUnavailable: the node cannot answer now (503).
	ErrUnavailable = errors.New("not now")
)

// The bounds of a request.
const (
	MaxBytes = 1 << 20 // of the JSON
	// MaxService leaves space for "local-" before the name.
	MaxService  = 57
	MaxReplicas = 1000  // of one service on one node
	MaxIndex    = 9_999 // as of a controller's replicas
	maxText     = 256   // bytes of each text in the epoch
)

// Validate does not check the manifest; the node does.
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
		for _, text := range []struct{ name, value string }{
			{"epoch.nonce", e.Cluster},
			{"epoch.rc_id", e.RCID},
			{"epoch.term", e.Term},
		} {
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
