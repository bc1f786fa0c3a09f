package rcctl

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// operated is one machine as an operator's act finds it.
type operated struct {
	ops         store.Rec[node.Ops]
	reservation store.Rec[node.Reservation]
}

// readNode reads what an act on a node depends on. It returns notFoundf when there is neither a record of the node nor
// of what operators said about it.
func readNode(ctx context.Context, s *conn, name string) (operated, error) {
	var o operated
	_, err := s.Nodes.Get(ctx, store.Consistent, name)
	known := err == nil || isCorrupt(err)
	if !known && !errors.Is(err, store.ErrNotFound) {
		return o, fmt.Errorf("read node %s: %w", name, err)
	}
	o.ops, err = s.NodeOps.Get(ctx, store.Consistent, name)
	if errors.Is(err, store.ErrNotFound) {
		if !known {
			return o, notFoundf("no node has the name %q; rcctl nodes shows all", name)
		}
		o.ops.Value.Name = name
	} else if err != nil {
		return o, fmt.Errorf("read what operators said about node %s: %w", name, err)
	}
	found, bad, err := s.ReservationsOf(ctx, []string{name})
	if err = errors.Join(err, bad[name]); err != nil {
		return o, fmt.Errorf("read what is reserved on node %s: %w", name, err)
	}
	o.reservation = found[name]
	return o, nil
}

// nodeChange is what one command does to one node.
type nodeChange struct {
	what  string   // for the audit record
	ops   node.Ops // as they shall be
	lines []string // the difference; empty: nothing is written
}

// writeNode carries a change of a node out: computed, written with its audit record, and computed again where a record
// moved. Where a drain begins or ends, or the labels change, the node's reservation says so in the same transaction (P3, R13, ADR 12).
func writeNode(ctx context.Context, s *conn, name string, compute func(node.Ops) (nodeChange, error)) (c nodeChange, err error) {
	err = s.writing(ctx, maxNodeTries, func(ctx context.Context, by string) error {
		cur, err := readNode(ctx, s, name)
		if err != nil {
			return err
		}
		if c, err = compute(cur.ops.Value); err != nil {
			return err
		}
		reservation := told(cur, c.ops)
		if len(c.lines) == 0 && reservation == nil {
			return nil
		}
		err = changeNode(ctx, s, &c, cur.ops.Index, reservation, by)
		if err == nil && len(c.lines) == 0 {
			c.lines = []string{"reservation: was not in line with the drain or the labels -> mended"}
		}
		return err
	})
	return c, err
}

// changeNode writes a change of a node and notes how that ended.
func changeNode(ctx context.Context, s *conn, c *nodeChange, index uint64, reservation *store.Rec[node.Reservation], by string) error {
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

// told returns what is to be written about the node's reservation with what operators say by now; nil: nothing. A stamp that is missing,
// which stands in nobody's way, is made when the labels change.
func told(cur operated, ops node.Ops) *store.Rec[node.Reservation] {
	next := cur.reservation
	next.Value = next.Value.Told(ops)
	relabelled := !maps.Equal(cur.ops.Value.Labels, ops.Labels)
	if !relabelled && cur.reservation.Value.Agrees(next.Value.Ineligible, next.Value.Labels) {
		return nil
	}
	return &next
}

// onNode is the action of a command that changes the one node it names.
func onNode(done string, compute func(node.Ops) nodeChange) cli.ActionFunc {
	return onConn(nodeName.only, func(c *cli.Context, std *stdio, s *conn, name string) error {
		return actOnNode(c, std, s, name, done, compute)
	})
}

// actOnNode changes one node and says what was different.
func actOnNode(c *cli.Context, std *stdio, s *conn, name, done string, compute func(node.Ops) nodeChange) error {
	change, err := writeNode(c.Context, s, name, func(ops node.Ops) (nodeChange, error) { return compute(ops), nil })
	if err == nil {
		printNodeChange(std, name, done, change)
	}
	return err
}

func printNodeChange(std *stdio, name, done string, change nodeChange) {
	if len(change.lines) == 0 {
		fmt.Fprintf(std.out, "node %s unchanged; nothing was written\n", name)
		return
	}
	fmt.Fprintf(std.out, "node %s %s\n", name, done)
	printLines(std.out, change.lines)
}
