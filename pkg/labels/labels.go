// Package labels finds pods and nodes by their labels, and changes the labels of a pod, a node or a controller. A
// LabelMatcher reads the records that there are: placements, which bear the labels of pods, and what preparers and
// operators say about nodes. An Applicator writes what operators may write: it asks the owner of a pod for the pod's
// own labels. Nothing is remembered.
package labels

import (
	"context"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Labeled is something with labels: a pod on the node where it is placed, or a node.
type Labeled struct {
	ID     string         // of a pod that of its identity, pod.Identity.String(); of a node its name
	Labels labels.Set     // those that every pod has included; of a node with the operators' on top
	Node   string         // where the pod is placed, or the node itself
	Pod    *pod.Placement // nil: it is a node
}

// LabelMatcher finds what a selector selects.
type LabelMatcher interface {
	// GetMatches returns all that the selector selects, by ID. Where a record cannot be read, it returns the others and an
	// error that has a *store.CorruptError for each such record; whoever counts on all should look at it.
	GetMatches(ctx context.Context, selector labels.Selector) ([]Labeled, error)
}

// Labeler has a matcher for each kind of thing with labels.
type Labeler interface {
	// Pods finds pods that are placed, those that stop included. For a selector that fixes replication_controller_id it reads the placements
	// of that controller and no others, as Consul's leader has them; for any other it reads all.
	Pods() LabelMatcher
	// Nodes finds nodes, whether their preparers live or not.
	Nodes() LabelMatcher
}

// Lister reads records of one kind; *store.Records is one.
type Lister[T any] interface {
	List(ctx context.Context, level store.Level, below ...string) ([]store.Rec[T], []error, error)
}

// Records is what there is to find.
type Records struct {
	Placements Lister[pod.Placement]
	Nodes      Lister[node.Node]
	NodeOps    Lister[node.Ops]
}

// New returns what finds the records of a store by their labels.
func New(s *store.Store) Labeler {
	return Of(Records{Placements: &s.Pods, Nodes: &s.Nodes, NodeOps: &s.NodeOps})
}

// Of returns what finds records by their labels.
func Of(records Records) Labeler { return labeler{records} }

type labeler struct{ records Records }

// Pods implements Labeler.
func (l labeler) Pods() LabelMatcher { return pods(l) }

// Nodes implements Labeler.
func (l labeler) Nodes() LabelMatcher { return nodes(l) }

type pods struct{ records Records }

// GetMatches implements LabelMatcher.
func (p pods) GetMatches(ctx context.Context, selector labels.Selector) ([]Labeled, error) {
	if _, selectable := selector.Requirements(); !selectable {
		return nil, nil
	}
	var found []store.Rec[pod.Placement]
	var corrupt []error
	var err error
	if rcID := FixedRC(selector); rcID != "" {
		found, corrupt, err = p.records.Placements.List(ctx, store.Consistent, rcID)
	} else {
		found, corrupt, err = p.records.Placements.List(ctx, store.Default)
	}
	if err != nil {
		return nil, err
	}
	var matches []Labeled
	for i := range found {
		placed := &found[i].Value
		if set := OfPod(placed.RCID, placed.PodID, placed.Labels); selector.Matches(set) {
			matches = append(matches, Labeled{ID: placed.Identity.String(), Labels: set, Node: placed.Node, Pod: placed})
		}
	}
	return sorted(matches), errors.Join(corrupt...)
}

type nodes struct{ records Records }

// GetMatches implements LabelMatcher.
func (n nodes) GetMatches(ctx context.Context, selector labels.Selector) ([]Labeled, error) {
	found, corrupt, err := n.records.Nodes.List(ctx, store.Default)
	if err != nil {
		return nil, err
	}
	said, bad, err := n.records.NodeOps.List(ctx, store.Default)
	if err != nil {
		return nil, err
	}
	ops := make(map[string]node.Ops, len(said))
	for i := range said {
		ops[said[i].Value.Name] = said[i].Value
	}
	var matches []Labeled
	for i := range found {
		v := node.View{Node: found[i].Value, Ops: ops[found[i].Value.Name]}
		if v.Matches(selector) {
			matches = append(matches, Labeled{ID: v.Name, Labels: v.AllLabels(), Node: v.Name})
		}
	}
	return sorted(matches), errors.Join(append(corrupt, bad...)...)
}

func sorted(matches []Labeled) []Labeled {
	slices.SortFunc(matches, func(a, b Labeled) int { return strings.Compare(a.ID, b.ID) })
	return matches
}

// OfPod returns what selectors look at: the labels that the farm gave a pod, and those that every pod has.
func OfPod(rcID, podID string, given map[string]string) labels.Set {
	set := field.Merge(given, map[string]string{pod.RCIDLabel: rcID})
	if podID != "" {
		set[pod.PodIDLabel] = podID
	}
	return set
}

// FixedRC returns the id of the only controller whose pods a selector can select, "" where it leaves that open.
func FixedRC(sel labels.Selector) string {
	requirements, selectable := sel.Requirements()
	if !selectable {
		return ""
	}
	for _, r := range requirements {
		fixes := r.Operator() == selection.Equals || r.Operator() == selection.DoubleEquals || r.Operator() == selection.In
		if values := r.ValuesUnsorted(); r.Key() == pod.RCIDLabel && fixes && len(values) == 1 {
			return values[0]
		}
	}
	return ""
}
