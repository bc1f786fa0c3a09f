package rcctl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
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
		reservation := reservationAfter(cur, c.ops)
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

// reservationAfter returns what is to be written about the node's reservation with what operators say by now; nil: nothing. A label version that is missing,
// which stands in nobody's way, is made when the labels change.
func reservationAfter(cur operated, ops node.Ops) *store.Rec[node.Reservation] {
	next := cur.reservation
	next.Value = next.Value.AsOperatorsSay(ops)
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

func labelCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "label", Usage: "set and remove operators' labels of a machine",
		UsageText: "rcctl node label NODE KEY=VALUE ... KEY- ...",
		Description: `Operators' labels lie on top of those that the node's preparer was started with: they win where both have a key.
KEY- removes an operators' label; the preparer's own then shows again. From then on no pod is placed there by the
former labels. A pod whose controller does not select the node any more is moved, unless the controller is static.

Examples:
  rcctl node label node-17 disk=ssd rack=b
  rcctl node label node-17 disk-`,
		Action: onConn(readLabels, func(c *cli.Context, std *stdio, s *conn, args labelArgs) error {
			return actOnNode(c, std, s, args.name, "labelled", func(ops node.Ops) nodeChange { return computeLabels(ops, args.set, args.remove) })
		}),
	})
}

const labelsAllowed = `KEY=VALUE to set a label or KEY- to remove one, in Kubernetes' syntax for labels`

// labelArgs is what a command line says about labels of a node.
type labelArgs struct {
	name   string
	set    map[string]string
	remove []string
}

func readLabels(c *cli.Context) (args labelArgs, err error) {
	if args.name, err = nodeName.check(c, c.Args().First()); err == nil {
		args.set, args.remove, err = parseLabels(c, c.Args().Tail())
	}
	return args, err
}

// parseLabels reads what labels are to be set and removed. Every mistake is reported.
func parseLabels(c *cli.Context, args []string) (set map[string]string, remove []string, err error) {
	if len(args) == 0 {
		return nil, nil, badFlag(c, "LABEL", "", labelsAllowed)
	}
	set = map[string]string{}
	seen := map[string]bool{}
	for _, arg := range args {
		key, value, sets := strings.Cut(arg, "=")
		if !sets {
			var removes bool
			if key, removes = strings.CutSuffix(arg, "-"); !removes {
				return nil, nil, badFlag(c, "LABEL", arg, labelsAllowed)
			}
		}
		var errs field.Errors
		manifest.ValidateLabels(&errs, "LABEL", map[string]string{key: value})
		if key == "" || errs != nil {
			return nil, nil, badFlag(c, "LABEL", arg, labelsAllowed)
		}
		if seen[key] {
			return nil, nil, badFlag(c, "LABEL", arg, "each key once")
		}
		seen[key] = true
		if sets {
			set[key] = value
		} else {
			remove = append(remove, key)
		}
	}
	return set, remove, nil
}

func computeLabels(ops node.Ops, set map[string]string, remove []string) nodeChange {
	c := nodeChange{what: "label", ops: ops}
	c.ops.Labels = field.Merge(ops.Labels, set)
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if before, has := ops.Labels[key]; !has || before != set[key] {
			c.lines = append(c.lines, fmt.Sprintf("labels.%s: %s -> %s", key, orNone(before, has), set[key]))
		}
	}
	for _, key := range remove {
		if before, has := ops.Labels[key]; has {
			c.lines = append(c.lines, fmt.Sprintf("labels.%s: %s -> none", key, before))
		}
		delete(c.ops.Labels, key)
	}
	return c
}

func orNone(value string, has bool) string {
	if !has {
		return "none"
	}
	return value
}
