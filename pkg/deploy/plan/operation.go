package plan

import (
	"context"
	"errors"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Sign says at a glance what an operation does.
type Sign string

// The signs.
const (
	Added    Sign = "+"
	Removed  Sign = "-"
	Changed  Sign = "~"
	Replaced Sign = "-/+"
)

// Line is one line of a plan.
type Line struct {
	Sign  Sign   `json:"sign"`
	Depth int    `json:"depth"` // 0: at the top
	Text  string `json:"what"`
}

// Operation is one step of a plan.
type Operation interface {
	// Execute does it, or waits until the owner of the controller has.
	Execute(ctx context.Context, client Client) error
	// Format returns the lines that show it, the first of them at the given depth.
	Format(depth int) []Line
	// String says it in a few words.
	String() string
}

// step is an operation that is shown on one line.
type step struct {
	sign     Sign
	text     string
	forecast bool                                           // it only waits for what others do
	execute  func(ctx context.Context, client Client) error // nil: nothing is left to do
}

// Execute implements Operation.
func (s *step) Execute(ctx context.Context, client Client) error {
	if s.execute == nil {
		return nil
	}
	return s.execute(ctx, client)
}

// Format implements Operation.
func (s *step) Format(depth int) []Line { return []Line{{Depth: depth, Sign: s.sign, Text: s.text}} }

func (s *step) String() string { return s.text }

// filling is a step that puts something into the transaction that the plan commits.
func filling(sign Sign, text string, fill func()) *step {
	return &step{sign: sign, text: text, execute: func(context.Context, Client) error { fill(); return nil }}
}

// createManifest stores a manifest.
func (d *draft) createManifest(digest, podID string, canonical []byte) *step {
	return filling(Added, fmt.Sprintf("create manifest %s of pod %s", digest[:min(12, len(digest))], podID), func() {
		if d.Manifests == nil {
			d.Manifests = map[string][]byte{}
		}
		d.Manifests[digest] = canonical
	})
}

// createRC creates the controller of a new revision. It begins without pods where a rollout follows.
func (d *draft) createRC(r *rc.RC) *step {
	return filling(Added, "create controller "+r.Name, func() { d.Create = append(d.Create, *r) })
}

// await is a forecast: it waits until others have reached a goal, with the rollout that is written by then.
func await(sign Sign, text string, goal Goal, rollout *string) *step {
	return &step{sign: sign, text: text, forecast: true, execute: func(ctx context.Context, client Client) error {
		goal.Rollout = *rollout
		return client.Await(ctx, goal)
	}}
}

// fate is what becomes of pods.
type fate struct {
	verb  string
	sign  Sign
	until Reached // what is waited for
}

var (
	run     = fate{"run", Added, Available}
	replace = fate{"upgrade in place", Replaced, Available}
	stop    = fate{"stop", Removed, Left} // their nodes have confirmed it
	remove  = fate{"remove", Removed, Left}
)

// CreateVolumeOperation is a forecast: the node of each pod makes the volume when it starts the pod there.
type CreateVolumeOperation struct {
	Volume         string
	Node, NodeName string // empty: the node of each pod
	Pods           int
}

// Execute does nothing: a pod is not available without its volumes.
func (o *CreateVolumeOperation) Execute(context.Context, Client) error { return nil }

// Format implements Operation.
func (o *CreateVolumeOperation) Format(depth int) []Line {
	return []Line{{Depth: depth, Sign: Added, Text: o.String()}}
}

func (o *CreateVolumeOperation) String() string {
	if o.NodeName != "" {
		return fmt.Sprintf("create volume %s on %s", o.Volume, o.NodeName)
	}
	return fmt.Sprintf("create volume %s for each of %d pods, on its node", o.Volume, o.Pods)
}

// startRollout makes the rollout of this moment and commits the plan with it. Its id is Rollout's once it is written.
func (d *draft) startRollout(ctx context.Context, client Client) error {
	for try := 1; ; try++ {
		err := d.commitRollout(ctx, client)
		if err == nil || !errors.Is(err, ErrChanged) || try == startTries {
			return err
		}
	}
}

// startTries is how often a rollout is made anew, since the one under way moves the records that it replaces.
const startTries = 5

func (d *draft) commitRollout(ctx context.Context, client Client) error {
	started, err := d.start(ctx)
	if err != nil {
		return err
	}
	changed := map[string]rc.RC{}
	for _, r := range started.RCs {
		changed[r.ID] = r
	}
	for i := range d.Create {
		if r, is := changed[d.Create[i].ID]; is {
			d.Create[i] = r
			delete(changed, r.ID)
		}
	}
	d.Change = nil
	for _, r := range started.RCs {
		if _, is := changed[r.ID]; is {
			d.Change = append(d.Change, r)
		}
	}
	d.Rollout, d.Delete = &started.Record, started.Delete
	d.Deployed.Rollout, d.Entry.Rollout = started.Record.ID, started.Record.ID
	d.Steps = started.Audit
	return client.Commit(ctx, &d.Draft)
}

// SequenceOperation is operations one after the other.
type SequenceOperation struct{ Operations []Operation }

// Execute executes them until one fails.
func (s *SequenceOperation) Execute(ctx context.Context, client Client) error {
	for _, op := range s.Operations {
		if err := op.Execute(ctx, client); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return nil
}

// Format returns the lines of all of them.
func (s *SequenceOperation) Format(depth int) []Line {
	var lines []Line
	for _, op := range s.Operations {
		lines = append(lines, op.Format(depth)...)
	}
	return lines
}

func (s *SequenceOperation) String() string { return fmt.Sprintf("%d operations", len(s.Operations)) }

// forecast reports whether an operation only waits for what others do.
func forecast(op Operation) bool {
	s, one := op.(*step)
	_, volume := op.(*CreateVolumeOperation)
	return volume || one && s.forecast
}

// Counts returns how many lines of a plan have each sign.
func Counts(lines []Line) map[Sign]int {
	counts := map[Sign]int{}
	for _, l := range lines {
		counts[l.Sign]++
	}
	return counts
}
