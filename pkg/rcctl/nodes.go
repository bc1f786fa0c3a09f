package rcctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func nodesCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "nodes", Usage: "list the machines: alive or not, labels, how full",
		UsageText: "rcctl nodes [-l SELECTOR] [-o table|wide|json|yaml]",
		Description: `ALIVE is no while its preparer does not hold the node's record, and, where the owners of its pods have found out
more, unmanaged (the preparer is gone, the machine is not: pods count as last reported) or lost (the machine is
gone: they have noted it, or Consul calls its agent failed). It is silent while Consul takes the preparer for alive, and it has not written as it should: Consul may refuse
its token. HEARD is how long ago it wrote last. OPEN is yes, cordoned (nothing new is placed) or drained (its pods are moved away, too). SLOTS is
reserved/offered pods. A label that an operator has set ends with *. CONSUL is open where
pods may write there without a token, so that they can have any program started, closed where they may not, and shut where the node
takes no new intents because they may, or nobody knows. INTENTS is how it learns of them: watch, push (farms tell it), untold (a farm
could not, and rcctl farms says why: it reads them after a while), or watch (refused): farms could not reach its API. ORPHANS are
pods that run without a placement.
-o wide shows what is used of each machine, and what is free: pods, CPU in cores, memory, and numbers for dynamic ports; nothing is said to be
free of what is not limited. IN USE are ports that something else on the machine holds, so that no pod is given them.

Examples:
  rcctl nodes
  rcctl nodes -l rack=a
  rcctl nodes -o wide
  rcctl nodes -o json | jq -r '.[] | select(.alive | not) | .name'`,
		Flags:  []cli.Flag{selectorFlag("machines"), wideOutputFlag()},
		Action: onList(runNodes),
	})
}

func runNodes(s *conn) error {
	recs, corrupt, err := s.Nodes.List(s.Context, store.Default)
	if err != nil {
		return err
	}
	ops, badOps, err := s.NodeOps.List(s.Context, store.Default)
	if err != nil {
		return err
	}
	taken, badTaken, err := s.ListReservations(s.Context)
	if err != nil {
		return err
	}
	farms, heard, err := s.HeardOf(s.Context)
	if err != nil {
		return err
	}
	views := inspect.Selected(inspect.JoinNodes(recs, values(ops), taken), selectorOf(s.flags), func(v *inspect.NodeView) map[string]string { return v.Labels })
	now := time.Now()
	for i := range views {
		views[i].Hearing = inspect.HearingOf(heard, views[i].Name, views[i].Alive, now)
	}
	inspect.AddUntold(views, farms)
	losses, badPods, err := s.losses(s.Context, recs)
	if err != nil {
		return err
	}
	inspect.AddLosses(views, losses)
	none := none("nodes", s.IsSet("selector"), "start a preparer on each machine")
	tb := table{
		header: []string{"NAME", "ALIVE", "HEARD", "OPEN", "ADDRESS", "SLOTS", "ORPHANS", "ISOLATION", "CONSUL", "INTENTS", "VERSION", "LABELS"},
		paint:  1, colourOf: func(alive string) colour { return map[bool]colour{true: green, false: red}[alive == "yes"] },
	}
	row := func(v *inspect.NodeView) []string { return nodeRow(v, now) }
	if s.String("output") == wideFormat {
		tb.header = []string{"NAME", "ALIVE", "OPEN", "PODS", "FREE", "CPU", "FREE", "MEMORY", "FREE", "PORTS", "FREE", "IN USE"}
		row = usageRow
	}
	err = printList(s, views, slices.Concat(corrupt, badOps, badTaken, badPods), none, tb, row)
	for i := range views {
		noteSilent(s.stdio, "the preparer of node "+views[i].Name, views[i].Hearing, now)
		if views[i].Alive && views[i].SupervisorSilent {
			fmt.Fprintf(s.err, "rcctl: the supervisor of node %s does not answer: nothing is started or stopped there (runbook, A supervisor that does not answer)\n", views[i].Name)
		}
	}
	return err
}

// losses reads what is known of the nodes whose records nobody holds: that owners of pods have noted, and that Consul
// knows of their agents. A token that may not read the latter sees what owners have noted.
func (s *conn) losses(ctx context.Context, nodes []store.Rec[node.Node]) (inspect.Losses, []error, error) {
	if !slices.ContainsFunc(nodes, func(r store.Rec[node.Node]) bool { return r.Session == "" }) {
		return nil, nil, nil
	}
	placements, corrupt, err := s.Pods.List(ctx, store.Default)
	if err != nil {
		return nil, nil, err
	}
	failed, err := s.FailedAgents(ctx)
	if err != nil && !errors.Is(err, store.ErrFiltered) {
		return nil, nil, err
	}
	return inspect.LossesOf(nodes, values(placements), failed), corrupt, nil
}

// heardText says how long ago that was.
func heardText(at *time.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return max(now.Sub(*at), 0).Round(time.Second).String()
}

func noteSilent(std *stdio, who string, h inspect.Hearing, now time.Time) {
	if h.Silent {
		fmt.Fprintf(std.err, "rcctl: Consul takes %s for alive, and it was not heard for %s: its token may be refused; its log says why\n", who, heardText(h.Heard, now))
	}
}

// usageRow is what a node has and what is left of it.
func usageRow(v *inspect.NodeView) []string {
	row := []string{v.Name, v.AliveText(), v.OpenText()}
	add := func(used, free, limit int64, text func(int64) string) {
		row = append(row, text(used))
		if limit == 0 {
			row = append(row, "")
		} else {
			row = append(row, text(free))
		}
	}
	add(int64(v.Used.Slots), int64(v.Free.Slots), int64(v.Capacity.Slots), plainAmount)
	add(v.Used.CPU, v.Free.CPU, v.Capacity.CPU, cpuText)
	add(v.Used.Memory, v.Free.Memory, v.Capacity.Memory, memoryText)
	add(int64(v.Used.Ports), int64(v.Free.Ports), int64(v.Capacity.Ports), plainAmount)
	return append(row, inspect.SomeOf(field.Each(v.PortsInUse, func(port int) string { return fmt.Sprint(port) })))
}

func nodeRow(v *inspect.NodeView, now time.Time) []string {
	labels := make(map[string]string, len(v.Labels))
	for key, value := range v.Labels {
		if _, set := v.OperatorLabels[key]; set {
			value += "*"
		}
		labels[key] = value
	}
	return []string{
		v.Name, v.AliveText(), heardText(v.Heard, now), v.OpenText(), v.Address, fmt.Sprintf("%d/%d", v.Used.Slots, v.Capacity.Slots),
		fmt.Sprint(v.Orphans), v.Isolation, v.ConsulText(), v.IntentsText(), v.Version, inspect.LabelText(labels),
	}
}
