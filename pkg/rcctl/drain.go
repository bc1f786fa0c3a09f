package rcctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func drainCommand() *cli.Command {
	return leaf("drain NODE [--deadline TIME [--force]] [--wait [--timeout 5m]]",
		"move every pod off a machine, and keep new ones away",
		`When this returns, nothing new can be placed on the node. The owners of its pods move them one at a time, and
keep the minimum of every controller. A pod of a static controller is not moved, nor one that no other node can take;
rcctl rc status shows them. Pods with volumes are static unless their document says dynamic: a warning names those that
move without their data, and those that remain with it. A pod that runs once and has ended is not moved either, because
it would run again elsewhere; --wait does not wait for it. With --force, pods that are left at the deadline are
stopped, unless their controller is disabled. Without --force, the drain is late after the deadline, and nothing else
follows. A second drain changes the options that are given and keeps the rest. --wait shows why the first remaining pod
does not move: no other node has its port free, for example.

Examples:
  rcctl node drain node-17 --wait
  rcctl node drain node-17 --deadline 10m --force --wait
  rcctl node undrain node-17`,
		onConn(readDrain, runDrain),
		option("deadline", "`TIME` from now, such as 10m, in which the pods should have moved"),
		toggle("force", "at the deadline, stop what could not be moved"),
		waitFlags("until no pod is left on the node that may still run"),
	)
}

func readDrain(c *cli.Context) (want wantedDrain, err error) {
	want = wantedDrain{now: time.Now().UTC().Truncate(time.Second), force: c.Bool("force")}
	if want.name, err = nodeName.only(c); err != nil || !c.IsSet("deadline") {
		return want, err
	}
	d, err := time.ParseDuration(c.String("deadline"))
	if err != nil || d < 0 {
		return want, badOption(c, "deadline",
			`a length of time of zero or more, such as "10m"; with --force, 0s stops at once what cannot be moved`)
	}
	at := want.now.Add(d)
	want.deadline = &at
	return want, nil
}

func runDrain(s *conn, want wantedDrain) error {
	change, err := changeNode(s.Context, s, want.name, func(ops node.Ops) (nodeChange, error) {
		done, ok := computeDrain(ops, want)
		if !ok {
			return done, badFlag(s.flags, "--force", "true",
				"together with --deadline, the time at which pods that could not move are stopped")
		}
		return done, nil
	})
	if err != nil {
		return err
	}
	printNodeChange(s.stdio, want.name, "draining", change)
	withVolumes, err := volumesOn(s.Context, s, want.name)
	if err != nil {
		s.caution(fmt.Sprintf("cannot read which pods have volumes on %s: %v", want.name, err))
	}
	for _, warning := range withVolumes.warnings(want.name, change.ops.Drain.Force) {
		s.caution(warning)
	}
	if s.Bool("wait") {
		return waitFor(s.Context, s.stdio, pending{
			subject: "node " + want.name, written: "the drain is written", goal: "drained",
			hint: "rcctl pods --node " + want.name, done: "node " + want.name + " is drained",
		}, limitOf(s.flags), (&draining{s: s, node: want.name}).look)
	}
	s.printLine("watch: rcctl pods --node %s", want.name)
	return nil
}

type volumePods struct {
	moving []string // to another node, without their data
	static []string // remain with their data
}

func (v volumePods) warnings(node string, force bool) (lines []string) {
	if len(v.moving) > 0 {
		lines = append(lines, fmt.Sprintf("these pods move and leave the data of their volumes on %s: %s; "+
			"to keep them there: rcctl node undrain %s",
			node, inspect.SomeOf(v.moving), node))
	}
	if len(v.static) > 0 && force {
		lines = append(lines, fmt.Sprintf("at the deadline these pods start elsewhere, and the data of their volumes "+
			"remains on %s: %s; to keep them there: rcctl node undrain %s",
			node, inspect.SomeOf(v.static), node))
	} else if len(v.static) > 0 {
		lines = append(lines, fmt.Sprintf("these pods remain on %s with the data of their volumes: %s; "+
			"to start them elsewhere without it: rcctl node drain %s --deadline 0s --force",
			node, inspect.SomeOf(v.static), node))
	}
	return lines
}

// volumesOn leaves out pods that a drain does not move: they have ended, are of disabled controllers, or their
// controller or manifest is gone.
func volumesOn(ctx context.Context, s *conn, name string) (found volumePods, err error) {
	intents, _, err := s.Intents.List(ctx, store.Default, name)
	if err != nil {
		return found, err
	}
	left, err := notEnded(ctx, s, name, values(intents))
	if err != nil {
		return found, err
	}
	controllers, manifests := map[string]*rc.RC{}, map[string]*manifest.Manifest{}
	for _, in := range left {
		if _, known := manifests[in.Digest]; !known {
			if manifests[in.Digest], _, err = readable(s.SignedManifest(ctx, in.Digest)); err != nil {
				return found, err
			}
		}
		volumes := manifests[in.Digest].VolumeNames()
		if len(volumes) == 0 || in.State != pod.Running {
			continue
		}
		if _, known := controllers[in.RCID]; !known {
			if controllers[in.RCID], err = present(s.RCs.Get(ctx, store.Default, in.RCID)); err != nil {
				return found, err
			}
		}
		of := fmt.Sprintf("%s (%s)", inspect.PodName(in.PodID, in.Identity), strings.Join(volumes, ", "))
		switch r := controllers[in.RCID]; {
		case r == nil || r.EachNode() || r.DeletedAt != nil || r.Disabled:
		case r.Strategy == rc.Static:
			found.static = append(found.static, of)
		default:
			found.moving = append(found.moving, of)
		}
	}
	slices.Sort(found.moving)
	slices.Sort(found.static)
	return found, nil
}

type wantedDrain struct {
	name     string
	now      time.Time
	deadline *time.Time // nil: not given
	force    bool
}

// computeDrain begins or changes a drain. ok is false if pods are to be stopped without a deadline.
func computeDrain(ops node.Ops, want wantedDrain) (c nodeChange, ok bool) {
	c = nodeChange{what: "drain", ops: ops}
	next := node.Drain{Since: want.now}
	if ops.Drain != nil {
		next = *ops.Drain
	} else {
		c.lines = append(c.lines, "drain: none -> since "+next.Since.Format(time.RFC3339))
	}
	if want.deadline != nil && (next.Deadline == nil || !next.Deadline.Equal(*want.deadline)) {
		c.lines = append(c.lines,
			fmt.Sprintf("drain.deadline: %s -> %s", timeText(next.Deadline), timeText(want.deadline)))
		next.Deadline = want.deadline
	}
	if want.force && !next.Force {
		c.lines = append(c.lines, "drain.force: false -> true")
		next.Force = true
	}
	c.ops.Drain = &next
	return c, !next.Force || next.Deadline != nil
}

func timeText(at *time.Time) string {
	if at == nil {
		return "none"
	}
	return inspect.At(*at)
}

func undrainCommand() *cli.Command {
	return leaf("undrain NODE", "end a drain: pods may be placed on the machine again",
		`Pods that have moved off do not come back by themselves. This does not end a cordon: rcctl node uncordon.

Examples:
  rcctl node undrain node-17`,
		onNode("undrained", computeUndrain),
	)
}

func computeUndrain(ops node.Ops) nodeChange {
	c := nodeChange{what: "undrain", ops: ops}
	if ops.Drain != nil {
		c.lines = []string{"drain: since " + inspect.At(ops.Drain.Since) + " -> none"}
	}
	c.ops.Drain = nil
	return c
}

type draining struct {
	s    *conn
	node string
	why  string    // why a pod has not moved, when its controller was last read
	next time.Time // when to read its controller again
}

func (d *draining) look(ctx context.Context) (line string, done bool, err error) {
	left, err := leftOn(ctx, d.s, d.node)
	if err != nil || len(left) == 0 {
		return "", err == nil, err
	}
	if began := time.Now(); !began.Before(d.next) {
		if why, err := whyLeft(ctx, d.s, d.node, left); err == nil { // without it, the line is shorter
			d.why = why
		}
		d.next = time.Now().Add(max(podsEvery, podsRest*time.Since(began)))
	}
	line = textOf(left)
	if d.why != "" {
		line += "; " + d.why
	}
	return line, false, nil
}

func textOf(left []pod.Intent) string {
	names := field.Each(left, func(in pod.Intent) string {
		return fmt.Sprintf("%s-%s-%d", in.PodID, in.Role, in.Index)
	})
	slices.Sort(names)
	return fmt.Sprintf("%s left: %s", field.Count(len(left), "pod"), inspect.SomeOf(names))
}

// maxWhyLeft is how many controllers whyLeft reads.
const maxWhyLeft = 3

// whyLeft returns the first reason that it finds why a pod is still on its node, "" for none.
func whyLeft(ctx context.Context, s *conn, node string, left []pod.Intent) (string, error) {
	looked := map[string]bool{}
	for _, in := range left {
		if looked[in.RCID] || len(looked) == maxWhyLeft {
			continue
		}
		looked[in.RCID] = true
		r, err := present(s.RCs.Get(ctx, store.Default, in.RCID))
		if err != nil {
			return "", err
		}
		if r == nil {
			continue
		}
		sit, _, err := situationOf(ctx, s, r)
		if err != nil {
			return "", err
		}
		if why := inspect.WhyStays(sit, node); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// leftOn returns the pods that are left on a node. They have an intent, because the owner removes it only when the node
// has reported the stop.
func leftOn(ctx context.Context, s *conn, name string) ([]pod.Intent, error) {
	recs, bad, err := s.Intents.List(ctx, store.Default, name)
	if err == nil {
		err = errors.Join(bad...)
	}
	if err != nil {
		return nil, err
	}
	ops, err := s.NodeOps.Get(ctx, store.Consistent, name)
	if err != nil {
		return nil, err
	}
	if ops.Value.Drain == nil {
		return nil, refusedf("node %s: the drain was ended before the node was drained", name)
	}
	return notEnded(ctx, s, name, values(recs))
}

// notEnded leaves out pods that run once and have ended, because a drain does not move them. A pod with an unreadable
// report or manifest may still run.
func notEnded(ctx context.Context, s *conn, name string, all []pod.Intent) (left []pod.Intent, err error) {
	at := field.Each(all, func(in pod.Intent) store.At { return store.At{Node: name, Identity: in.Identity} })
	reports, _, err := s.RealitiesAt(ctx, at, store.Default)
	if err != nil {
		return nil, err
	}
	once := map[string]bool{} // by digest
	for i, in := range all {
		r, is := reports[at[i]]
		if !is || in.State != pod.Running || !r.Ended(in.Digest) {
			left = append(left, in)
			continue
		}
		if _, known := once[in.Digest]; !known {
			m, err := s.Manifest(ctx, in.Digest)
			once[in.Digest] = err == nil && m.RunsOnce()
		}
		if !once[in.Digest] {
			left = append(left, in)
		}
	}
	return left, nil
}
