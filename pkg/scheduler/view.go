package scheduler

import (
	"iter"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Ask describes pods of a controller that need nodes and have the same needs. A group with other needs has its own Ask.
type Ask struct {
	RCID   string            `json:"rc_id"`
	RCName string            `json:"rc_name"`
	Labels map[string]string `json:"labels,omitempty"` // labels of the controller
	PodID  string            `json:"pod_id,omitempty"` // id in the manifest
	// Manifest has no config and env, because a scheduler must see no secrets. Nil: the farm does not have it.
	Manifest  *manifest.Manifest `json:"manifest,omitempty"`
	PodLabels map[string]string  `json:"pod_labels,omitempty"`
	Strategy  string             `json:"strategy"` // rc.Dynamic or rc.Static
	// selector of nodes; other nodes are not eligible
	Selector string `json:"node_selector,omitempty"`
	// key of a node label; pods are spread over its values
	Spread string `json:"spread,omitempty"`
	// the maximum skew, which the farm enforces; zero: only a preference
	SpreadSkew int `json:"spread_skew,omitempty"`
	// the role whose pods the skew counts, if its group has its own spread; empty: all pods
	SpreadRole string     `json:"spread_role,omitempty"`
	Affinity   []Affinity `json:"affinity,omitempty"`     // preferences for nodes
	Placing    string     `json:"placing,omitempty"`      // "pack": the fullest nodes come first
	MaxPerNode int        `json:"max_per_node,omitempty"` // pods of the controller; zero: no limit
	Desired    int        `json:"desired"`                // replicas in all
	// What each pod takes.
	CPU          int64    `json:"cpu,omitempty"`           // thousandths of a core
	Memory       int64    `json:"memory,omitempty"`        // bytes
	Ports        []int    `json:"ports,omitempty"`         // static ports
	DynamicPorts []string `json:"dynamic_ports,omitempty"` // names of ports to which the node gives numbers
}

// Affinity is a weighted preference for nodes that a selector matches.
type Affinity struct {
	Selector string `json:"selector"`
	Weight   int    `json:"weight"`
}

// Placed is a pod of the controller and its node.
type Placed struct {
	Pod  pod.Identity `json:"pod"`
	Node string       `json:"node"`
	// Stopping: the intent is to stop. Until the node reports the stop, the pod may run, and keeps its resources.
	Stopping bool `json:"stopping,omitempty"`
}

// Cluster is the input of a View. The caller must not change it while the view is used.
type Cluster struct {
	Ask     Ask
	Nodes   map[string]*node.View // by name
	Version uint64                // of the nodes; after any change of a node it has another value; zero: unknown
	// Rule excludes nodes; nil: none.
	Rule *Rule
	// Left counts ineligible nodes that are missing in Nodes, by reason.
	Left Reasons
	Pods iter.Seq[Placed] // pods of the controller; nil: none
}

// View is the snapshot that a scheduler sees for one question. It is read-only, and valid until the call that got it
// returns. Only one goroutine may use it.
type View struct {
	c        Cluster
	eligible []Node
	excluded Reasons
	judged   bool // the two fields above are valid
}

// NewView copies nothing.
func NewView(c Cluster) *View { return &View{c: c} }

// Ask returns which pods need nodes. Its slices and maps are shared.
func (v *View) Ask() Ask { return v.c.Ask }

// Pods yields the controller's placed pods, also those that are stopping.
func (v *View) Pods() iter.Seq[Placed] {
	if v.c.Pods == nil {
		return func(func(Placed) bool) {}
	}
	return v.c.Pods
}

// Node returns the node with that name, if the view has it.
func (v *View) Node(name string) (n Node, ok bool) {
	at := v.c.Nodes[name]
	return Node{at}, at != nil
}

// Nodes yields all nodes, unordered. In another process these are only the eligible nodes.
func (v *View) Nodes() iter.Seq[Node] {
	return func(yield func(Node) bool) {
		for _, at := range v.c.Nodes {
			if !yield(Node{at}) {
				return
			}
		}
	}
}

// Eligible returns the nodes that may take pods if they have capacity, and counts the others by reason. The caller may
// change both.
func (v *View) Eligible() ([]Node, Reasons) {
	if v.judged {
		return slices.Clone(v.eligible), maps.Clone(v.excluded)
	}
	names, excluded := slices.Sorted(maps.Keys(v.c.Nodes)), Reasons{}
	if v.c.Rule != nil {
		names, excluded = v.c.Rule.Eligible(v.c.Nodes)
	}
	for reason, n := range v.c.Left {
		excluded[reason] += n
	}
	v.eligible = make([]Node, len(names))
	for i, name := range names {
		v.eligible[i] = Node{v.c.Nodes[name]}
	}
	v.excluded, v.judged = excluded, true
	return v.Eligible()
}

// Excludes is Rule.Excludes.
func (v *View) Excludes(n Node) Reason {
	if v.c.Rule == nil {
		return ""
	}
	return v.c.Rule.Excludes(n.v)
}

// Node is a node as schedulers see it. Its methods return shared data, unless their comment says that they return a
// copy.
type Node struct{ v *node.View }

// Name returns the node's name.
func (n Node) Name() string { return n.v.Name }

// Address is the address in the environment of pods, such as 10.0.0.7.
func (n Node) Address() string { return n.v.Address }

// Label returns the value of a label, or "". Operators' labels take precedence over the preparer's.
func (n Node) Label(key string) string { return GroupOf(n.v, key) }

// Labels returns a copy of all labels.
func (n Node) Labels() map[string]string { return n.v.AllLabels() }

// Matches reports whether a selector selects the node.
func (n Node) Matches(sel labels.Selector) bool { return n.v.Matches(sel) }

// Capacity is the node's total. The view does not show how much is free.
func (n Node) Capacity() node.Capacity { return n.v.Capacity }

// Alive reports whether the node's preparer is alive.
func (n Node) Alive() bool { return n.v.Alive }

// GroupOf returns the node's value of a label; "" without the label.
func GroupOf(v *node.View, label string) string {
	if v == nil || label == "" {
		return ""
	}
	if value, overridden := v.Ops.Labels[label]; overridden {
		return value
	}
	return v.Labels[label]
}
