package rcctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func forgetCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "forget", Usage: "declare that a pod on a dead machine has stopped for good",
		UsageText: "rcctl pod forget POD [--rc REF] [--node NODE] [--wait [--timeout TIME]]",
		Description: `Nothing can confirm that a pod stopped whose machine is gone, so that it keeps its index and ports and holds up the
deletion of its controller. This says in the machine's place that it stopped. Be sure: if the machine is only cut
off, the pod may still run, and a second copy beside it. Refused while the node's preparer lives, and void if that comes
back before the owner has carried it out: --wait tells.

POD is a name as rcctl pods shows it. --rc and --node choose where several pods bear it.

Examples:
  rcctl pods --node node-17
  rcctl pod forget web-main-3 --node node-17`,
		Flags:  append(podFlags(), waitFlags("until the owner has carried it out, or says why not")...),
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

func runForget(c *cli.Context, std *stdio, s *conn, name string) error {
	target, err := findCopy(c, s, name)
	if err != nil {
		return err
	}
	index, locked, err := s.NodeLock(c.Context, target.node)
	switch {
	case err != nil:
		return fmt.Errorf("read node %s: %w", target.node, err)
	case locked:
		return refusedf("pod %s: the preparer of node %s lives and can stop it; to move it away: rcctl node drain %s; nothing was written", target.name, target.node, target.node)
	}
	r := store.Request{ID: store.NewID(), RCID: target.RCID, Kind: store.ForgetPod, Node: target.node, Pod: target.Identity, NodeIndex: index}
	if err := leaveRequest(c.Context, s, r, fmt.Sprintf("forget %s on %s", target.name, target.node)); err != nil {
		return err
	}
	if c.Bool("wait") {
		return waitForgotten(c.Context, std, s, target, r.ID, limitOf(c))
	}
	fmt.Fprintf(std.out, "asked the owner of rc %s to forget %s on %s\nwatch: rcctl pods --rc %s\n", target.RCID, target.name, target.node, target.RCID)
	return nil
}

// findCopy finds the copy that the command line means. It returns notFoundf, or a *usageError that lists the
// candidates.
func findCopy(c *cli.Context, s *conn, name string) (copyOf, error) {
	_, rcID, _, err := s.rcNames(c)
	if err != nil {
		return copyOf{}, err
	}
	node := c.String("node")
	found, err := copiesOf(c.Context, s, rcID, func(there copyOf) bool { return there.name == name && (node == "" || there.node == node) })
	switch {
	case err != nil:
		return copyOf{}, err
	case len(found) == 0:
		return copyOf{}, notFoundf("no pod has the name %q there; rcctl pods shows all", name)
	case len(found) == 1:
		return found[0], nil
	}
	return copyOf{}, ambiguousPod(c, name, found, func(f *copyOf) string { return fmt.Sprintf("%s on %s, rc %s", f.name, f.node, f.RCID) })
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

// waitForgotten waits until a request is answered. It is refused when that was void.
func waitForgotten(ctx context.Context, std *stdio, s *conn, target copyOf, request string, limit time.Duration) error {
	since := time.Now().Add(-time.Minute) // the clocks of farms may be behind
	return waitFor(ctx, std, pending{
		subject: "pod " + target.name, written: "the request is written", goal: "forgotten", hint: "rcctl pods --rc " + target.RCID,
		done: fmt.Sprintf("%s on %s is forgotten", target.name, target.node),
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
					return "", false, refusedf("pod %s: nothing was forgotten: %s", target.name, line)
				}
			}
		}
		return "", true, nil
	})
}
