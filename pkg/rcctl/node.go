package rcctl

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// readNode reads what an act on a node depends on. It returns notFoundf when there is neither a record of the node nor
// of what operators said about it.
func readNode(ctx context.Context, s *conn, name string) (store.Operated, error) {
	o, err := s.Operated(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		err = noNode(name)
	}
	return o, err
}

func noNode(name string) error {
	return notFoundf("no node has the name %q; rcctl nodes shows all", name)
}

// nodeChange is what one command does to one node.
type nodeChange struct {
	what  string   // for the audit record
	ops   node.Ops // as they shall be
	lines []string // the difference; empty: nothing is written
}

// changeNode carries a change of a node out: computed, written with its audit record, and computed again where a record
// moved. Where a drain begins or ends, or the labels change, the node's reservation says so in the same transaction (P3, R13, ADR 12).
func changeNode(ctx context.Context, s *conn, name string, compute func(node.Ops) (nodeChange, error)) (c nodeChange, err error) {
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
			c.lines = []string{"reservation: was not in line with the drain or the labels -> mended"}
		}
		return err
	})
	return c, err
}

// commitNode writes a change of a node and notes how that ended.
func commitNode(ctx context.Context, s *conn, c *nodeChange, index uint64, reservation *store.Rec[node.Reservation], by string) error {
	name := c.ops.Name
	err := s.Operator.ChangeNode(ctx, store.NodeChange{Ops: c.ops, Index: index, Reservation: reservation, Audit: store.NewAudit(by, c.what, "", c.lines).OnNodes(name)})
	switch err = s.did(fmt.Sprintf("node %s: %s", name, c.what), "rcctl audit --node "+name, err); {
	case errors.Is(err, store.ErrConflict):
		return fmt.Errorf("node %s: its records keep changing, %d tries; nothing was written: %w", name, maxNodeTries, err)
	case err != nil:
		return fmt.Errorf("%s %s: %w", c.what, name, err)
	}
	return nil
}

// onNode is the action of a command that changes the one node it names.
func onNode(done string, compute func(node.Ops) nodeChange) cli.ActionFunc {
	return onConn(nodeName.only, func(s *conn, name string) error {
		change, err := changeNode(s.Context, s, name, func(ops node.Ops) (nodeChange, error) { return compute(ops), nil })
		if err == nil {
			printNodeChange(s.stdio, name, done, change)
		}
		return err
	})
}

func printNodeChange(std *stdio, name, done string, change nodeChange) {
	if len(change.lines) == 0 {
		fmt.Fprintf(std.out, "node %s unchanged; nothing was written\n", name)
		return
	}
	fmt.Fprintf(std.out, "node %s %s\n", name, done)
	printLines(std.out, change.lines)
}

func cordonCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "cordon", Usage: "keep new pods off a machine; those that are there stay",
		UsageText: "rcctl node cordon NODE",
		Description: `Farms place nothing new on the node from when they hear of it. To move its pods away too: rcctl node drain.

Examples:
  rcctl node cordon node-17
  rcctl node uncordon node-17`,
		Action: onNode("cordoned", func(ops node.Ops) nodeChange { return computeCordon(ops, true) }),
	})
}

func uncordonCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "uncordon", Usage: "let new pods onto a machine again",
		UsageText: "rcctl node uncordon NODE",
		Description: `The opposite of rcctl node cordon. A drain is not ended by it: rcctl node undrain.

Examples:
  rcctl node uncordon node-17`,
		Action: onNode("uncordoned", func(ops node.Ops) nodeChange { return computeCordon(ops, false) }),
	})
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

func orNone(value string, has bool) string {
	if !has {
		return "none"
	}
	return value
}
