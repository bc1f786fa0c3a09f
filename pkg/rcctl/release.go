package rcctl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func releaseHoldCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "release-hold", Usage: "let the farms go on without knowing what a machine runs",
		UsageText: "rcctl farm release-hold NODE",
		Description: `After the records were wiped, restored or written for the first time, nothing is added, moved or stopped before every
machine whose preparer passes in Consul's catalog has said what it runs (condition Holding, which names those that have
not). Look at that preparer's log first: it says what keeps it from answering. Where it cannot answer, this lets the
farms go on without it, until the records change again: what runs there is not known, and its replicas may be started
a second time on other machines. When it answers after all, what it runs is adopted, or stopped as the second copy.

Examples:
  rcctl rc explain web
  rcctl farm release-hold node-17`,
		Action: onConn(nodeName.only, runReleaseHold),
	})
}

func runReleaseHold(c *cli.Context, std *stdio, s *conn, name string) error {
	schema, err := s.Schema.Get(c.Context, store.Default)
	if errors.Is(err, store.ErrNotFound) {
		return refusedf("there is no cluster below %s; a farm makes one when it runs; nothing was written", s.Keys().Prefix())
	}
	if err != nil {
		return fmt.Errorf("read the cluster's record: %w", err)
	}
	waits, why, err := waitsFor(c, s, name, schema.Value.Epoch)
	if err != nil {
		return err
	}
	if !waits {
		return refusedf("no farm waits for node %s: %s; nothing was written", name, why)
	}
	var change nodeChange
	err = s.writing(c.Context, maxNodeTries, func(ctx context.Context, by string) error {
		ops, err := s.NodeOps.Get(ctx, store.Consistent, name)
		if errors.Is(err, store.ErrNotFound) { // its preparer may not be able to write its record, either
			ops.Value.Name, err = name, nil
		}
		if err != nil {
			return fmt.Errorf("read what operators said about node %s: %w", name, err)
		}
		if change = computeRelease(ops.Value, schema.Value.Epoch); len(change.lines) == 0 {
			return nil
		}
		return changeNode(ctx, s, &change, ops.Index, nil, by)
	})
	if err == nil {
		printNodeChange(std, name, "is not waited for any more", change)
	}
	return err
}

// waitsFor reports whether farms wait for a node under an epoch, and if not, why.
func waitsFor(c *cli.Context, s *conn, name, epoch string) (waits bool, why string, err error) {
	passing, err := s.Passing(c.Context)
	if err != nil {
		return false, "", fmt.Errorf("read which preparers pass: %w", err)
	}
	if !slices.Contains(passing, name) {
		return false, "no preparer of that name passes in Consul's catalog", nil
	}
	rec, complete, err := s.NodeOrphans(c.Context, name)
	switch {
	case errors.Is(err, store.ErrNotFound), isCorrupt(err):
		return true, "", nil // it cannot even write its record
	case err != nil:
		return false, "", fmt.Errorf("read node %s: %w", name, err)
	case rec.Value.Epoch == epoch && complete && rec.Value.OrphansLeftOut == 0:
		return false, "it has said what it runs", nil
	}
	return true, "", nil
}

// computeRelease lets farms go on without the node under one epoch. A release for an earlier one is over.
func computeRelease(ops node.Ops, epoch string) nodeChange {
	c := nodeChange{what: "release-hold", ops: ops}
	if ops.HoldReleased != epoch {
		c.ops.HoldReleased = epoch
		c.lines = []string{fmt.Sprintf("hold_released: %s -> %s", orNone(ops.HoldReleased, ops.HoldReleased != ""), epoch)}
	}
	return c
}
