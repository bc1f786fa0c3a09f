package rcctl

import (
	"cmp"
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
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/ownerless"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func sweepCommand() *cli.Command {
	return leaf("sweep NODE [--dry-run] [--force]",
		"stop the pods on a machine that have no controller, and release unused reservations",
		`It stops orphans of the node whose controller has no record. It leaves orphans of an existing controller to
its owner, which adopts them. If placements of a controller without a record are left, it removes all of them, also on
other machines. It stops pods that have an intent but neither a controller nor a placement; the intent is removed once
the node confirms the stop. It removes the report of such a pod if the node does not run it, unless the preparer is
away. It releases shares of the node for pods that are neither placed nor run there. The command itself removes the
reports; for all else it leaves requests, which farms carry out.

If no controller at all has a record, the records are probably lost, and the pods are all that is left. Then it is
refused unless --force is given.

Examples:
  rcctl node sweep node-17 --dry-run
  rcctl node sweep node-17`,
		onConn(nodeName.only, runSweep), toggle("dry-run", "only show what would be done"),
		toggle("force", "stop orphans although no controller has a record"),
	)
}

// inventory has the records of one node, and the controllers and placements that explain them.
type inventory struct {
	node       string
	orphans    []pod.Orphan
	leftOut    int // orphans that the node's record has no space for
	intents    []pod.Intent
	unreadable []error // about intents and reports
	reports    []store.Rec[pod.Reality]
	away       bool // the node has a record, and no preparer holds its lock
	claims     map[string]node.Claim
	rcs        map[string]bool // ids of the controllers that have a record
	placements []pod.Placement
}

type sweepPlan struct {
	orphans []pod.Orphan             // to stop
	intents []pod.Intent             // without a placement: to stop
	reports []store.Rec[pod.Reality] // of pods without any other record, which the node does not run: to remove
	waiting int                      // such reports that cannot be removed now
	// on any node, of controllers that have no record but have pods on this node: to stop
	strays      []pod.Placement
	repairs     []string            // ids of controllers with shares to release
	leaked      map[string][]string // the shares, by controller
	unexplained []string            // shares that name no pod
	adopted     int                 // orphans that their owners adopt
}

func planSweep(in inventory) sweepPlan {
	plan := sweepPlan{leaked: map[string][]string{}}
	known, records, keys := in.records()
	whole := ^ownerless.Facts(0)
	if in.leftOut > 0 {
		whole &^= ownerless.Orphan
	}
	gone := map[string]bool{} // controllers without a record that have pods on the node
	for _, f := range ownerless.Scan(whole, known, records) {
		switch f.Kind.Name {
		case ownerless.Adoptable:
			plan.adopted++
		case ownerless.Running:
			plan.orphans, gone[f.RCID()] = append(plan.orphans, in.orphans[f.N]), true
		case ownerless.OrphanedIntent:
			plan.intents, gone[f.RCID()] = append(plan.intents, in.intents[f.N]), true
		case ownerless.Stray:
			gone[f.RCID()] = gone[f.RCID()] || f.Node == in.node
		case ownerless.OrphanedReport:
			switch {
			case f.Has&(ownerless.Intent|ownerless.Orphan) != 0: // removed together with the intent or the orphan
			case in.away, in.leftOut > 0:
				plan.waiting++
			default:
				plan.reports = append(plan.reports, in.reports[f.N])
			}
		case ownerless.Nameless:
			plan.unexplained = append(plan.unexplained, keys[f.N])
		case ownerless.Leak:
			plan.leaked[f.RCID()] = append(plan.leaked[f.RCID()], keys[f.N])
		default: // removed together with another record, or by the farms
		}
	}
	plan.strays = slices.DeleteFunc(slices.Clone(in.placements), func(p pod.Placement) bool { return !gone[p.RCID] })
	plan.repairs = slices.Sorted(maps.Keys(plan.leaked))
	return plan
}

// records also returns the sorted keys of the claims.
func (in *inventory) records() (known ownerless.Known, records []ownerless.Record, keys []string) {
	known = ownerless.Known{}
	known.Note(ownerless.Each(ownerless.Controller, slices.Collect(maps.Keys(in.rcs)))...)
	for i := range in.placements {
		records = append(records, known.Place(&in.placements[i]))
	}
	here := func(of ownerless.Facts, n int, id pod.Identity) {
		r := ownerless.Record{Of: of, Node: in.node, About: id.String(), N: n}
		known.Note(r)
		records = append(records, r)
	}
	for i := range in.orphans {
		here(ownerless.Orphan, i, in.orphans[i].Identity)
	}
	for i := range in.intents {
		here(ownerless.Intent, i, in.intents[i].Identity)
	}
	for i := range in.reports {
		here(ownerless.Report, i, in.reports[i].Value.Identity)
	}
	keys = slices.Sorted(maps.Keys(in.claims))
	for i, key := range keys {
		here(ownerless.Share, i, in.claims[key].Pod)
	}
	return known, records, keys
}

func takeInventory(ctx context.Context, s *conn, name string) (inventory, error) {
	in := inventory{node: name, rcs: map[string]bool{}}
	// intents first: a placement is written no later than its intent, so the later read of placements has it
	intents, corrupt, err := s.Intents.List(ctx, store.Consistent, name)
	if err != nil {
		return in, fmt.Errorf("read the intents of node %s: %w", name, err)
	}
	in.intents, in.unreadable = values(intents), corrupt
	if in.reports, corrupt, err = s.Realities.List(ctx, store.Consistent, name); err != nil {
		return in, fmt.Errorf("read the reports of node %s: %w", name, err)
	}
	in.unreadable = append(in.unreadable, corrupt...)
	index, held, err := s.NodeLock(ctx, name)
	if err != nil {
		return in, fmt.Errorf("read node %s: %w", name, err)
	}
	in.away = index != 0 && !held
	rec, complete, err := s.NodeOrphans(ctx, name)
	switch {
	case isMissing(err) && len(intents)+len(in.reports) > 0:
	case isMissing(err):
		return in, noNode(name)
	case err != nil:
		return in, fmt.Errorf("read node %s: %w", name, err)
	case !complete:
		return in,
			unwrittenf("node %s is writing the list of what it runs; try again, and if that does not help, look "+
				"at the log of its preparer", name)
	}
	in.orphans, in.leftOut = rec.Value.Orphans, rec.Value.OrphansLeftOut
	found, unreadable, err := s.ReservationsOf(ctx, []string{name})
	if err = errors.Join(err, unreadable[name]); err != nil {
		return in, fmt.Errorf("read the reservation of node %s: %w", name, err)
	}
	in.claims = found[name].Value.Claims
	placements, bad, err := s.Pods.List(ctx, store.Default)
	if err = errors.Join(append(bad, err)...); err != nil {
		return in, fmt.Errorf("read placements: %w", err)
	}
	in.placements = values(placements)
	ids, err := s.RCs.IDs(ctx)
	for _, id := range ids {
		in.rcs[id] = true
	}
	return in, err
}

func runSweep(s *conn, name string) error {
	in, err := takeInventory(s.Context, s, name)
	if err != nil {
		return err
	}
	plan := planSweep(in)
	n := len(plan.orphans) + len(plan.intents) + len(plan.strays)
	if len(in.rcs) == 0 && n > 0 && !s.Bool("force") && !s.Bool("dry-run") {
		return unwrittenf("node %s: %s run without a controller, and no controller has a record; if the records were "+
			"lost, write them back (docs/runbook.md), else add --force",
			name, field.Count(n, "pod"))
	}
	if !s.Bool("dry-run") {
		if err := askSweep(s.Context, s, name, plan); err != nil {
			return err
		}
	}
	printSweep(s.stdio, name, plan, s.Bool("dry-run"), in.leftOut)
	for _, err := range in.unreadable {
		s.note("node %s: %v; it is left as it is", name, err)
	}
	return nil
}

func askSweep(ctx context.Context, s *conn, name string, plan sweepPlan) (err error) {
	ask := func(r store.Request, format string, args ...any) {
		if err == nil {
			err = leaveRequest(ctx, s, r, fmt.Sprintf(format, args...))
		}
	}
	stop := func(id pod.Identity, node, format string, args ...any) {
		ask(store.Request{RCID: id.RCID, Kind: store.SweepOrphan, Node: node, Pod: id}, format, args...)
	}
	for _, o := range plan.orphans {
		stop(o.Identity, name, "stop %s on %s: it runs without a controller",
			inspect.PodName(o.PodID, o.Identity), name)
	}
	for _, in := range plan.intents {
		stop(in.Identity, name, "stop %s on %s: it has neither a controller nor a placement",
			inspect.PodName(in.PodID, in.Identity), name)
	}
	for i, p := range plan.strays {
		if i == 0 || plan.strays[i-1].RCID != p.RCID { // one request is enough for all placements of a controller
			stop(p.Identity, p.Node, "stop what is left of rc %s: it has no record", p.RCID)
		}
	}
	for _, id := range plan.repairs {
		ask(store.Request{RCID: id, Kind: store.RepairReservation, Node: name}, "release %s on %s: no pod is there",
			strings.Join(plan.leaked[id], ", "), name)
	}
	if err != nil {
		return err
	}
	return removeReports(ctx, s, name, plan.reports) // last, because it fails if the node keeps writing them
}

// removeReports removes reports of pods without any other record. If one has another record by now, or a new report,
// its transaction removes nothing; the others are still made.
func removeReports(ctx context.Context, s *conn, name string, reports []store.Rec[pod.Reality]) error {
	author, err := s.who(ctx)
	if err != nil {
		return err
	}
	var moved error
	for part := range slices.Chunk(reports, store.ReportsPerTxn) {
		lines := field.Each(part, func(r store.Rec[pod.Reality]) string {
			return fmt.Sprintf("remove the report of %s on %s: the pod has no other record", r.Value.Identity, name)
		})
		err := s.Operator.RemoveReports(ctx, name, part,
			store.NewAudit(author, "sweep-reports", "", lines).OnNodes(name))
		_ = s.did(fmt.Sprintf("the removal of %s of node %s", field.Count(len(part), "report"), name),
			"rcctl audit --node "+name, err)
		switch {
		case errors.Is(err, store.ErrConflict):
			const text = "remove reports of node %s: one was written meanwhile, all else is done; sweep again: %w"
			moved = fmt.Errorf(text, name, err)
		case err != nil:
			return fmt.Errorf("remove reports of node %s: %w", name, err)
		}
	}
	return moved
}

// leaveRequest writes a request for the owner of a controller. A second one after an unknown outcome does no harm. It
// keeps an id that is set. It returns refusedf if the node has come back.
func leaveRequest(ctx context.Context, s *conn, r store.Request, line string) error {
	author, err := s.who(ctx)
	if err != nil {
		return err
	}
	r.ID, r.By, r.At = cmp.Or(r.ID, store.NewID()), author, time.Now().UTC()
	err = s.Operator.Ask(ctx, r, store.NewAudit(author, string(r.Kind), r.RCID, []string{line}).OnNodes(r.Node))
	_ = s.did("the request to "+line, "rcctl audit --node "+r.Node, err)
	if errors.Is(err, store.ErrConflict) {
		return refusedf("node %s: its preparer came back meanwhile, or its record was removed; nothing was written; "+
			"look again: rcctl nodes", r.Node)
	}
	if err != nil {
		return fmt.Errorf("ask for %s of rc %s: %w", r.Kind, r.RCID, err)
	}
	return nil
}

func printSweep(std *stdio, name string, plan sweepPlan, dry bool, leftOut int) {
	verb, removed := "asked to", "removed"
	if dry {
		verb, removed = "would ask to", "would remove"
	}
	for _, o := range plan.orphans {
		std.printLine("%s stop %s (rc %s)", verb, inspect.PodName(o.PodID, o.Identity), o.RCID)
	}
	for _, in := range plan.intents {
		std.printLine("%s stop %s (rc %s, which has no record; the pod has no placement)",
			verb, inspect.PodName(in.PodID, in.Identity), in.RCID)
	}
	for _, p := range plan.strays {
		std.printLine("%s stop %s on %s (rc %s, which has no record)",
			verb, inspect.PodName(p.PodID, p.Identity), p.Node, p.RCID)
	}
	for _, r := range plan.reports {
		std.printLine("%s the report of %s (%s), a pod without any other record",
			removed, r.Value.Identity, r.Value.State)
	}
	for _, id := range plan.repairs {
		for _, key := range plan.leaked[id] {
			std.printLine("%s release the share of %s", verb, key)
		}
	}
	for _, key := range plan.unexplained {
		std.note("node %s: the share %s names no pod; it is left as it is", name, key)
	}
	if plan.waiting > 0 {
		std.note("node %s: %s of pods without any other record; they are left as they are, because its preparer is "+
			"away, or lists only some of its orphans, so the pods may run", name, field.Count(plan.waiting, "report"))
	}
	if plan.adopted > 0 {
		std.note("node %s: %s without an intent belong to controllers that exist; their owners adopt them",
			name, field.Count(plan.adopted, "pod"))
	}
	if leftOut > 0 {
		std.note("node %s lists only some of its orphans, %d are left out; sweep again when these are gone",
			name, leftOut)
	}
	if len(plan.orphans)+len(plan.intents)+len(plan.strays)+len(plan.repairs)+len(plan.reports) == 0 {
		std.printLine("node %s: nothing to sweep; nothing was written", name)
	} else if !dry {
		std.printLine("watch: rcctl pods --node %s", name)
	}
}
