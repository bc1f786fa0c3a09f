package rcctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func farmsCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "farms", Usage: "list the living farms and the rcs that each owns",
		UsageText: "rcctl farms [-o table|wide|json|yaml]",
		Description: `A farm is in the list for as long as its session with Consul lives. OWNED is how many rcs it owns, and -o wide lists
them; a lone id is one whose record cannot be read. ADDRESS is that of its debug server, on its own machine.
The one that LEADS does what belongs to no rc; rcctl election show farm says more.
HEARD is how long ago it wrote last; one that is silent has not written as it should: Consul may refuse its token.
SELECTOR says which rcs it works on; without one it works on all. It EMULATES the newest version whose records it
writes; where new features wait for older farms and nodes, that is said below, and rcctl farm gate says more. Below are
also the nodes without a standing query (preparer --intents push) that a farm could not tell of their intents, and why; and
which nodes say that the store went back in time (regressed in their records), what farms did on that, and what they wait for.

Examples:
  rcctl farms
  rcctl farms -o wide
  rcctl farms -o json | jq 'map(.owned) | add'
  rcctl farms -o json | jq -r '.[] | select(any(.owned_rcs[]; .name == "web")) | .id'`,
		Flags:  []cli.Flag{wideOutputFlag()},
		Action: onList(runFarms),
	})
}

func runFarms(s *conn) error {
	members, corrupt, err := s.Farms.List(s.Context, store.Default)
	if err != nil {
		return err
	}
	owners, err := s.LockOwners(s.Context)
	if err != nil {
		return err
	}
	ids, err := s.RCs.IDs(s.Context)
	if err != nil {
		return err
	}
	var names map[string]string
	if s.String("output") != formats[0] { // else the keys of the records are enough
		var bad []error
		if names, bad, err = s.allNames(s.Context); err != nil {
			return err
		}
		corrupt = append(corrupt, bad...)
	}
	heard, _, err := s.HeardOf(s.Context)
	if err != nil {
		return err
	}
	leader, err := s.farmLeader(s.Context)
	if err != nil {
		return err
	}
	views, free := inspect.JoinFarms(values(members), leader, owners, ids, names)
	now := time.Now()
	for i := range views {
		views[i].Hearing, views[i].Untold = inspect.HearingOf(heard, views[i].ID, true, now), heard[views[i].ID].Untold
	}
	tb := table{header: []string{"ID", "HEARD", "LEADS", "OWNED", "VERSION", "EMULATES", "ADDRESS", "SELECTOR"}, paint: -1}
	wide := s.String("output") == wideFormat
	if wide {
		tb.header = append(tb.header, "RCS")
	}
	err = printList(s, views, corrupt, "no farms; start one: farm --id farm-1", tb, func(v *inspect.FarmView) []string { return farmRow(v, now, wide) })
	for i := range views {
		noteSilent(s.stdio, "farm "+views[i].ID, views[i].Hearing, now)
		noteUntold(s.stdio, &views[i], now)
	}
	if len(views) > 0 {
		gate, gateErr := s.gateView()
		if waits := gate.Waiting(); waits != "" {
			fmt.Fprintf(s.err, "rcctl: %s; rcctl farm gate shows them\n", clean(waits))
		}
		err = errors.Join(err, gateErr)
	}
	err = errors.Join(err, noteWitnesses(s.Context, s, now))
	if free > 0 {
		fmt.Fprintf(s.err, "rcctl: %d of %d rcs have no owner; rcctl rc list shows which are Unclaimed\n", free, len(ids))
	}
	return err
}

// farmLeader returns the id of the farm that leads, "" while none does.
func (s *conn) farmLeader(ctx context.Context) (string, error) {
	state, err := election.Read(ctx, s.consul, s.Keys().Prefix(), store.FarmLease)
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read who leads: %w", err)
	}
	leader, _ := state.Leader()
	return leader, nil
}

// noteWitnesses says which nodes say that the store went back in time, and what follows from that.
func noteWitnesses(ctx context.Context, s *conn, now time.Time) error {
	schema, err := s.Schema.Get(ctx, store.Default)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the cluster's record: %w", err)
	}
	nodes, _, err := s.Nodes.List(ctx, store.Default) // rcctl nodes tells of those that cannot be read
	if err != nil {
		return err
	}
	ops, _, err := s.NodeOps.List(ctx, store.Default)
	if err != nil {
		return err
	}
	said := map[string]node.Ops{}
	for _, rec := range ops {
		said[rec.Value.Name] = rec.Value
	}
	views := field.Each(nodes, func(rec store.Rec[node.Node]) *node.View {
		return node.NewView(rec.Value, said[rec.Value.Name], rec.Session != "")
	})
	known := now.Sub(schema.Value.CreatedAt)
	w := store.WitnessesOf(schema.Value, views, now, known)
	for _, line := range inspect.WitnessLines(&schema.Value, &w, now) {
		fmt.Fprintln(s.err, "rcctl: "+clean(line))
	}
	return nil
}

// noteUntold says which nodes a farm could not tell of their intents.
func noteUntold(std *stdio, v *inspect.FarmView, now time.Time) {
	if v.Untold == nil {
		return
	}
	fmt.Fprintf(std.err, "rcctl: farm %s could not tell %d nodes of their intents, which read them by themselves after a while:\n", v.ID, v.Untold.Count)
	for _, n := range v.Untold.Nodes {
		fmt.Fprintf(std.err, "rcctl:   %s for %s: %s\n", clean(n.Node), heardText(&n.Since, now), clean(n.Reason))
	}
}

func farmRow(v *inspect.FarmView, now time.Time, wide bool) []string {
	said := heardText(v.Heard, now)
	if v.Silent {
		said = "silent " + said
	}
	selects := v.RCSelector
	if v.RCID != "" {
		selects = "rc " + v.RCID
	}
	leads := ""
	if v.Leads {
		leads = "yes"
	}
	row := []string{v.ID, said, leads, fmt.Sprint(v.Owned), v.Version, v.EmulationVersion, v.Address, selects}
	if !wide {
		return row
	}
	names := field.Each(v.OwnedRCs, func(r inspect.OwnedRC) string { return cmp.Or(r.Name, r.ID) })
	return append(row, strings.Join(names, ","))
}

func resumeCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "resume", Usage: "reset the mass-stop breaker",
		UsageText: "rcctl farm resume",
		Description: `A farm that is about to have stopped more than half of its pods within a minute, and 10 at least, trips the breaker:
from then on no farm stops anything. Find out why first (rcctl audit --since 10m). What is not meant must be taken
back before, as it goes on when the breaker is reset. For what is meant, give the same command again with
--allow-mass-stop, or the breaker may trip again. It also mends a breaker record that cannot be read.

Examples:
  rcctl audit --since 10m
  rcctl rc scale web 1 --allow-mass-stop && rcctl farm resume`,
		Action: onList(runResume),
	})
}

func runResume(s *conn) error {
	var line string // what changed; empty: it is not tripped
	err := s.writing(s.Context, maxTries, func(ctx context.Context, by string) error {
		rec, err := s.Breaker.Get(ctx, store.Consistent)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return refusedf("there is no breaker below %s; a farm makes one when it runs; nothing was written", s.Keys().Prefix())
		case isCorrupt(err):
			line = "breaker: unreadable -> reset"
		case err != nil:
			return fmt.Errorf("read breaker: %w", err)
		case !rec.Value.Tripped:
			line = ""
			return nil
		default:
			line = fmt.Sprintf("breaker: tripped by %s since %s (%s) -> reset", rec.Value.By, rec.Value.Since.UTC().Format(time.RFC3339), rec.Value.Reason)
		}
		err = s.Operator.ResetBreaker(ctx, rec.Index, store.NewAudit(by, "resume", "", []string{line}))
		if err := s.did("the reset of the breaker", "rcctl audit --since 10m", err); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case line == "":
		fmt.Fprintln(s.out, "the breaker is not tripped; nothing was written")
	default:
		fmt.Fprintf(s.out, "the farms may stop pods again\n  %s\n", clean(line))
	}
	return nil
}

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

func runReleaseHold(s *conn, name string) error {
	schema, err := s.Schema.Get(s.Context, store.Default)
	if errors.Is(err, store.ErrNotFound) {
		return refusedf("there is no cluster below %s; a farm makes one when it runs; nothing was written", s.Keys().Prefix())
	}
	if err != nil {
		return fmt.Errorf("read the cluster's record: %w", err)
	}
	waits, why, err := waitsFor(s, name, schema.Value.Epoch)
	if err != nil {
		return err
	}
	if !waits {
		return refusedf("no farm waits for node %s: %s; nothing was written", name, why)
	}
	var change nodeChange
	err = s.writing(s.Context, maxNodeTries, func(ctx context.Context, by string) error {
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
		return commitNode(ctx, s, &change, ops.Index, nil, by)
	})
	if err == nil {
		printNodeChange(s.stdio, name, "is not waited for any more", change)
	}
	return err
}

// waitsFor reports whether farms wait for a node under an epoch, and if not, why.
func waitsFor(s *conn, name, epoch string) (waits bool, why string, err error) {
	passing, err := s.Passing(s.Context)
	if err != nil {
		return false, "", fmt.Errorf("read which preparers pass: %w", err)
	}
	if !slices.Contains(passing, name) {
		return false, "no preparer of that name passes in Consul's catalog", nil
	}
	rec, complete, err := s.NodeOrphans(s.Context, name)
	switch {
	case errors.Is(err, store.ErrNotFound), isCorrupt(err):
		return true, "", nil // it cannot even write its record
	case err != nil:
		return false, "", fmt.Errorf("read node %s: %w", name, err)
	case rec.Value.WentBack >= epoch: // and farms may wait for another witness
		return true, "", nil
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
