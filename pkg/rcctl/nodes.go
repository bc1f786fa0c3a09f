package rcctl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// NodeView is one machine: what its preparer says, what operators say, what is reserved.
type NodeView struct {
	Name           string            `json:"name"`
	Alive          bool              `json:"alive"`            // its preparer lives
	Heard          *time.Time        `json:"heard,omitempty"`  // when its preparer last wrote, by its own clock; an older one does not say
	Silent         bool              `json:"silent,omitempty"` // it should have written since
	Address        string            `json:"address"`
	ConsulNode     string            `json:"consul_node"`
	Labels         map[string]string `json:"labels"`                    // in effect: the node's own, operators' on top
	OperatorLabels map[string]string `json:"operator_labels,omitempty"` // those that operators set
	Open           bool              `json:"open"`                      // takes new pods
	Cordoned       bool              `json:"cordoned"`                  // by operators: nothing new is placed
	Drain          *node.Drain       `json:"drain,omitempty"`           // by operators: its pods are moved away
	UnmanagedSince *time.Time        `json:"unmanaged_since,omitempty"` // its preparer is gone, its machine is not
	LostSince      *time.Time        `json:"lost_since,omitempty"`      // its machine is gone
	Capacity       Usage             `json:"capacity"`
	Used           Usage             `json:"used"` // reserved
	Orphans        int               `json:"orphans"`
	Isolation      string            `json:"isolation,omitempty"` // what its pods have of their own; see docs/operating.md
	Anonymous      string            `json:"anonymous,omitempty"` // what its pods may do at Consul without a token: closed, open or unknown
	Shut           bool              `json:"shut,omitempty"`      // it takes no new intents because of that
	Version        string            `json:"version"`
}

// Usage is an amount of what nodes have. In a capacity a zero CPU or memory means that it is not limited.
type Usage struct {
	Slots  int   `json:"slots"`
	CPU    int64 `json:"cpu"`    // thousandths of a core
	Memory int64 `json:"memory"` // bytes
}

func (t *tool) nodesCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "nodes", Usage: "list the machines: alive or not, labels, how full",
		UsageText: "rcctl nodes [-o table|json|yaml]",
		Description: `ALIVE is no while its preparer does not hold the node's record, and, where the owners of its pods have found out
more, unmanaged (the preparer is gone, the machine is not: pods count as last reported) or lost (the machine is
gone). It is silent while Consul takes the preparer for alive, and it has not written as it should: Consul may refuse
its token. HEARD is how long ago it wrote last. OPEN is yes, cordoned (nothing new is placed) or drained (its pods are moved away, too). SLOTS is
reserved/offered pods. A label that an operator has set ends with *. CONSUL is open where
pods may write there without a token, so that they can have any program started, closed where they may not, and shut where the node
takes no new intents because they may, or nobody knows. ORPHANS are pods that run without a placement.

Examples:
  rcctl nodes
  rcctl nodes -o json | jq -r '.[] | select(.alive | not) | .name'`,
		Flags:  []cli.Flag{outputFlag()},
		Action: t.nodes,
	})
}

func (t *tool) nodes(c *cli.Context) error {
	out, s, err := t.connectToList(c)
	if err != nil {
		return err
	}
	defer s.close()
	recs, corrupt, err := s.ListNodes(c.Context)
	if err != nil {
		return err
	}
	ops, badOps, err := s.ListNodeOps(c.Context)
	if err != nil {
		return err
	}
	taken, badTaken, err := s.ListReservations(c.Context)
	if err != nil {
		return err
	}
	_, heard, err := s.HeardOf(c.Context)
	if err != nil {
		return err
	}
	views := joinNodes(recs, values(ops), taken)
	now := time.Now()
	for i := range views {
		v := &views[i]
		v.Heard, v.Silent = heardView(heard, v.Name, v.Alive, now)
	}
	badPods, err := s.addLosses(c.Context, views)
	if err != nil {
		return err
	}
	if len(views) == 0 {
		if err := s.empty(c.Context, t.err); err != nil {
			return err
		}
	}
	if err := t.print(out, views, func(w io.Writer) error { return writeNodes(w, views, now, coloured(w)) }); err != nil {
		return err
	}
	for i := range views {
		if views[i].Silent {
			t.noteSilent("the preparer of node "+views[i].Name, *views[i].Heard, now)
		}
	}
	return t.warn(slices.Concat(corrupt, badOps, badTaken, badPods))
}

// heardView returns when a daemon was heard last, nil where nothing says so, and whether it is silent although Consul takes it for alive.
func heardView(heard map[string]store.Heard, name string, alive bool, now time.Time) (at *time.Time, silent bool) {
	h, has := heard[name]
	if !has {
		return nil, false
	}
	return &h.At, alive && h.Silent(now)
}

// heardText says how long ago that was.
func heardText(at *time.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return max(now.Sub(*at), 0).Round(time.Second).String()
}

func (t *tool) noteSilent(who string, at, now time.Time) {
	fmt.Fprintf(t.err, "rcctl: Consul takes %s for alive, and it was not heard for %s: its token may be refused; its log says why\n", who, heardText(&at, now))
}

// addLosses adds what the owners of pods found out about nodes that are not alive. Placements are read only if there are
// such nodes.
func (s *conn) addLosses(ctx context.Context, views []NodeView) (corrupt []error, err error) {
	dead := map[string]*NodeView{}
	for i := range views {
		if !views[i].Alive {
			dead[views[i].Name] = &views[i]
		}
	}
	if len(dead) == 0 {
		return nil, nil
	}
	placements, corrupt, err := s.AllPlacements(ctx)
	if err != nil {
		return nil, err
	}
	for i := range placements {
		p := &placements[i].Value
		if v := dead[p.Node]; v != nil {
			v.UnmanagedSince = earlier(v.UnmanagedSince, p.UnmanagedSince)
			v.LostSince = earlier(v.LostSince, p.LostSince)
		}
	}
	return corrupt, nil
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

// aliveText says in one word whether the node lives.
func (v *NodeView) aliveText() string {
	switch {
	case v.Silent:
		return "silent"
	case v.Alive:
		return "yes"
	case v.LostSince != nil:
		return "lost"
	case v.UnmanagedSince != nil:
		return "unmanaged"
	default:
		return "no"
	}
}

// consulText says in one word what pods of the node may do at Consul without a token.
func (v *NodeView) consulText() string {
	if v.Shut {
		return "shut"
	}
	return v.Anonymous
}

// openText says in one word whether operators let pods onto the node.
func (v *NodeView) openText() string {
	switch {
	case v.Drain != nil:
		return "drained"
	case v.Cordoned:
		return "cordoned"
	case v.Open:
		return "yes"
	default:
		return "no" // its reservation is closed without a drain
	}
}

// joinNodes joins the three records of each node. The result is sorted by name.
func joinNodes(recs []store.Rec[node.Node], ops []node.Ops, taken map[string]node.Reservation) []NodeView {
	byName := make(map[string]node.Ops, len(ops))
	for _, o := range ops {
		byName[o.Name] = o
	}
	views := make([]NodeView, 0, len(recs))
	for _, rec := range recs {
		view := node.NewView(rec.Value, byName[rec.Value.Name], rec.Session != "")
		n := NodeView{
			Name: view.Name, Alive: view.Alive, Address: view.Address, ConsulNode: view.ConsulNode,
			Labels: view.AllLabels(), OperatorLabels: view.Ops.Labels, Open: !scheduler.Closed(view, taken[view.Name]), Drain: view.Ops.Drain, Cordoned: view.Ops.Unschedulable,
			Capacity: Usage{Slots: view.Capacity.Slots, CPU: view.Capacity.CPU, Memory: view.Capacity.Memory},
			Orphans:  view.OrphanCount(), Version: view.Version, Isolation: view.Isolation, Anonymous: view.Anonymous, Shut: view.Shut,
		}
		for _, h := range taken[view.Name].Holders {
			n.Used.Slots++
			n.Used.CPU += h.CPU
			n.Used.Memory += h.Memory
		}
		views = append(views, n)
	}
	slices.SortFunc(views, func(a, b NodeView) int { return cmp.Compare(a.Name, b.Name) })
	return views
}

func writeNodes(w io.Writer, views []NodeView, now time.Time, colours bool) error {
	if len(views) == 0 {
		_, err := fmt.Fprintln(w, "no nodes; start a preparer on each machine")
		return err
	}
	tb := table{
		header: []string{"NAME", "ALIVE", "HEARD", "OPEN", "ADDRESS", "SLOTS", "ORPHANS", "ISOLATION", "CONSUL", "VERSION", "LABELS"},
		paint:  1, colourOf: func(alive string) colour {
			if alive == "yes" {
				return green
			}
			return red
		},
	}
	for i := range views {
		v := &views[i]
		labels := make(map[string]string, len(v.Labels))
		for key, value := range v.Labels {
			if _, set := v.OperatorLabels[key]; set {
				value += "*"
			}
			labels[key] = value
		}
		tb.rows = append(tb.rows, []string{
			v.Name, v.aliveText(), heardText(v.Heard, now), v.openText(), v.Address, fmt.Sprintf("%d/%d", v.Used.Slots, v.Capacity.Slots),
			fmt.Sprint(v.Orphans), v.Isolation, v.consulText(), v.Version, labelText(labels),
		})
	}
	return tb.write(w, colours)
}
