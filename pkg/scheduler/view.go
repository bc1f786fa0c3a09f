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

// Ask is what nodes are wanted for: pods of one controller, which all want the same. Groups of a controller that want something
// else are asked for by themselves.
type Ask struct {
	RCID   string            `json:"rc_id"`
	RCName string            `json:"rc_name"`
	Labels map[string]string `json:"labels,omitempty"` // of the controller
	PodID  string            `json:"pod_id,omitempty"` // the manifest's
	// Manifest is that of the pods, without config and without env: a scheduler is told no secrets.
	// Nil: the farm does not have it.
	Manifest   *manifest.Manifest `json:"manifest,omitempty"`
	PodLabels  map[string]string  `json:"pod_labels,omitempty"`
	Strategy   string             `json:"strategy"`                // rc.Dynamic or rc.Static
	Selector   string             `json:"node_selector,omitempty"` // of nodes; those that it does not select are not eligible
	Spread     string             `json:"spread,omitempty"`        // key of the node label over whose values pods should be spread
	SpreadSkew int                `json:"spread_skew,omitempty"`   // which the farm holds; zero: spreading is a preference
	SpreadRole string             `json:"spread_role,omitempty"`   // role whose pods alone the skew counts, as its group says how they are spread; empty: all of the controller's
	Affinity   []Affinity         `json:"affinity,omitempty"`      // which nodes should come first
	Placing    string             `json:"placing,omitempty"`       // "pack": nodes with most should come first
	MaxPerNode int                `json:"max_per_node,omitempty"`  // pods of the controller; zero: no limit
	Desired    int                `json:"desired"`                 // replicas in all
	// What each pod takes.
	CPU          int64    `json:"cpu,omitempty"`           // thousandths of a core
	Memory       int64    `json:"memory,omitempty"`        // bytes
	Ports        []int    `json:"ports,omitempty"`         // static ones
	DynamicPorts []string `json:"dynamic_ports,omitempty"` // names of those that a node gives a number
}

// Affinity is a weighted wish for nodes that a selector matches.
type Affinity struct {
	Selector string `json:"selector"`
	Weight   int    `json:"weight"`
}

// Placed is a pod of the controller and the node where it is.
type Placed struct {
	Pod  pod.Identity `json:"pod"`
	Node string       `json:"node"`
	// Stopping says that the pod was told to stop, and may run until the node says that it did. It has its room until then.
	Stopping bool `json:"stopping,omitempty"`
}

// Cluster is what a View is made of. Nothing of it may change while the view is used.
type Cluster struct {
	Ask     Ask
	Nodes   map[string]*node.View // by name
	Version uint64                // of the nodes: another one where they differ; zero: not known
	// Rule excludes nodes; nil: all of them are eligible.
	Rule *Rule
	// Left counts nodes that are not among Nodes, by why they are not eligible.
	Left Reasons
	Pods iter.Seq[Placed] // of the controller; nil: none
}

// View is what a scheduler is shown for one question: what is wanted, and the cluster at that moment. It can only be read, and lasts as
// long as the call that it is an argument of. One goroutine may use it.
type View struct {
	c        Cluster
	eligible []Node
	excluded Reasons
	judged   bool // the two above are known
}

// NewView returns a view. It copies nothing.
func NewView(c Cluster) *View { return &View{c: c} }

// Ask returns what nodes are wanted for. Its slices and maps are not to be changed.
func (v *View) Ask() Ask { return v.c.Ask }

// Pods yields the pods of the controller that are placed, those that stop included; see Placed.Stopping.
func (v *View) Pods() iter.Seq[Placed] {
	if v.c.Pods == nil {
		return func(func(Placed) bool) {}
	}
	return v.c.Pods
}

// Node returns the node of that name, if the view has it.
func (v *View) Node(name string) (n Node, ok bool) {
	at := v.c.Nodes[name]
	return Node{at}, at != nil
}

// Nodes yields the nodes that the view has, in no order. In another process than the farm's these are the eligible ones.
func (v *View) Nodes() iter.Seq[Node] {
	return func(yield func(Node) bool) {
		for _, at := range v.c.Nodes {
			if !yield(Node{at}) {
				return
			}
		}
	}
}

// Eligible returns the nodes that may take pods of the controller as long as they have room, by name, and counts the others by why
// they may not. Both are the caller's, to sort and to change.
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

// Excludes returns why a node takes no pods of the controller, whatever is taken there, or "" when it may.
func (v *View) Excludes(n Node) Reason {
	if v.c.Rule == nil {
		return ""
	}
	return v.c.Rule.Excludes(n.v)
}

// Node is a node as schedulers see it. It shows what others share, and copies nothing but where it says so.
type Node struct{ v *node.View }

// Name returns the node's name.
func (n Node) Name() string { return n.v.Name }

// Address returns the address that pods are told, such as 10.0.0.7.
func (n Node) Address() string { return n.v.Address }

// Label returns the value of a label, "" where the node does not have it. What operators said goes over what the node says.
func (n Node) Label(key string) string { return GroupOf(n.v, key) }

// Labels returns a copy of all labels.
func (n Node) Labels() map[string]string { return n.v.AllLabels() }

// Matches reports whether a selector selects the node.
func (n Node) Matches(sel labels.Selector) bool { return n.v.Matches(sel) }

// Capacity returns what the node offers to pods in all. Whether that is free the reservations say, which no view has.
func (n Node) Capacity() node.Capacity { return n.v.Capacity }

// Alive reports whether the node's preparer is.
func (n Node) Alive() bool { return n.v.Alive }

// GroupOf returns the value that a node has of a label. One without the label is as one whose value is empty.
func GroupOf(v *node.View, label string) string {
	if v == nil || label == "" {
		return ""
	}
	if value, overridden := v.Ops.Labels[label]; overridden {
		return value
	}
	return v.Labels[label]
}
