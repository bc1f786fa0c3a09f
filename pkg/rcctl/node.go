package rcctl

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// readNode returns notFoundf if there is neither a record of the node nor of its operators' settings.
func readNode(ctx context.Context, s *conn, name string) (store.Operated, error) {
	o, err := s.Operated(ctx, name)
	if isMissing(err) {
		err = noNode(name)
	}
	return o, err
}

func noNode(name string) error {
	return notFoundf("no node has the name %q; rcctl nodes shows all", name)
}

type nodeChange struct {
	what  string   // for the audit record
	ops   node.Ops // the new settings
	lines []string // the difference; empty: nothing is written
}

// changeNode starts again if a record has changed meanwhile. If a drain begins or ends, or labels change, the same
// transaction changes the node's reservation (P3, R13, ADR 12).
func changeNode(ctx context.Context, s *conn, name string,
	compute func(node.Ops) (nodeChange, error),
) (c nodeChange, err error) {
	err = s.writing(ctx, maxNodeTries, func(ctx context.Context, by string) error {
		cur, err := readNode(ctx, s, name)
		if err != nil {
			return err
		}
		if c, err = compute(cur.Ops.Value); err != nil {
			return err
		}
		reservation := cur.ReservationAfter(c.ops)
		if len(c.lines) == 0 && reservation == nil {
			return nil
		}
		err = commitNode(ctx, s, &c, cur.Ops.Index, reservation, by)
		if err == nil && len(c.lines) == 0 {
			c.lines = []string{"reservation: did not match the drain or the labels -> corrected"}
		}
		return err
	})
	return c, err
}

func commitNode(ctx context.Context, s *conn, c *nodeChange, index uint64,
	reservation *store.Rec[node.Reservation], by string,
) error {
	name := c.ops.Name
	err := s.Operator.ChangeNode(ctx, store.NodeChange{
		Ops: c.ops, Index: index, Reservation: reservation,
		Audit: store.NewAudit(by, c.what, "", c.lines).OnNodes(name),
	})
	switch err = s.did(fmt.Sprintf("node %s: %s", name, c.what), "rcctl audit --node "+name, err); {
	case errors.Is(err, store.ErrConflict):
		return fmt.Errorf("node %s: its records changed during each of %d tries; nothing was written: %w",
			name, maxNodeTries, err)
	case err != nil:
		return fmt.Errorf("%s %s: %w", c.what, name, err)
	}
	return nil
}

func onNode(done string, compute func(node.Ops) nodeChange) cli.ActionFunc {
	return onConn(nodeName.only, func(s *conn, name string) error {
		change, err := changeNode(s.Context, s, name, func(ops node.Ops) (nodeChange, error) {
			return compute(ops), nil
		})
		if err == nil {
			printNodeChange(s.stdio, name, done, change)
		}
		return err
	})
}

func printNodeChange(std *stdio, name, done string, change nodeChange) {
	if len(change.lines) == 0 {
		std.printLine("node %s unchanged; nothing was written", name)
		return
	}
	std.printLine("node %s %s", name, done)
	printLines(std.out, change.lines)
}

func cordonCommand() *cli.Command {
	return leaf("cordon NODE", "keep new pods off a machine; its present pods run on",
		`Farms place nothing new on the node as soon as they have read the change. To move its pods, too: rcctl node
drain.

Examples:
  rcctl node cordon node-17
  rcctl node uncordon node-17`,
		onNode("cordoned", func(ops node.Ops) nodeChange { return computeCordon(ops, true) }),
	)
}

func uncordonCommand() *cli.Command {
	return leaf("uncordon NODE", "let new pods onto a machine again",
		`The opposite of rcctl node cordon. This does not end a drain: rcctl node undrain.

Examples:
  rcctl node uncordon node-17`,
		onNode("uncordoned", func(ops node.Ops) nodeChange { return computeCordon(ops, false) }),
	)
}

func computeCordon(ops node.Ops, ineligible bool) nodeChange {
	c := nodeChange{what: "cordon", ops: ops}
	if !ineligible {
		c.what = "uncordon"
	}
	if ops.Unschedulable != ineligible {
		c.lines = []string{fmt.Sprintf("unschedulable: %t -> %t", ops.Unschedulable, ineligible)}
	}
	c.ops.Unschedulable = ineligible
	return c
}
