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
	return leaf(&cli.Command{
		Name: "drain", Usage: "move every pod off a machine, and keep new ones away",
		UsageText: "rcctl node drain NODE [--deadline TIME [--force]] [--wait [--timeout 5m]]",
		Description: `From the moment this returns nothing new can be placed on the node. The owners of its pods move them one at a
time, without taking any controller below its minimum. A pod of a static controller, and one whose controller has
no room to move, stays; rcctl rc status says so. Pods with volumes are static unless their document says dynamic: a
warning names those that move without their data, and those that stay with it. A pod that runs once and has ended stays, too, and nobody waits for
it: elsewhere it would run again. With --force what is left at the deadline is stopped, unless its
controller is disabled; without it the deadline only says from when on a drain is late. Draining again changes what is given and keeps the rest.
--wait says of the first pod that stays why: no other node has its port free, for example.

Examples:
  rcctl node drain node-17 --wait
  rcctl node drain node-17 --deadline 10m --force --wait
  rcctl node undrain node-17`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "deadline", Usage: "`TIME` from now, such as 10m, in which the pods should have moved"},
			&cli.BoolFlag{Name: "force", Usage: "at the deadline, stop what could not be moved"},
		}, waitFlags("until no pod is left on the node that may still run")...),
		Action: onConn(readDrain, runDrain),
	})
}

func readDrain(c *cli.Context) (want wantedDrain, err error) {
	want = wantedDrain{now: time.Now().UTC().Truncate(time.Second), force: c.Bool("force")}
	if want.name, err = nodeName.only(c); err != nil || !c.IsSet("deadline") {
		return want, err
	}
	d, err := time.ParseDuration(c.String("deadline"))
	if err != nil || d < 0 {
		return want, badFlag(c, "--deadline", c.String("deadline"), `a length of time of zero or more, such as "10m"; with --force, 0s stops at once what cannot be moved`)
	}
	at := want.now.Add(d)
	want.deadline = &at
	return want, nil
}

func runDrain(s *conn, want wantedDrain) error {
	change, err := changeNode(s.Context, s, want.name, func(ops node.Ops) (nodeChange, error) {
		done, ok := computeDrain(ops, want)
		if !ok {
			return done, badFlag(s.flags, "--force", "true", "together with --deadline, which says when pods that cannot be moved are stopped")
		}
		return done, nil
	})
	if err != nil {
		return err
	}
	printNodeChange(s.stdio, want.name, "draining", change)
	held, err := volumesOn(s.Context, s, want.name)
	if err != nil {
		s.caution(fmt.Sprintf("which pods have volumes on %s could not be read: %v", want.name, err))
	}
	for _, warning := range held.warnings(want.name, change.ops.Drain.Force) {
		s.caution(warning)
	}
	if s.Bool("wait") {
		return waitFor(s.Context, s.stdio, pending{
			subject: "node " + want.name, written: "the drain is written", goal: "drained", hint: "rcctl pods --node " + want.name, done: "node " + want.name + " is drained",
		}, limitOf(s.flags), (&draining{s: s, node: want.name}).look)
	}
	fmt.Fprintf(s.out, "watch: rcctl pods --node %s\n", want.name)
	return nil
}

// held are pods of a node that have volumes there, such as "web-main-0 (data, cache)".
type held struct {
	moves []string // to another node, without their data
	stays []string // where their data is
}

// warnings says what a drain means for the data.
func (h held) warnings(node string, force bool) (lines []string) {
	if len(h.moves) > 0 {
		lines = append(lines, fmt.Sprintf("these pods move and leave the data of their volumes on %s: %s; to keep them: rcctl node undrain %s",
			node, inspect.SomeOf(h.moves), node))
	}
	if len(h.stays) > 0 && force {
		lines = append(lines, fmt.Sprintf("at the deadline these pods start elsewhere, and the data of their volumes stays on %s: %s; to keep them: rcctl node undrain %s",
			node, inspect.SomeOf(h.stays), node))
	} else if len(h.stays) > 0 {
		lines = append(lines, fmt.Sprintf("these pods stay on %s with the data of their volumes: %s; to start them elsewhere without it: rcctl node drain %s --deadline 0s --force",
			node, inspect.SomeOf(h.stays), node))
	}
	return lines
}

// volumesOn reads which pods have volumes on a node. Left out are pods that nothing moves:
// those that have ended, and those whose controller is disabled or gone, or whose manifest is.
func volumesOn(ctx context.Context, s *conn, name string) (h held, err error) {
	intents, _, err := s.Intents.List(ctx, store.Default, name)
	if err != nil {
		return h, err
	}
	left, err := notEnded(ctx, s, name, values(intents))
	if err != nil {
		return h, err
	}
	controllers, manifests := map[string]*rc.RC{}, map[string]*manifest.Manifest{}
	for _, in := range left {
		if _, known := manifests[in.Digest]; !known {
			if manifests[in.Digest], _, err = readable(s.SignedManifest(ctx, in.Digest)); err != nil {
				return h, err
			}
		}
		volumes := manifests[in.Digest].VolumeNames()
		if len(volumes) == 0 || in.State != pod.Running {
			continue
		}
		if _, known := controllers[in.RCID]; !known {
			rec, err := s.RCs.Get(ctx, store.Default, in.RCID)
			if err != nil && !errors.Is(err, store.ErrNotFound) && !isCorrupt(err) {
				return h, err
			}
			if controllers[in.RCID] = nil; err == nil {
				controllers[in.RCID] = &rec.Value
			}
		}
		of := fmt.Sprintf("%s (%s)", inspect.PodName(in.PodID, in.Identity), strings.Join(volumes, ", "))
		switch r := controllers[in.RCID]; {
		case r == nil || r.EachNode() || r.DeletedAt != nil || r.Disabled:
		case r.Strategy == rc.Static:
			h.stays = append(h.stays, of)
		default:
			h.moves = append(h.moves, of)
		}
	}
	slices.Sort(h.moves)
	slices.Sort(h.stays)
	return h, nil
}

// wantedDrain is what a command line says about a drain.
type wantedDrain struct {
	name     string
	now      time.Time
	deadline *time.Time // nil: not given
	force    bool
}

// computeDrain begins a drain or changes the one under way. ok is false when pods should be stopped at no given time.
func computeDrain(ops node.Ops, want wantedDrain) (c nodeChange, ok bool) {
	c = nodeChange{what: "drain", ops: ops}
	next := node.Drain{Since: want.now}
	if ops.Drain != nil {
		next = *ops.Drain
	} else {
		c.lines = append(c.lines, "drain: none -> since "+next.Since.Format(time.RFC3339))
	}
	if want.deadline != nil && (next.Deadline == nil || !next.Deadline.Equal(*want.deadline)) {
		c.lines = append(c.lines, fmt.Sprintf("drain.deadline: %s -> %s", timeText(next.Deadline), timeText(want.deadline)))
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
	return at.UTC().Format(time.RFC3339)
}

func undrainCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "undrain", Usage: "end a drain: pods may be placed on the machine again",
		UsageText: "rcctl node undrain NODE",
		Description: `Pods that have moved away do not come back by themselves. A cordon is not ended by it: rcctl node uncordon.

Examples:
  rcctl node undrain node-17`,
		Action: onNode("undrained", computeUndrain),
	})
}

func computeUndrain(ops node.Ops) nodeChange {
	c := nodeChange{what: "undrain", ops: ops}
	if ops.Drain != nil {
		c.lines = []string{"drain: since " + ops.Drain.Since.UTC().Format(time.RFC3339) + " -> none"}
	}
	c.ops.Drain = nil
	return c
}

// draining is a wait for the end of a drain.
type draining struct {
	s    *conn
	node string
	why  string    // a pod stays, as it was when its controller was looked at
	next time.Time // when that is looked at again
}

// look says what is left on the node, and why, and whether that is nothing.
func (d *draining) look(ctx context.Context) (line string, done bool, err error) {
	left, err := leftOn(ctx, d.s, d.node)
	if err != nil || len(left) == 0 {
		return "", err == nil, err
	}
	if began := time.Now(); !began.Before(d.next) {
		if why, err := whyLeft(ctx, d.s, d.node, left); err == nil { // what is left is said without it, too
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

// textOf says which pods are left on a node.
func textOf(left []pod.Intent) string {
	names := field.Each(left, func(in pod.Intent) string { return fmt.Sprintf("%s-%s-%d", in.PodID, in.Role, in.Index) })
	slices.Sort(names)
	return fmt.Sprintf("%s left: %s", field.Count(len(left), "pod"), inspect.SomeOf(names))
}

// maxWhyLeft bounds how many controllers are looked at for the reason why a pod stays.
const maxWhyLeft = 3

// whyLeft says of the first pod for which that is known why it is still on its node, "" for none.
func whyLeft(ctx context.Context, s *conn, node string, left []pod.Intent) (string, error) {
	looked := map[string]bool{}
	for _, in := range left {
		if looked[in.RCID] || len(looked) == maxWhyLeft {
			continue
		}
		looked[in.RCID] = true
		rec, err := s.RCs.Get(ctx, store.Default, in.RCID)
		if errors.Is(err, store.ErrNotFound) || isCorrupt(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		sit, _, err := situationOf(ctx, s, &rec.Value)
		if err != nil {
			return "", err
		}
		if why := inspect.WhyStays(sit, node); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// leftOn returns which pods are left on a node: there are none when every intent on it is gone, which is when its owner
// has the node's word that the pod stopped, or is about a pod that runs once and has ended, which stays.
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

// notEnded returns the intents on a node without those of pods that run once and, as the node says, have ended. Where
// that cannot be read of one, it may still run.
func notEnded(ctx context.Context, s *conn, name string, all []pod.Intent) (left []pod.Intent, err error) {
	at := field.Each(all, func(in pod.Intent) store.At { return store.At{Node: name, Identity: in.Identity} })
	says, _, err := s.RealitiesAt(ctx, at, false)
	if err != nil {
		return nil, err
	}
	once := map[string]bool{} // by digest
	for i, in := range all {
		r, is := says[at[i]]
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
