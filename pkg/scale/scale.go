// Package scale is the wire between whoever says how many replicas of a service a node runs, and the node: one JSON document that
// hands the node its share, and one that says what became of it. The node's API takes requests at Path; docs/adr/0022-scale.md says what a node
// does with them. Farms, rcctl and other programs make requests; preparers answer them.
package scale

import (
	"bytes"
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
	Spec        *Spec             `json:"spec,omitempty"`  // nil: the one that the node has of the service
	Epoch       *Epoch            `json:"epoch,omitempty"` // nil: a service of this node alone, which no farm knows
	// Revision orders the requests of one term, and those without an epoch where it is not zero.
	Revision int64 `json:"revision,omitempty"`
}

// ScaleAssignment says which replicas of one role a node runs.
type ScaleAssignment struct { //nolint:revive // its name on the wire's other ends, which are written in several languages
	Role    string   `json:"role"`
	Indices []uint32 `json:"indices"`
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
	Term    string `json:"term"` // of the controller's owner: later terms sort after earlier ones
}

// Response says what became of a request.
type Response struct {
	Success  bool   `json:"success"`
	Service  string `json:"service"`
	Replicas uint32 `json:"replicas"` // that the node is to run now
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

// Decode reads one request and validates it. Fields that it does not know are ignored; a body that is cut off, too long, or followed by
// anything is an error.
func Decode(body io.Reader) (Request, error) {
	data, err := io.ReadAll(io.LimitReader(body, MaxBytes+1))
	switch {
	case err != nil:
		return Request{}, fmt.Errorf("read the request: %w", err)
	case len(data) > MaxBytes:
		return Request{}, fmt.Errorf("the request is longer than %d bytes", MaxBytes)
	}
	var r Request
	switch err := decodeOne(data, &r); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Request{}, errors.New("the request is cut off")
	case err != nil:
		return Request{}, fmt.Errorf("the request is not what it should be: %w", err)
	}
	return r, r.Validate()
}

// decodeOne reads one document, and nothing after it.
func decodeOne(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	return nil
}
