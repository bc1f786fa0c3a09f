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
	return leaf("forget POD [--rc REF] [--node NODE] [--i-am-sure] [--wait [--timeout TIME]]",
		"declare that a pod on a dead machine has stopped for good",
		`If a machine is gone, nothing can confirm that its pod stopped. So the pod keeps its index and ports, and
delays the deletion of its controller. This command confirms the stop in the machine's place. Be sure: if the machine
is only cut off, the pod may still run, with a second copy beside it. It is refused while the node's preparer lives,
and void if the preparer comes back before the owner has carried it out; --wait reports that. A pod of an ordered group
needs --i-am-sure, because its index is placed again at once.

POD is a name as rcctl pods shows it. If several pods have that name, choose with --rc and --node.

Examples:
  rcctl pods --node node-17
  rcctl pod forget web-main-3 --node node-17`,
		onConn(onePlacedPod, runForget), podFlags(),
		waitFlags("until the owner has carried it out or declined"),
		toggle("i-am-sure",
			"confirm that the pod of an ordered group has stopped and will not run on that machine again"),
	)
}

type copyOf struct {
	pod.Identity
	name, node string
}

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
		return unwrittenf("pod %s: the preparer of node %s lives and can stop it; to move it away: rcctl node drain %s",
			target.name, target.node, target.node)
	}
	if !s.Bool("i-am-sure") {
		if err := refuseOrdered(s.Context, s, target); err != nil {
			return err
		}
	}
	r := store.Request{
		ID: store.NewID(), RCID: target.RCID, Kind: store.ForgetPod, Node: target.node,
		Pod: target.Identity, NodeIndex: index,
	}
	if err := leaveRequest(s.Context, s, r, fmt.Sprintf("forget %s on %s", target.name, target.node)); err != nil {
		return err
	}
	if s.Bool("wait") {
		return waitAnswered(s.Context, s, target, r.ID, "forgotten", limitOf(s.flags), nil)
	}
	s.printLine("asked the owner of rc %s to forget %s on %s\nwatch: rcctl pods --rc %s",
		target.RCID, target.name, target.node, target.RCID)
	return nil
}

func refuseOrdered(ctx context.Context, s *conn, target copyOf) error {
	rec, err := s.RCs.Get(ctx, store.Consistent, target.RCID)
	switch {
	case isUnusable(err):
		return nil // without its record no farm places the index again
	case err != nil:
		return fmt.Errorf("read rc %s: %w", target.RCID, err)
	case rec.Value.Ordered(target.Role):
		return unwrittenf("pod %s is of an ordered group, so its index is placed again once it is forgotten; if it "+
			"still runs on %s, or runs again when that machine comes back, there are two copies; if you are sure that "+
			"it does not, add --i-am-sure", target.name, target.node)
	}
	return nil
}

// findCopy returns errors of the same kinds as find.
func findCopy(s *conn, name string) (copyOf, error) {
	_, rcID, _, err := s.rcNames()
	if err != nil {
		return copyOf{}, err
	}
	node := s.String("node")
	found, err := copiesOf(s.Context, s, rcID, func(there copyOf) bool {
		return there.name == name && (node == "" || there.node == node)
	})
	switch {
	case err != nil:
		return copyOf{}, err
	case len(found) == 0:
		return copyOf{}, notFoundf("no pod has that name, rc and node: %q; rcctl pods shows all", name)
	case len(found) == 1:
		return found[0], nil
	}
	return copyOf{}, ambiguousPod(s.flags, name, found, func(f *copyOf) string {
		return fmt.Sprintf("%s on %s, rc %s", f.name, f.node, f.RCID)
	})
}

// copiesOf returns the copies that keep selects: a pod has one on the node of its placement and on the nodes of its
// ghosts. It reads one controller, or all if rcID is empty.
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
			if there := (copyOf{Identity: p.Identity, name: inspect.NameOf(p), node: node}); keep(there) {
				found = append(found, there)
			}
		}
	}
	return found, nil
}

// waitAnswered waits until a request about a copy is answered, and returns refusedf if it was void. goal is the state
// after that. After a restore, the request may be gone without an answer, so holds, if it is not nil, checks the
// result.
func waitAnswered(
	ctx context.Context, s *conn, target copyOf, request, goal string, limit time.Duration,
	holds func(context.Context) error,
) error {
	since := time.Now().Add(-time.Minute) // the clocks of farms may be behind
	return waitFor(ctx, s.stdio, pending{
		subject: "pod " + target.name, written: "the request is written", goal: goal,
		hint: "rcctl pods --rc " + target.RCID,
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
			for _, line := range a.Changes { // only a request that was not carried out has such a line
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
	return leaf("forget NODE [--dry-run] [--force] [--i-am-sure] [--timeout TIME]",
		"declare that a machine is gone for good, with all that it had",
		`If a machine is gone, nothing can confirm that its pods stopped. This command confirms it for all of them, as
rcctl pod forget does for one. It waits until their owners have given up their copies there; then it removes the node's
own records. Be sure: if the machine is only cut off, its pods may still run, with second copies beside them.

It is refused while the node's preparer lives. While its Consul agent lives, or may live, it needs --force: then the
machine is most likely well, and only its preparer is away. If the preparer comes back before all is carried out, the
rest is void. A repeated command goes on where the first one ended.

If pods of ordered groups may run there, it names them and needs --i-am-sure, because their indices are placed again at
once.

Examples:
  rcctl node forget node-17 --dry-run
  rcctl node forget node-17`,
		onConn(nodeName.only, runForgetNode), toggle("dry-run", "only show what would be forgotten"),
		toggle("force", "although the machine's Consul agent lives, or may live"),
		toggle("i-am-sure",
			"confirm that the pods of ordered groups have stopped and will not run on that machine again"),
		timeoutFlag("`TIME` after which it no longer waits for the owners (exit code 5)"),
	)
}

type deadNode struct {
	name    string
	index   uint64 // of its record; zero: there is none
	agent   string // why its Consul agent may live; empty: it does not
	copies  []copyOf
	orphans int
	epoch   string // of the cluster
	silent  bool   // it has not reported what it runs in this epoch
	ordered string // pods of ordered groups that may run there; empty: none
	local   string // its local services, with the number of replicas that had a reservation; empty: none
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
		s.printLine("%s %s (rc %s)", verb, there.name, there.RCID)
	}
	if dead.orphans > 0 {
		s.note("node %s: its last report has %s without an intent", name, field.Count(dead.orphans, "pod"))
	}
	if dead.local != "" {
		s.note("node %s: it ran local services, which no farm places elsewhere: %s", name, dead.local)
	}
	if s.Bool("dry-run") {
		s.printLine("would remove node %s; nothing was written", name)
		if dead.agent != "" {
			s.note("node %s: %s: this needs --force", name, dead.agent)
		}
		if dead.ordered != "" {
			s.note("node %s: pods of ordered groups may run there: %s; this needs --i-am-sure", name, dead.ordered)
		}
		return nil
	}
	if dead.agent != "" && !s.Bool("force") {
		return unwrittenf("node %s: %s; if the machine is gone, add --force", name, dead.agent)
	}
	if dead.ordered != "" && !s.Bool("i-am-sure") {
		return unwrittenf("node %s: pods of ordered groups may run there: %s; their indices are placed again once "+
			"they are forgotten; if they still run, or run again when that machine comes back, there are two copies; "+
			"if you are sure that they do not, add --i-am-sure", name, dead.ordered)
	}
	open, err := askForgets(s.Context, s, dead)
	if err != nil {
		return err
	}
	return waitNodeForgotten(s.Context, s, dead, open, limitOf(s.flags))
}

// findDead returns an error if there are no records, or if the node's preparer lives.
func findDead(ctx context.Context, s *conn, name string) (deadNode, error) {
	d := deadNode{name: name}
	index, locked, err := s.NodeLock(ctx, name)
	if err != nil {
		return d, fmt.Errorf("read node %s: %w", name, err)
	}
	if locked {
		return d, unwrittenf("node %s: its preparer lives; to empty it: rcctl node drain %s", name, name)
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

// localOn returns the local services with a share of the node's reservation, "" for none.
func localOn(ctx context.Context, s *conn, name string) (string, error) {
	rec, err := s.Reservations.Get(ctx, store.Consistent, name)
	switch {
	case isUnusable(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read the reservation of node %s: %w", name, err)
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

func (d *deadNode) read(ctx context.Context, s *conn) error {
	name := d.name
	rec, err := s.Nodes.Get(ctx, store.Consistent, name)
	switch {
	case isMissing(err) && len(d.copies) == 0:
		_, opsErr := s.NodeOps.Get(ctx, store.Consistent, name)
		if isMissing(opsErr) {
			return noNode(name)
		}
		return opsErr
	case isUnusable(err):
		d.agent = "its record is missing or unreadable, so its Consul agent may live"
		return nil
	case err != nil:
		return fmt.Errorf("read node %s: %w", name, err)
	}
	schema, err := s.Schema.Get(ctx, store.Consistent)
	if err != nil && !isMissing(err) {
		return fmt.Errorf("read the schema: %w", err)
	}
	d.orphans, d.epoch, d.silent = rec.Value.OrphanCount(), schema.Value.Epoch, rec.Value.Epoch != schema.Value.Epoch
	gone, err := s.AgentGone(ctx, rec.Value.ConsulNode)
	switch {
	case err != nil:
		d.agent = "cannot read whether its Consul agent lives: " + err.Error()
	case !gone:
		d.agent = fmt.Sprintf("its Consul agent %s lives", rec.Value.ConsulNode)
	}
	return nil
}

// orderedOn names the pods of ordered groups with copies on a node. If there are none, and the node ran orphans or has
// not reported what it runs, it names the controllers whose pods may run there.
func orderedOn(ctx context.Context, s *conn, d deadNode) (string, error) {
	if len(d.copies)+d.orphans == 0 && !d.silent {
		return "", nil
	}
	recs, _, err := s.RCs.List(ctx, store.Consistent) // no farm places pods of an unreadable controller
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
		placed = []string{fmt.Sprintf("any of rc %s: since the records were made or restored, it has not reported "+
			"what it runs", field.Few(others, maxLeft, ", "))}
	case d.orphans > 0:
		placed = []string{fmt.Sprintf("any of rc %s: it ran pods without an intent", field.Few(others, maxLeft, ", "))}
	}
	return field.Few(placed, maxLeft, ", "), nil
}

func copiesOn(ctx context.Context, s *conn, name string) ([]copyOf, error) {
	return copiesOf(ctx, s, "", func(there copyOf) bool { return there.node == name })
}

func askForgets(ctx context.Context, s *conn, d deadNode) (requests []store.Request, err error) {
	err = s.writing(ctx, 1, func(ctx context.Context, by string) error {
		names := map[pod.Identity]string{}
		for _, there := range d.copies {
			names[there.Identity] = there.name
			requests = append(requests, store.Request{
				ID: store.NewID(), RCID: there.RCID, Kind: store.ForgetPod, Node: d.name, Pod: there.Identity,
				NodeIndex: d.index,
				By:        by, At: time.Now().UTC(),
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
	return refusedf("node %s: its preparer came back meanwhile, or its record was removed; requests that the owners "+
		"have not carried out are void; look again: rcctl nodes", name)
}

// waitNodeForgotten waits for the answers and removes the node's records. It returns refusedf if the node came back.
func waitNodeForgotten(ctx context.Context, s *conn, d deadNode, open []store.Request, limit time.Duration) error {
	return waitFor(ctx, s.stdio, pending{
		subject: "node " + d.name, written: "the requests are written", goal: "forgotten",
		hint: "rcctl node forget " + d.name + " --dry-run",
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
		return "waiting for its reservation", err == nil, err
	})
}

const maxLeft = 5

// removeNode returns refusedf if the node has copies again.
func removeNode(ctx context.Context, s *conn, d deadNode) error {
	author, err := s.who(ctx)
	if err != nil {
		return err
	}
	taken, bad, err := s.ReservationsOf(ctx, []string{d.name})
	if err = errors.Join(err, bad[d.name]); err != nil {
		return fmt.Errorf("read the reservation of node %s: %w", d.name, err)
	}
	ops, err := s.NodeOps.Get(ctx, store.Consistent, d.name)
	if err != nil && !isUnusable(err) {
		return fmt.Errorf("read the operators' settings of node %s: %w", d.name, err)
	}
	left, err := copiesOn(ctx, s, d.name)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		names := field.Each(left, func(there copyOf) string { return there.name })
		return refusedf("node %s: meanwhile it has %s again: %s; repeat the command",
			d.name, field.Count(len(left), "pod"), field.Few(names, maxLeft, ", "))
	}
	err = s.Operator.RemoveNode(ctx, store.NodeRemoval{
		Name: d.name, Node: d.index, Ops: ops.Index, Reservation: taken[d.name].Index,
		Audit: store.NewAudit(author, "forget-node", "",
			[]string{"remove node " + d.name + ": it is gone for good"}).OnNodes(d.name),
	})
	return s.did("node "+d.name+": its removal", "rcctl audit --node "+d.name, err)
}
