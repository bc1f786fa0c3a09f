// Package labels finds pods and nodes by their labels, and changes the labels of a pod, a node or a controller. It
// caches nothing. For a pod's own labels, it writes a request to the pod's owner.
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

// Labeled is a pod on the node where it is placed, or a node.
type Labeled struct {
	ID     string         // a pod's identity, as text of pod.Identity.String(); a node's name
	Labels labels.Set     // of a pod: with the labels that every pod has; of a node: operators' labels take precedence
	Node   string         // the node where the pod is placed, or the node itself
	Pod    *pod.Placement // nil: it is a node
}

// LabelMatcher finds the pods or the nodes that a selector selects.
type LabelMatcher interface {
	// GetMatches returns the matches, sorted by ID. If some records cannot be read, it also returns a
	// *store.CorruptError for each.
	GetMatches(ctx context.Context, selector labels.Selector) ([]Labeled, error)
}

// Labeler has a matcher for pods and a matcher for nodes.
type Labeler interface {
	// Pods finds placed pods, also those that stop. If the selector fixes replication_controller_id, it reads only the
	// placements of that controller, from Consul's leader.
	Pods() LabelMatcher
	// Nodes finds nodes with living and with dead preparers.
	Nodes() LabelMatcher
}

// Lister reads records of one kind. *store.Records implements it.
type Lister[T any] interface {
	List(ctx context.Context, level store.Level, below ...string) ([]store.Rec[T], []error, error)
}

// Records has the records that a Labeler reads.
type Records struct {
	Placements Lister[pod.Placement]
	Nodes      Lister[node.Node]
	NodeOps    Lister[node.Ops]
}

// New returns a Labeler for a store.
func New(s *store.Store) Labeler {
	return Of(Records{Placements: &s.Pods, Nodes: &s.Nodes, NodeOps: &s.NodeOps})
}

// Of returns a Labeler for some records.
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
			matches = append(matches,
				Labeled{ID: placed.Identity.String(), Labels: set, Node: placed.Node, Pod: placed})
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

// OfPod returns the labels by which selectors select a pod.
func OfPod(rcID, podID string, given map[string]string) labels.Set {
	set := field.Merge(given, map[string]string{pod.RCIDLabel: rcID})
	if podID != "" {
		set[pod.PodIDLabel] = podID
	}
	return set
}

// FixedRC returns the id of a controller if the selector can select only its pods, else "".
func FixedRC(sel labels.Selector) string {
	requirements, selectable := sel.Requirements()
	if !selectable {
		return ""
	}
	for _, r := range requirements {
		fixes := r.Operator() == selection.Equals ||
			r.Operator() == selection.DoubleEquals || r.Operator() == selection.In
		if values := r.ValuesUnsorted(); r.Key() == pod.RCIDLabel && fixes && len(values) == 1 {
			return values[0]
		}
	}
	return ""
}
