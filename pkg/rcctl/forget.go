package rcctl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func forgetCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "forget", Usage: "declare that a pod on a dead machine has stopped for good",
		UsageText: "rcctl pod forget POD [--rc REF] [--node NODE] [--i-am-sure] [--wait [--timeout TIME]]",
		Description: `Nothing can confirm that a pod stopped whose machine is gone, so that it keeps its index and ports and holds up the
deletion of its controller. This says in the machine's place that it stopped. Be sure: if the machine is only cut
off, the pod may still run, and a second copy beside it. Refused while the node's preparer lives, and void if that comes
back before the owner has carried it out: --wait tells. A pod of an ordered group needs --i-am-sure: its index is
placed again at once.

POD is a name as rcctl pods shows it. --rc and --node choose where several pods bear it.

Examples:
  rcctl pods --node node-17
  rcctl pod forget web-main-3 --node node-17`,
		Flags: append(append(podFlags(), waitFlags("until the owner has carried it out, or says why not")...),
			&cli.BoolFlag{Name: "i-am-sure", Usage: "the pod of an ordered group has stopped: nothing of it runs on that machine, and nothing will"}),
		Action: onConn(onePlacedPod, runForget),
	})
}

// copyOf is one copy of a pod on one node.
type copyOf struct {
	pod.Identity
	name, node string
}

// onePlacedPod returns the only argument of the command, which names a pod as rcctl pods shows it.
func onePlacedPod(c *cli.Context) (string, error) {
	return onlyArg(c, "POD", func(c *cli.Context, name string) (string, error) {
		return checkPodName(c, name, "-", "the name of a pod as rcctl pods shows it, such as web-main-0")
	})
}

func runForget(s *conn, name string) error {
	target, err := findCopy(s, name)
	if err != nil {
		return err
	}
	index, locked, err := s.NodeLock(s.Context, target.node)
	switch {
	case err != nil:
		return fmt.Errorf("read node %s: %w", target.node, err)
	case locked:
		return refusedf("pod %s: the preparer of node %s lives and can stop it; to move it away: rcctl node drain %s; nothing was written", target.name, target.node, target.node)
	}
	if !s.Bool("i-am-sure") {
		if err := refuseOrdered(s.Context, s, target); err != nil {
			return err
		}
	}
	r := store.Request{ID: store.NewID(), RCID: target.RCID, Kind: store.ForgetPod, Node: target.node, Pod: target.Identity, NodeIndex: index}
	if err := leaveRequest(s.Context, s, r, fmt.Sprintf("forget %s on %s", target.name, target.node)); err != nil {
		return err
	}
	if s.Bool("wait") {
		return waitAnswered(s.Context, s, target, r.ID, "forgotten", limitOf(s.flags), nil)
	}
	fmt.Fprintf(s.out, "asked the owner of rc %s to forget %s on %s\nwatch: rcctl pods --rc %s\n", target.RCID, target.name, target.node, target.RCID)
	return nil
}

// refuseOrdered refuses to forget a pod of an ordered group.
func refuseOrdered(ctx context.Context, s *conn, target copyOf) error {
	rec, err := s.RCs.Get(ctx, store.Consistent, target.RCID)
	switch {
	case errors.Is(err, store.ErrNotFound) || isCorrupt(err):
		return nil // nothing is placed again
	case err != nil:
		return fmt.Errorf("read rc %s: %w", target.RCID, err)
	case rec.Value.Ordered(target.Role):
		return refusedf("pod %s: its group is ordered, and its index is placed again once it is forgotten: if it runs on %s still, or again when that machine is back, there are two; if it does not: add --i-am-sure; nothing was written", target.name, target.node)
	}
	return nil
}

// findCopy finds the copy that the command line means. It returns notFoundf, or a *usageError that lists the
// candidates.
func findCopy(s *conn, name string) (copyOf, error) {
	_, rcID, _, err := s.rcNames()
	if err != nil {
		return copyOf{}, err
	}
	node := s.String("node")
	found, err := copiesOf(s.Context, s, rcID, func(there copyOf) bool { return there.name == name && (node == "" || there.node == node) })
	switch {
	case err != nil:
		return copyOf{}, err
	case len(found) == 0:
		return copyOf{}, notFoundf("no pod has the name %q there; rcctl pods shows all", name)
	case len(found) == 1:
		return found[0], nil
	}
	return copyOf{}, ambiguousPod(s.flags, name, found, func(f *copyOf) string { return fmt.Sprintf("%s on %s, rc %s", f.name, f.node, f.RCID) })
}

// copiesOf returns every copy that a node has, or may still have: where a pod is placed and where its former copies are. They are of one
// controller, or of all where none is named; keep chooses among them.
func copiesOf(ctx context.Context, s *conn, rcID string, keep func(copyOf) bool) (found []copyOf, err error) {
	recs, bad, err := s.placements(ctx, rcID, store.Consistent)
	if err = errors.Join(append(bad, err)...); err != nil {
		return nil, fmt.Errorf("read placements: %w", err)
	}
	for i := range recs {
		p := &recs[i].Value
		nodes := []string{p.Node}
		for _, g := range p.Ghosts {
			nodes = append(nodes, g.Node)
		}
		slices.Sort(nodes)
		for _, node := range slices.Compact(nodes) {
			if there := (copyOf{Identity: p.Identity, name: inspect.PodName(p.PodID, p.Identity), node: node}); keep(there) {
				found = append(found, there)
			}
		}
	}
	return found, nil
}

// waitAnswered waits until a request about a copy is answered; goal is what the copy is then. It is refused when the
// request was void. A request may also be gone without an answer, after a restore: holds, where given, tells.
func waitAnswered(
	ctx context.Context, s *conn, target copyOf, request, goal string, limit time.Duration, holds func(context.Context) error,
) error {
	since := time.Now().Add(-time.Minute) // the clocks of farms may be behind
	return waitFor(ctx, s.stdio, pending{
		subject: "pod " + target.name, written: "the request is written", goal: goal, hint: "rcctl pods --rc " + target.RCID,
		done: fmt.Sprintf("%s on %s is %s", target.name, target.node, goal),
	}, limit, func(ctx context.Context) (string, bool, error) {
		open, err := s.Requests.Exists(ctx, target.RCID, request)
		if open || err != nil {
			return "waiting for its owner", false, err
		}
		acts, _, err := s.ListAudit(ctx, store.AuditFilter{RCID: target.RCID, Since: since})
		if err != nil {
			return "", false, fmt.Errorf("read the audit trail: %w", err)
		}
		for _, a := range acts {
			for _, line := range a.Changes { // one that was carried out has none
				if strings.HasPrefix(line, "request "+request+" ") {
					return "", false, refusedf("pod %s: nothing was %s: %s", target.name, goal, line)
				}
			}
		}
		if holds != nil {
			err = holds(ctx)
		}
		return "", err == nil, err
	})
}

func forgetNodeCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "forget", Usage: "declare that a machine is gone for good, with all that it had",
		UsageText: "rcctl node forget NODE [--dry-run] [--force] [--i-am-sure] [--timeout TIME]",
		Description: `Nothing can confirm that pods stopped whose machine is gone. This says in the machine's place that all of them
stopped, as rcctl pod forget does for one: their owners give up what they have there, and are waited for; then the
node's own records go. Be sure: if the machine is only cut off, its pods may still run, and second copies beside them.

Refused while the node's preparer lives. While its Consul agent lives, or nobody can tell, --force is needed: then the
machine is most likely well, and only its preparer is away. If the preparer comes back before all is carried out, the
rest is void. Given again it goes on where it was.

Where pods of ordered groups may run there it names them and needs --i-am-sure: their indices are placed again at once.

Examples:
  rcctl node forget node-17 --dry-run
  rcctl node forget node-17`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "dry-run", Usage: "only say what would be forgotten"},
			&cli.BoolFlag{Name: "force", Usage: "although the machine's Consul agent lives, or nobody can tell"},
			&cli.BoolFlag{Name: "i-am-sure", Usage: "the pods of ordered groups have stopped: nothing of them runs on that machine, and nothing will"},
			timeoutFlag("`TIME` after which it waits no longer for the owners (exit code 5)"),
		},
		Action: onConn(nodeName.only, runForgetNode),
	})
}

// deadNode is a machine as the one who forgets it finds it.
type deadNode struct {
	name    string
	index   uint64 // of its record; zero: there is none
	agent   string // why its Consul agent may live; empty: it does not
	copies  []copyOf
	orphans int
	epoch   string // of the cluster
	silent  bool   // it has not said what it runs since the records are what they are
	ordered string // pods of ordered groups that may run there; empty: none
	local   string // its own services, with how many replicas had room there; empty: none
}

func runForgetNode(s *conn, name string) error {
	dead, err := findDead(s.Context, s, name)
	if err != nil {
		return err
	}
	verb := "forgetting"
	if s.Bool("dry-run") {
		verb = "would forget"
	}
	for _, there := range dead.copies {
		fmt.Fprintf(s.out, "%s %s (rc %s)\n", verb, there.name, there.RCID)
	}
	if dead.orphans > 0 {
		fmt.Fprintf(s.err, "rcctl: node %s: it ran %s without an intent when it was last heard of\n", name, field.Count(dead.orphans, "pod"))
	}
	if dead.local != "" {
		fmt.Fprintf(s.err, "rcctl: node %s: it ran services of its own, which no farm places elsewhere: %s\n", name, dead.local)
	}
	if s.Bool("dry-run") {
		fmt.Fprintf(s.out, "would remove node %s; nothing was written\n", name)
		if dead.agent != "" {
			fmt.Fprintf(s.err, "rcctl: node %s: %s: it takes --force\n", name, dead.agent)
		}
		if dead.ordered != "" {
			fmt.Fprintf(s.err, "rcctl: node %s: pods of ordered groups may run there: %s; it takes --i-am-sure\n", name, dead.ordered)
		}
		return nil
	}
	if dead.agent != "" && !s.Bool("force") {
		return refusedf("node %s: %s; is the machine gone? Then add --force; nothing was written", name, dead.agent)
	}
	if dead.ordered != "" && !s.Bool("i-am-sure") {
		return refusedf("node %s: pods of ordered groups may run there: %s; their indices are placed again once they are forgotten: if they run still, or again when that machine is back, there are two; if they do not: add --i-am-sure; nothing was written", name, dead.ordered)
	}
	open, err := askForgets(s.Context, s, dead)
	if err != nil {
		return err
	}
	return waitNodeForgotten(s.Context, s, dead, open, limitOf(s.flags))
}

// findDead reads what there is of a node that nobody holds. Its error says where there is nothing, and where its
// preparer lives.
func findDead(ctx context.Context, s *conn, name string) (deadNode, error) {
	d := deadNode{name: name}
	index, locked, err := s.NodeLock(ctx, name)
	if err != nil {
		return d, fmt.Errorf("read node %s: %w", name, err)
	}
	if locked {
		return d, refusedf("node %s: its preparer lives; to empty it: rcctl node drain %s; nothing was written", name, name)
	}
	d.index = index
	if d.copies, err = copiesOn(ctx, s, name); err != nil {
		return d, err
	}
	if err = d.read(ctx, s); err != nil {
		return d, err
	}
	if d.ordered, err = orderedOn(ctx, s, d); err != nil {
		return d, err
	}
	d.local, err = localOn(ctx, s, name)
	return d, err
}

// localOn returns which services of its own a node had room reserved for, "" for none.
func localOn(ctx context.Context, s *conn, name string) (string, error) {
	rec, err := s.Reservations.Get(ctx, store.Consistent, name)
	switch {
	case errors.Is(err, store.ErrNotFound), isCorrupt(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read what is reserved on node %s: %w", name, err)
	}
	replicas := map[string]int{}
	for _, claim := range rec.Value.Claims {
		if service := claim.Pod.LocalService(); service != "" {
			replicas[service]++
		}
	}
	names := slices.Sorted(maps.Keys(replicas))
	for i, service := range names {
		names[i] = fmt.Sprintf("%s (%s)", service, field.Count(replicas[service], "replica"))
	}
	return field.Few(names, 10, ", "), nil
}

// read reads the record of a node that nobody holds.
func (d *deadNode) read(ctx context.Context, s *conn) error {
	name := d.name
	rec, err := s.Nodes.Get(ctx, store.Consistent, name)
	switch {
	case errors.Is(err, store.ErrNotFound) && len(d.copies) == 0:
		_, opsErr := s.NodeOps.Get(ctx, store.Consistent, name)
		if errors.Is(opsErr, store.ErrNotFound) {
			return notFoundf("no node has the name %q; rcctl nodes shows all", name)
		}
		return opsErr
	case errors.Is(err, store.ErrNotFound), isCorrupt(err):
		d.agent = "its record is missing or unreadable, so that nobody can tell whether its Consul agent lives"
		return nil
	case err != nil:
		return fmt.Errorf("read node %s: %w", name, err)
	}
	schema, err := s.Schema.Get(ctx, store.Consistent)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("read the schema: %w", err)
	}
	d.orphans, d.epoch, d.silent = rec.Value.OrphanCount(), schema.Value.Epoch, rec.Value.Epoch != schema.Value.Epoch
	gone, err := s.AgentGone(ctx, rec.Value.ConsulNode)
	switch {
	case err != nil:
		d.agent = "cannot tell whether its Consul agent lives: " + err.Error()
	case !gone:
		d.agent = fmt.Sprintf("its Consul agent %s lives", rec.Value.ConsulNode)
	}
	return nil
}

// orderedOn returns which pods of ordered groups may run on a node, "" for none: those that have copies there and, where it ran pods without an
// intent or has not said what it runs, any.
func orderedOn(ctx context.Context, s *conn, d deadNode) (string, error) {
	if len(d.copies)+d.orphans == 0 && !d.silent {
		return "", nil
	}
	recs, _, err := s.RCs.List(ctx, store.Consistent) // of one that cannot be read nothing is placed
	if err != nil {
		return "", fmt.Errorf("read rcs: %w", err)
	}
	var placed, others []string
	for i := range recs {
		r := &recs[i].Value
		if r.HasOrdered() && (d.orphans > 0 || !r.MadeInEpoch(d.epoch)) {
			others = append(others, r.Name)
		}
		for _, there := range d.copies {
			if there.RCID == r.ID && r.Ordered(there.Role) {
				placed = append(placed, there.name)
			}
		}
	}
	switch {
	case len(placed) > 0 || len(others) == 0:
	case d.silent:
		placed = []string{fmt.Sprintf("any of rc %s: it has not said what it runs since the records are what they are", field.Few(others, maxLeft, ", "))}
	case d.orphans > 0:
		placed = []string{fmt.Sprintf("any of rc %s: it ran pods without an intent", field.Few(others, maxLeft, ", "))}
	}
	return field.Few(placed, maxLeft, ", "), nil
}

// copiesOn returns every copy that a node has, or may still have.
func copiesOn(ctx context.Context, s *conn, name string) ([]copyOf, error) {
	return copiesOf(ctx, s, "", func(there copyOf) bool { return there.node == name })
}

// askForgets leaves a request for each copy, and returns them.
func askForgets(ctx context.Context, s *conn, d deadNode) (requests []store.Request, err error) {
	err = s.writing(ctx, 1, func(ctx context.Context, by string) error {
		names := map[pod.Identity]string{}
		for _, there := range d.copies {
			names[there.Identity] = there.name
			requests = append(requests, store.Request{
				ID: store.NewID(), RCID: there.RCID, Kind: store.ForgetPod, Node: d.name, Pod: there.Identity, NodeIndex: d.index,
				By: by, At: time.Now().UTC(),
			})
		}
		asked, err := s.Operator.AskForget(ctx, d.name, requests, func(part []store.Request) store.Audit {
			var lines []string
			for _, r := range part {
				lines = append(lines, fmt.Sprintf("forget %s (rc %s) on %s", names[r.Pod], r.RCID, d.name))
			}
			return store.NewAudit(by, "forget-node", "", lines).OnNodes(d.name)
		})
		what := func(n int) string {
			return fmt.Sprintf("node %s: the requests to forget %s", d.name, field.Count(n, "pod"))
		}
		if asked > 0 {
			_ = s.did(what(asked), "rcctl audit --node "+d.name, nil)
		}
		if asked < len(requests) {
			_ = s.did(what(len(requests)-asked)+" more", "rcctl audit --node "+d.name, err)
		}
		if errors.Is(err, store.ErrConflict) {
			return cameBack(d.name)
		}
		return err
	})
	return requests, err
}

func cameBack(name string) error {
	return refusedf("node %s: its preparer was back meanwhile, or its record was removed; what the owners have not carried out is void; look again", name)
}

// waitNodeForgotten waits until every request is answered, and removes what is left of the node. It is refused where the node
// came back.
func waitNodeForgotten(ctx context.Context, s *conn, d deadNode, open []store.Request, limit time.Duration) error {
	return waitFor(ctx, s.stdio, pending{
		subject: "node " + d.name, written: "the requests are written", goal: "forgotten", hint: "rcctl node forget " + d.name + " --dry-run",
		done: fmt.Sprintf("node %s is forgotten, with %s", d.name, field.Count(len(d.copies), "pod")),
	}, limit, func(ctx context.Context) (string, bool, error) {
		if index, locked, err := s.NodeLock(ctx, d.name); err != nil || locked || index != d.index {
			if err == nil {
				err = cameBack(d.name)
			}
			return "", false, err
		}
		for len(open) > 0 {
			waits, err := s.Requests.Exists(ctx, open[0].RCID, open[0].ID)
			if waits || err != nil {
				return fmt.Sprintf("waiting for the owners of %s", field.Count(len(open), "pod")), false, err
			}
			open = open[1:]
		}
		err := removeNode(ctx, s, d)
		return "waiting for what is reserved there", err == nil, err
	})
}

// maxLeft bounds how many pods are named that are there since.
const maxLeft = 5

// removeNode removes the records of a node that has no copies any more. It is refused where it has got some.
func removeNode(ctx context.Context, s *conn, d deadNode) error {
	author, err := s.who(ctx)
	if err != nil {
		return err
	}
	taken, bad, err := s.ReservationsOf(ctx, []string{d.name})
	if err = errors.Join(err, bad[d.name]); err != nil {
		return fmt.Errorf("read what is reserved on node %s: %w", d.name, err)
	}
	ops, err := s.NodeOps.Get(ctx, store.Consistent, d.name)
	if err != nil && !errors.Is(err, store.ErrNotFound) && !isCorrupt(err) {
		return fmt.Errorf("read what operators said about node %s: %w", d.name, err)
	}
	left, err := copiesOn(ctx, s, d.name)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		names := field.Each(left, func(there copyOf) string { return there.name })
		return refusedf("node %s: %s are there since, or again: %s; give the command again", d.name, field.Count(len(left), "pod"), field.Few(names, maxLeft, ", "))
	}
	err = s.Operator.RemoveNode(ctx, store.NodeRemoval{
		Name: d.name, Node: d.index, Ops: ops.Index, Reservation: taken[d.name].Index,
		Audit: store.NewAudit(author, "forget-node", "", []string{"remove node " + d.name + ": it is gone for good"}).OnNodes(d.name),
	})
	return s.did("node "+d.name+": its removal", "rcctl audit --node "+d.name, err)
}
