// Package remote connects farms with a scheduler in another process: Handler serves it over HTTP, and Client asks it.
// The messages are JSON. docs/design/placing.md describes them. testdata has examples for other languages.
package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Version is the version of the messages. New fields do not change it.
const Version = 1

// The paths of the methods below a scheduler's URL.
const (
	eligiblePath   = "v1/eligible"
	allocatedPath  = "v1/allocated"
	allocatePath   = "v1/allocate"
	deallocatePath = "v1/deallocate"
)

// The bounds of messages, in bytes and in entries.
const (
	MaxQuestion = 16 << 20
	MaxAnswer   = 4 << 20
	maxEntries  = 100_000
	maxName     = 256
	maxReasons  = 64
	maxReason   = 64
	maxText     = 300 // of a refusal
)

// question is a farm's question. Its fields depend on the method.
type question struct {
	Version     int                    `json:"version"`
	Owner       *scheduler.Owner       `json:"owner,omitempty"`
	Ask         *scheduler.Ask         `json:"ask,omitempty"`
	Nodes       []wireNode             `json:"nodes,omitempty"`    // the nodes that may take pods, by name
	Left        scheduler.Reasons      `json:"excluded,omitempty"` // numbers of the other nodes, by reason
	Pods        []scheduler.Placed     `json:"pods,omitempty"`     // the controller's pods, with their nodes
	Wants       []scheduler.Want       `json:"wants,omitempty"`
	Allocations []scheduler.Allocation `json:"allocations,omitempty"`
}

type wireNode struct {
	Name     string            `json:"name"`
	Address  string            `json:"address,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"` // operators' labels take precedence
	Capacity node.Capacity     `json:"capacity"`
}

type answer struct {
	Version     int                    `json:"version"`
	Nodes       []string               `json:"nodes,omitempty"` // best first
	Refused     scheduler.Reasons      `json:"refused,omitempty"`
	Allocations []scheduler.Allocation `json:"allocations,omitempty"`
}

func questionOf(v *scheduler.View) question {
	nodes, left := v.Eligible()
	ask := v.Ask()
	ask.Manifest = ask.Manifest.WithoutSecrets() // the caller may have left the secrets in
	q := question{
		Version: Version, Ask: &ask, Left: left,
		Nodes: make([]wireNode, len(nodes)), Pods: slices.Collect(v.Pods()),
	}
	for i, n := range nodes {
		q.Nodes[i] = wireNode{Name: n.Name(), Address: n.Address(), Labels: n.Labels(), Capacity: n.Capacity()}
	}
	return q
}

func (q *question) view() *scheduler.View {
	c := scheduler.Cluster{
		Nodes: make(map[string]*node.View, len(q.Nodes)), Left: q.Left,
		Pods: iter.Seq[scheduler.Placed](slices.Values(q.Pods)),
	}
	if q.Ask != nil {
		c.Ask = *q.Ask
	}
	for _, n := range q.Nodes {
		c.Nodes[n.Name] = &node.View{
			Alive: true,
			Node:  node.Node{Name: n.Name, Address: n.Address, Labels: n.Labels, Capacity: n.Capacity},
		}
	}
	return scheduler.NewView(c)
}

func (q *question) check(path string) error {
	switch {
	case q.Version != Version:
		return fmt.Errorf("the question has version %d; allowed: %d", q.Version, Version)
	case q.Ask == nil && (path == eligiblePath || path == allocatePath):
		return errors.New("the question does not say for what it asks: ask is missing")
	case q.Owner == nil && path != eligiblePath:
		return errors.New("the question does not say who asks: owner is missing")
	}
	return nil
}

// parseAnswer refuses the whole answer if a part is wrong, because the other parts may be wrong, too.
func parseAnswer(data []byte) (answer, error) {
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		return answer{}, fmt.Errorf("the answer cannot be read: %w", err)
	}
	switch {
	case a.Version != Version:
		return answer{}, fmt.Errorf("the answer has version %d; allowed: %d", a.Version, Version)
	case len(a.Nodes) > maxEntries || len(a.Allocations) > maxEntries || len(a.Refused) > maxReasons:
		return answer{}, fmt.Errorf("the answer has %d nodes, %d allocations and %d reasons; allowed: %d, %d and %d",
			len(a.Nodes), len(a.Allocations), len(a.Refused), maxEntries, maxEntries, maxReasons)
	}
	named := func(name string) error {
		if name == "" || len(name) > maxName {
			return fmt.Errorf("the answer names a node %q; allowed: 1 to %d bytes", field.Cut(name, maxName), maxName)
		}
		return nil
	}
	for _, name := range a.Nodes {
		if err := named(name); err != nil {
			return answer{}, err
		}
	}
	for i := range a.Allocations {
		if err := named(a.Allocations[i].Node); err != nil {
			return answer{}, err
		}
	}
	for reason, n := range a.Refused {
		if len(reason) > maxReason || n < 0 ||
			strings.ContainsFunc(string(reason), func(r rune) bool { return !unicode.IsPrint(r) }) {
			return answer{}, fmt.Errorf("the answer counts %d nodes for %q; "+
				"allowed: 0 or more, for a reason of at most %d bytes on one line",
				n, field.Cut(string(reason), maxReason), maxReason)
		}
	}
	return a, nil
}
