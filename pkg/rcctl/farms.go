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
	return leaf("farms [-o table|wide|json|yaml]", "list the living farms and the rcs that each owns",
		`A farm is in the list for as long as its session with Consul lives. OWNED is how many rcs it owns, and -o wide
lists them: by id alone if the record cannot be read. ADDRESS is that of its debug server, on its own machine. The farm
that LEADS does the work that belongs to no rc; rcctl election show farm shows more. HEARD is how long ago the farm
wrote last; a silent farm has not written as it should: Consul may refuse its token. SELECTOR chooses the rcs that it
works on; a farm without one works on all. EMULATES is the newest version whose records it writes.

Notes below the table list features that wait for older farms and nodes (rcctl farm gate shows more); nodes without a
standing query (preparer --intents push) to which a farm could not push, and why; nodes that report that the store went
back in time (regressed in their records); what farms did about it, and what they wait for; a tripped mass-stop breaker.

Examples:
  rcctl farms
  rcctl farms -o wide
  rcctl farms -o json | jq 'map(.owned) | add'
  rcctl farms -o json | jq -r '.[] | select(any(.owned_rcs[]; .name == "web")) | .id'`,
		onList(runFarms), wideOutputFlag(),
	)
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
	if s.String("output") != formats[0] { // a table without names needs only the keys of the records
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
	tb := columns("ID", "HEARD", "LEADS", "OWNED", "VERSION", "EMULATES", "ADDRESS", "SELECTOR")
	wide := s.String("output") == wideFormat
	if wide {
		tb.header = append(tb.header, "RCS")
	}
	err = printList(s, views, corrupt, "no farms; start one: farm --id farm-1", tb, func(v *inspect.FarmView) []string {
		return farmRow(v, now, wide)
	})
	for i := range views {
		noteSilent(s.stdio, "farm "+views[i].ID, views[i].Hearing, now)
		notePushFailures(s.stdio, &views[i], now)
	}
	if len(views) > 0 {
		gate, gateErr := s.gateView()
		if waits := gate.Waiting(); waits != "" {
			s.note("%s; rcctl farm gate shows them", clean(waits))
		}
		err = errors.Join(err, gateErr)
	}
	err = errors.Join(err, noteWitnesses(s.Context, s, now))
	if free > 0 {
		s.note("%d of %d rcs have no owner; rcctl rc list shows which are Unclaimed", free, len(ids))
	}
	return errors.Join(err, noteBreaker(s))
}

func noteBreaker(s *conn) error {
	switch rec, err := s.Breaker.Get(s.Context, store.Default); {
	case isMissing(err): // a farm that runs creates it
	case isCorrupt(err):
		s.note("the record of the mass-stop breaker is unreadable: nothing is stopped until rcctl farm resume")
	case err != nil:
		return fmt.Errorf("read breaker: %w", err)
	case rec.Value.Tripped:
		s.note("farm %s tripped the mass-stop breaker at %s (%s): nothing is stopped until rcctl farm resume",
			clean(rec.Value.By), inspect.At(rec.Value.Since), clean(rec.Value.Reason))
	}
	return nil
}

func (s *conn) farmLeader(ctx context.Context) (string, error) {
	state, err := election.Read(ctx, s.consul, s.Keys().Prefix(), store.FarmLease)
	if isMissing(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the farms' leader: %w", err)
	}
	leader, _ := state.Leader()
	return leader, nil
}

func noteWitnesses(ctx context.Context, s *conn, now time.Time) error {
	schema, err := s.Schema.Get(ctx, store.Default)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the cluster's record: %w", err)
	}
	nodes, _, err := s.Nodes.List(ctx, store.Default) // rcctl nodes reports the unreadable ones
	if err != nil {
		return err
	}
	ops, _, err := s.NodeOps.List(ctx, store.Default)
	if err != nil {
		return err
	}
	opsOf := map[string]node.Ops{}
	for _, rec := range ops {
		opsOf[rec.Value.Name] = rec.Value
	}
	views := field.Each(nodes, func(rec store.Rec[node.Node]) *node.View {
		return node.NewView(rec.Value, opsOf[rec.Value.Name], rec.Session != "")
	})
	known := now.Sub(schema.Value.CreatedAt)
	w := store.WitnessesOf(schema.Value, views, now, known)
	for _, line := range inspect.WitnessLines(&schema.Value, &w, now) {
		s.note("%s", clean(line))
	}
	return nil
}

func notePushFailures(std *stdio, v *inspect.FarmView, now time.Time) {
	if v.Untold == nil {
		return
	}
	std.note("farm %s could not push to %d nodes; they read their intents by themselves after a while:",
		v.ID, v.Untold.Count)
	for _, n := range v.Untold.Nodes {
		std.note("  %s for %s: %s", clean(n.Node), heardText(&n.Since, now), clean(n.Reason))
	}
}

func farmRow(v *inspect.FarmView, now time.Time, wide bool) []string {
	heard := heardText(v.Heard, now)
	if v.Silent {
		heard = "silent " + heard
	}
	selects := v.RCSelector
	if v.RCID != "" {
		selects = "rc " + v.RCID
	}
	leads := ""
	if v.Leads {
		leads = "yes"
	}
	row := []string{v.ID, heard, leads, fmt.Sprint(v.Owned), v.Version, v.EmulationVersion, v.Address, selects}
	if !wide {
		return row
	}
	names := field.Each(v.OwnedRCs, func(r inspect.OwnedRC) string { return cmp.Or(r.Name, r.ID) })
	return append(row, strings.Join(names, ","))
}

func resumeCommand() *cli.Command {
	return leaf("resume", "reset the mass-stop breaker",
		`A farm trips the breaker before it would have stopped more than half of its pods within a minute, and 10 at
least. From then on no farm stops anything. Find out why first (rcctl audit --since 10m). Take back a change that was a
mistake before you reset the breaker, because farms then go on with it. Repeat a change that you mean with
--allow-mass-stop, or the breaker may trip again. This command also replaces a breaker record that cannot be read.

Examples:
  rcctl audit --since 10m
  rcctl rc scale web 1 --allow-mass-stop && rcctl farm resume`,
		onList(runResume),
	)
}

func runResume(s *conn) error {
	var line string // what changed; empty: the breaker is not tripped
	err := s.writing(s.Context, maxTries, func(ctx context.Context, by string) error {
		rec, err := s.Breaker.Get(ctx, store.Consistent)
		switch {
		case isMissing(err):
			return unwrittenf("there is no breaker below %s; a farm makes one when it runs", s.Keys().Prefix())
		case isCorrupt(err):
			line = "breaker: unreadable -> reset"
		case err != nil:
			return fmt.Errorf("read breaker: %w", err)
		case !rec.Value.Tripped:
			line = ""
			return nil
		default:
			line = fmt.Sprintf("breaker: tripped by %s since %s (%s) -> reset",
				rec.Value.By, inspect.At(rec.Value.Since), rec.Value.Reason)
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
		s.printLine("the breaker is not tripped; nothing was written")
	default:
		s.printLine("the farms may stop pods again\n  %s", clean(line))
	}
	return nil
}

func releaseHoldCommand() *cli.Command {
	return leaf("release-hold NODE", "let the farms go on without knowing what a machine runs",
		`After the records were wiped, restored or written for the first time, farms add, move and stop nothing before
every machine whose preparer passes in Consul's catalog has reported what it runs (condition Holding, which names the
others). Look at that preparer's log first: it shows why the preparer does not report. If it cannot, this command lets
the farms go on without it, until the records are wiped or restored again. The farms then do not know what runs there,
and may start its replicas a second time on other machines. If the machine reports later, farms adopt its pods, or stop
them as second copies.

Examples:
  rcctl rc explain web-r1
  rcctl farm release-hold node-17`,
		onConn(nodeName.only, runReleaseHold),
	)
}

func runReleaseHold(s *conn, name string) error {
	schema, err := s.Schema.Get(s.Context, store.Default)
	if isMissing(err) {
		return unwrittenf("there is no cluster below %s; a farm makes one when it runs", s.Keys().Prefix())
	}
	if err != nil {
		return fmt.Errorf("read the cluster's record: %w", err)
	}
	waits, why, err := waitsFor(s, name, schema.Value.Epoch)
	if err != nil {
		return err
	}
	if !waits {
		return unwrittenf("no farm waits for node %s: %s", name, why)
	}
	var change nodeChange
	err = s.writing(s.Context, maxNodeTries, func(ctx context.Context, by string) error {
		ops, err := s.NodeOps.Get(ctx, store.Consistent, name)
		if isMissing(err) { // its preparer may be unable to write the node's record, too
			ops.Value.Name, err = name, nil
		}
		if err != nil {
			return fmt.Errorf("read the operators' settings of node %s: %w", name, err)
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
	case isUnusable(err):
		return true, "", nil // its preparer cannot even write the node's record
	case err != nil:
		return false, "", fmt.Errorf("read node %s: %w", name, err)
	case rec.Value.WentBack >= epoch: // farms may wait for another node that reports the same
		return true, "", nil
	case rec.Value.Epoch == epoch && complete && rec.Value.OrphansLeftOut == 0:
		return false, "it has reported what it runs", nil
	}
	return true, "", nil
}

// computeRelease releases the hold for one epoch.
func computeRelease(ops node.Ops, epoch string) nodeChange {
	c := nodeChange{what: "release-hold", ops: ops}
	if ops.HoldReleased != epoch {
		c.ops.HoldReleased = epoch
		c.lines = []string{fmt.Sprintf("hold_released: %s -> %s", cmp.Or(ops.HoldReleased, "none"), epoch)}
	}
	return c
}
