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
	return leaf("nodes [-l SELECTOR] [-o table|wide|json|yaml]", "list the machines: alive or not, labels, how full",
		`ALIVE is yes; no (no preparer holds the lock of the node's record); unmanaged (the preparer is gone, but the
machine is not known to be lost: its pods are taken as last reported); lost (the machine is gone: the owners of its
pods have written that, or Consul reports its agent as failed); or silent (the preparer holds the lock but has not
written as it should: Consul may refuse its token). HEARD is how long ago the preparer wrote last. OPEN is yes,
cordoned (nothing new is placed) or drained (its pods are moved off, too). SLOTS is reserved/offered pods. ORPHANS are
pods that run without a placement. A label that an operator has set ends with *.

CONSUL is open (pods may write to Consul without a token, and so have any program started), closed (they may not) or
shut (the node takes no new intents, because pods may write them, or that is unknown). INTENTS is how the node learns
of its intents: watch; push (farms push); untold (a farm could not push, and rcctl farms shows why: the node reads them
after a while); or watch (refused): farms could not reach its API.

-o wide shows what is used and free on each machine: pods, CPU in cores, memory, and dynamic ports. The free part is
missing if there is no limit. IN USE are ports that another program on the machine has, so no pod gets them.

Examples:
  rcctl nodes
  rcctl nodes -l rack=a
  rcctl nodes -o wide
  rcctl nodes -o json | jq -r '.[] | select(.alive | not) | .name'`,
		onList(runNodes), selectorFlag("machines"), wideOutputFlag(),
	)
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
	views := selected(s, "node", inspect.JoinNodes(recs, values(ops), taken),
		func(v *inspect.NodeView) map[string]string { return v.Labels })
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
	tb := columns("NAME", "ALIVE", "HEARD", "OPEN", "ADDRESS", "SLOTS", "ORPHANS", "ISOLATION", "CONSUL", "INTENTS",
		"VERSION", "LABELS").
		painted(1, func(alive string) colour { return map[bool]colour{true: green, false: red}[alive == "yes"] })
	row := func(v *inspect.NodeView) []string { return nodeRow(v, now) }
	if s.String("output") == wideFormat {
		tb.header = []string{
			"NAME", "ALIVE", "OPEN", "PODS", "FREE", "CPU", "FREE", "MEMORY", "FREE", "PORTS", "FREE",
			"IN USE",
		}
		row = usageRow
	}
	err = printList(s, views, slices.Concat(corrupt, badOps, badTaken, badPods), none, tb, row)
	for i := range views {
		noteSilent(s.stdio, "the preparer of node "+views[i].Name, views[i].Hearing, now)
		if views[i].Alive && views[i].SupervisorSilent {
			s.note("the supervisor of node %s does not answer: nothing is started or stopped there (runbook, A "+
				"supervisor that does not answer)", views[i].Name)
		}
	}
	return err
}

// losses reads what is known about dead nodes. If the token may not read agents, it uses only the owners' records.
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

func heardText(at *time.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return max(now.Sub(*at), 0).Round(time.Second).String()
}

func noteSilent(std *stdio, who string, h inspect.Hearing, now time.Time) {
	if h.Silent {
		std.note("%s lives but has written nothing for %s: Consul may refuse its token; its log shows why",
			who, heardText(h.Heard, now))
	}
}

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
		v.Name, v.AliveText(), heardText(v.Heard, now), v.OpenText(), v.Address,
		fmt.Sprintf("%d/%d", v.Used.Slots, v.Capacity.Slots), fmt.Sprint(v.Orphans), v.Isolation, v.ConsulText(),
		v.IntentsText(), v.Version, inspect.LabelText(labels),
	}
}
