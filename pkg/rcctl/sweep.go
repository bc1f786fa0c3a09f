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
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func sweepCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "sweep", Usage: "stop what runs on a machine without a controller, and release what is reserved for nothing",
		UsageText: "rcctl node sweep NODE [--dry-run] [--force]",
		Description: `Pods that the node lists as orphans and whose controller has no record are stopped; orphans of a controller that
exists are left to its owner, which adopts them. Where placements are left of a controller without a record, all of
them go, on other machines too. Pods that the node is told of, and that have neither a controller nor a placement,
are stopped, and what it was told goes once the node confirms that; a report of such a pod that the node does not have
is removed, unless its preparer is away. Shares of the node that are reserved for pods which
are neither placed there nor run there are released. All but the reports is asked of the farms, which carry it out.

Where no controller at all has a record, the records are probably lost, and the pods are what is left: then it is
refused unless --force is given.

Examples:
  rcctl node sweep node-17 --dry-run
  rcctl node sweep node-17`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "dry-run", Usage: "only say what would be asked"},
			&cli.BoolFlag{Name: "force", Usage: "stop orphans although no controller has a record"},
		},
		Action: onConn(nodeName.only, runSweep),
	})
}

// inventory is what one node has and who has to do with it.
type inventory struct {
	node       string
	orphans    []pod.Orphan
	leftOut    int // orphans that the record had no room for
	told       []pod.Intent
	unreadable []error // what the node is told, or reports, and cannot be read
	reports    []store.Rec[pod.Reality]
	away       bool // there is such a node, and nobody holds its record
	claims     map[string]node.Claim
	rcs        map[string]bool // ids of the controllers that have a record
	placements []pod.Placement
}

// sweepPlan is what a sweep asks for.
type sweepPlan struct {
	orphans     []pod.Orphan             // to be stopped
	told        []pod.Intent             // that nobody else knows of: to be stopped
	reports     []store.Rec[pod.Reality] // of what nobody knows of, the node included: to be removed
	waiting     int                      // such reports of a node that is away
	strays      []pod.Placement          // of controllers without a record that have to do with the node: to be stopped, wherever they are
	repairs     []string                 // ids of controllers whose claims are to be looked at
	leaked      map[string][]string      // the claims, by controller
	unexplained []string                 // claims that do not say whose they are
	adopted     int                      // orphans that their owners see to
}

// planSweep decides what to ask for. It is computed without I/O.
func planSweep(in inventory) sweepPlan {
	plan := sweepPlan{leaked: map[string][]string{}}
	expected := map[pod.Identity]bool{}
	for _, o := range in.orphans {
		expected[o.Identity] = true
		if in.rcs[o.RCID] {
			plan.adopted++
		} else {
			plan.orphans = append(plan.orphans, o)
		}
	}
	gone := map[string]bool{} // controllers without a record
	for _, o := range plan.orphans {
		gone[o.RCID] = true
	}
	placed := map[pod.Identity]bool{}
	for i := range in.placements {
		p := &in.placements[i]
		placed[p.Identity] = true
		if p.Node == in.node && !in.rcs[p.RCID] {
			gone[p.RCID] = true
		}
		if p.Node == in.node || slices.ContainsFunc(p.Ghosts, func(g pod.Ghost) bool { return g.Node == in.node }) {
			expected[p.Identity] = true
		}
	}
	for i := range in.told {
		if t := &in.told[i]; !in.rcs[t.RCID] && !placed[t.Identity] && !t.Local() {
			plan.told, expected[t.Identity], gone[t.RCID] = append(plan.told, *t), true, true
		}
	}
	for i := range in.placements {
		if gone[in.placements[i].RCID] {
			plan.strays = append(plan.strays, in.placements[i])
		}
	}
	plan.addReports(&in, expected, placed)
	for _, key := range slices.Sorted(maps.Keys(in.claims)) {
		switch id := in.claims[key].Pod; {
		case expected[id], in.leftOut > 0: // an orphan that is not listed may hold it
		case id.Local(): // the node's own, which it looks after
		case id.RCID == "":
			plan.unexplained = append(plan.unexplained, key)
		default:
			plan.leaked[id.RCID] = append(plan.leaked[id.RCID], key)
		}
	}
	plan.repairs = slices.Sorted(maps.Keys(plan.leaked))
	return plan
}

// addReports adds the reports of pods that neither a controller, a placement nor an intent tells of, and that the node does not run.
func (p *sweepPlan) addReports(in *inventory, expected, placed map[pod.Identity]bool) {
	told := map[pod.Identity]bool{}
	for i := range in.told {
		told[in.told[i].Identity] = true
	}
	for _, rec := range in.reports {
		id := rec.Value.Identity
		switch {
		case in.rcs[id.RCID] || expected[id] || placed[id] || told[id] || id.Local():
		case in.away, in.leftOut > 0:
			p.waiting++
		default:
			p.reports = append(p.reports, rec)
		}
	}
}

// takeInventory reads what a sweep is decided from.
func takeInventory(ctx context.Context, s *conn, name string) (inventory, error) {
	in := inventory{node: name, rcs: map[string]bool{}}
	told, corrupt, err := s.Intents.List(ctx, store.Consistent, name) // first: what has one by then was placed before
	if err != nil {
		return in, fmt.Errorf("read what node %s is told: %w", name, err)
	}
	in.told, in.unreadable = values(told), corrupt
	if in.reports, corrupt, err = s.Realities.List(ctx, store.Consistent, name); err != nil {
		return in, fmt.Errorf("read what node %s reports: %w", name, err)
	}
	in.unreadable = append(in.unreadable, corrupt...)
	index, held, err := s.NodeLock(ctx, name)
	if err != nil {
		return in, fmt.Errorf("read node %s: %w", name, err)
	}
	in.away = index != 0 && !held
	rec, complete, err := s.NodeOrphans(ctx, name)
	switch {
	case errors.Is(err, store.ErrNotFound) && len(told)+len(in.reports) > 0:
	case errors.Is(err, store.ErrNotFound):
		return in, notFoundf("no node has the name %q; rcctl nodes shows all", name)
	case err != nil:
		return in, fmt.Errorf("read node %s: %w", name, err)
	case !complete:
		return in, refusedf("node %s is writing the list of what it runs; try again, and if that is of no use, look at its preparer; nothing was written", name)
	}
	in.orphans, in.leftOut = rec.Value.Orphans, rec.Value.OrphansLeftOut
	found, unreadable, err := s.ReservationsOf(ctx, []string{name})
	if err = errors.Join(err, unreadable[name]); err != nil {
		return in, fmt.Errorf("read what is reserved on node %s: %w", name, err)
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
	if n := len(plan.orphans) + len(plan.told) + len(plan.strays); len(in.rcs) == 0 && n > 0 && !s.Bool("force") && !s.Bool("dry-run") {
		return refusedf("node %s: %s run without a controller, and no controller has a record: were the records lost? Write them back (docs/runbook.md), or add --force; nothing was written",
			name, field.Count(n, "pod"))
	}
	if !s.Bool("dry-run") {
		if err := askSweep(s.Context, s, name, plan); err != nil {
			return err
		}
	}
	printSweep(s.stdio, name, plan, s.Bool("dry-run"), in.leftOut)
	for _, err := range in.unreadable {
		fmt.Fprintf(s.err, "rcctl: node %s: %v; it is left as it is\n", name, err)
	}
	return nil
}

// askSweep leaves the requests, each with an audit record.
func askSweep(ctx context.Context, s *conn, name string, plan sweepPlan) error {
	for i := range plan.orphans {
		o := &plan.orphans[i]
		err := leaveRequest(ctx, s, store.Request{RCID: o.RCID, Kind: store.SweepOrphan, Node: name, Pod: o.Identity},
			fmt.Sprintf("stop %s on %s: it runs without a controller", inspect.PodName(o.PodID, o.Identity), name))
		if err != nil {
			return err
		}
	}
	for i := range plan.told {
		t := &plan.told[i]
		err := leaveRequest(ctx, s, store.Request{RCID: t.RCID, Kind: store.SweepOrphan, Node: name, Pod: t.Identity},
			fmt.Sprintf("stop %s on %s: neither a controller nor a placement tells of it", inspect.PodName(t.PodID, t.Identity), name))
		if err != nil {
			return err
		}
	}
	for i := range plan.strays {
		p := &plan.strays[i]
		if i > 0 && plan.strays[i-1].RCID == p.RCID {
			continue // one request is enough for all that is left of a controller
		}
		err := leaveRequest(ctx, s, store.Request{RCID: p.RCID, Kind: store.SweepOrphan, Node: p.Node, Pod: p.Identity},
			fmt.Sprintf("stop what is left of rc %s: it has no record", p.RCID))
		if err != nil {
			return err
		}
	}
	for _, id := range plan.repairs {
		err := leaveRequest(ctx, s, store.Request{RCID: id, Kind: store.RepairReservation, Node: name},
			fmt.Sprintf("release %s on %s: no pod is there", strings.Join(plan.leaked[id], ", "), name))
		if err != nil {
			return err
		}
	}
	return removeReports(ctx, s, name, plan.reports) // last: the node may write them again and again
}

// removeReports removes reports that are about nothing. One that is about something by now, or is not as it was, keeps all of a transaction there, and
// nothing else.
func removeReports(ctx context.Context, s *conn, name string, reports []store.Rec[pod.Reality]) error {
	author, err := s.who(ctx)
	if err != nil {
		return err
	}
	var moved error
	for part := range slices.Chunk(reports, store.ReportsPerTxn) {
		lines := field.Each(part, func(r store.Rec[pod.Reality]) string {
			return fmt.Sprintf("remove the report of %s on %s: nothing else tells of it", r.Value.Identity, name)
		})
		err := s.Operator.RemoveReports(ctx, name, part, store.NewAudit(author, "sweep-reports", "", lines).OnNodes(name))
		_ = s.did(fmt.Sprintf("the removal of %s of node %s", field.Count(len(part), "report"), name), "rcctl audit --node "+name, err)
		switch {
		case errors.Is(err, store.ErrConflict):
			moved = fmt.Errorf("remove reports of node %s: one was written meanwhile, all else is done; sweep again: %w", name, err)
		case err != nil:
			return fmt.Errorf("remove reports of node %s: %w", name, err)
		}
	}
	return moved
}

// leaveRequest leaves one request for the owner of a controller. It may be asked twice where the first outcome is unknown, which
// does no harm. An id that the request has already stays. It is refused where the request is about a node that has come back.
func leaveRequest(ctx context.Context, s *conn, r store.Request, line string) error {
	author, err := s.who(ctx)
	if err != nil {
		return err
	}
	r.ID, r.By, r.At = cmp.Or(r.ID, store.NewID()), author, time.Now().UTC()
	err = s.Operator.Ask(ctx, r, store.NewAudit(author, string(r.Kind), r.RCID, []string{line}).OnNodes(r.Node))
	_ = s.did("the request to "+line, "rcctl audit --node "+r.Node, err)
	if errors.Is(err, store.ErrConflict) {
		return refusedf("node %s: its preparer was back a moment ago, or its record was removed; nothing was written; look again", r.Node)
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
		fmt.Fprintf(std.out, "%s stop %s (rc %s)\n", verb, inspect.PodName(o.PodID, o.Identity), o.RCID)
	}
	for i := range plan.told {
		t := &plan.told[i]
		fmt.Fprintf(std.out, "%s stop %s (rc %s, which has no record, and no placement tells of it)\n", verb, inspect.PodName(t.PodID, t.Identity), t.RCID)
	}
	for i := range plan.strays {
		p := &plan.strays[i]
		fmt.Fprintf(std.out, "%s stop %s on %s (rc %s, which has no record)\n", verb, inspect.PodName(p.PodID, p.Identity), p.Node, p.RCID)
	}
	for _, r := range plan.reports {
		fmt.Fprintf(std.out, "%s the report of %s (%s), which nothing else tells of\n", removed, r.Value.Identity, r.Value.State)
	}
	for _, id := range plan.repairs {
		for _, key := range plan.leaked[id] {
			fmt.Fprintf(std.out, "%s release the share of %s\n", verb, key)
		}
	}
	for _, key := range plan.unexplained {
		fmt.Fprintf(std.err, "rcctl: node %s: a share is held for %s, which does not say whose it is; it is left alone\n", name, key)
	}
	if plan.waiting > 0 {
		fmt.Fprintf(std.err, "rcctl: node %s: nothing but %s tells of pods there; what it runs is not known while its preparer is away, or lists only some of its orphans\n", name, field.Count(plan.waiting, "report"))
	}
	if plan.adopted > 0 {
		fmt.Fprintf(std.err, "rcctl: node %s: %s without an intent belong to controllers that exist; their owners adopt them\n", name, field.Count(plan.adopted, "pod"))
	}
	if leftOut > 0 {
		fmt.Fprintf(std.err, "rcctl: node %s lists only some of its orphans, %d are left out; sweep again when these are gone\n", name, leftOut)
	}
	if len(plan.orphans)+len(plan.told)+len(plan.strays)+len(plan.repairs)+len(plan.reports) == 0 {
		fmt.Fprintf(std.out, "node %s: nothing to sweep; nothing was written\n", name)
	} else if !dry {
		fmt.Fprintf(std.out, "watch: rcctl pods --node %s\n", name)
	}
}
