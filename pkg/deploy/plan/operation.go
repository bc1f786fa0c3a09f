package plan

import (
	"context"
	"errors"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/field"
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
	Depth int // 0: at the top
	Sign  Sign
	Text  string
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

// line is Format of an operation that is shown on one line.
func line(depth int, sign Sign, op fmt.Stringer) []Line {
	return []Line{{Depth: depth, Sign: sign, Text: op.String()}}
}

// CreateManifestOperation stores a manifest.
type CreateManifestOperation struct {
	Digest, PodID string
	Canonical     []byte
	draft         *draft
}

// Execute puts it into the transaction that the plan commits.
func (o *CreateManifestOperation) Execute(context.Context, Client) error {
	if o.draft.Manifests == nil {
		o.draft.Manifests = map[string][]byte{}
	}
	o.draft.Manifests[o.Digest] = o.Canonical
	return nil
}

// Format implements Operation.
func (o *CreateManifestOperation) Format(depth int) []Line { return line(depth, Added, o) }

func (o *CreateManifestOperation) String() string {
	return fmt.Sprintf("create manifest %s of pod %s", o.Digest[:min(12, len(o.Digest))], o.PodID)
}

// CreateRCOperation creates the controller of a new revision. It begins without pods where a rollout follows.
type CreateRCOperation struct {
	RC    rc.RC // with its counts at the end
	draft *draft
}

// Execute puts it into the transaction that the plan commits.
func (o *CreateRCOperation) Execute(context.Context, Client) error {
	o.draft.Create = append(o.draft.Create, o.RC)
	return nil
}

// Format implements Operation.
func (o *CreateRCOperation) Format(depth int) []Line { return line(depth, Added, o) }

func (o *CreateRCOperation) String() string { return "create controller " + o.RC.Name }

// ScaleRCOperation changes how many replicas of one role there are.
type ScaleRCOperation struct {
	Name, Role string
	From, To   int
}

// Execute does nothing: the counts are in the record that UpdateRCOperation writes.
func (o *ScaleRCOperation) Execute(context.Context, Client) error { return nil }

// Format implements Operation.
func (o *ScaleRCOperation) Format(depth int) []Line { return line(depth, Changed, o) }

func (o *ScaleRCOperation) String() string {
	return fmt.Sprintf("scale %s of controller %s from %d to %d", o.Role, o.Name, o.From, o.To)
}

// UpdateRCOperation changes a controller that stays.
type UpdateRCOperation struct {
	RC     rc.RC // as it shall be
	Fields []string
	draft  *draft
}

// Execute puts it into the transaction that the plan commits.
func (o *UpdateRCOperation) Execute(context.Context, Client) error {
	o.draft.Change = append(o.draft.Change, o.RC)
	return nil
}

// Format implements Operation.
func (o *UpdateRCOperation) Format(depth int) []Line { return line(depth, Changed, o) }

func (o *UpdateRCOperation) String() string { return "change controller " + o.RC.Name }

// DeleteRCOperation is a forecast: the rollout's last step deletes a controller that has no pods.
type DeleteRCOperation struct {
	Service, Name, ID string
	Rollout           *string
}

// Execute waits until the controller is gone.
func (o *DeleteRCOperation) Execute(ctx context.Context, client Client) error {
	return client.Await(ctx, Goal{Service: o.Service, Rollout: *o.Rollout, RC: o.ID, Reached: Gone})
}

// Format implements Operation.
func (o *DeleteRCOperation) Format(depth int) []Line { return line(depth, Removed, o) }

func (o *DeleteRCOperation) String() string {
	return "delete controller " + o.Name + " when it has no pods"
}

// pods is a forecast about pods of one controller.
type pods struct {
	fate
	Service, Name, RC string
	Count             int     // how many pods it is about
	Goal              int     // how many there are then
	Rollout           *string // id, once it is written
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

// Execute waits until it has come about.
func (p *pods) Execute(ctx context.Context, client Client) error {
	return client.Await(ctx, Goal{Service: p.Service, Rollout: *p.Rollout, RC: p.RC, Reached: p.until, Pods: p.Goal})
}

// Format implements Operation.
func (p *pods) Format(depth int) []Line { return line(depth, p.sign, p) }

func (p *pods) String() string { return p.verb + " " + field.Count(p.Count, "pod") + " of " + p.Name }

// RunPodOperation is a forecast: the owner places pods, and they become available.
type RunPodOperation struct{ pods }

// ReplacePodOperation is a forecast: the owner upgrades pods where they are.
type ReplacePodOperation struct{ pods }

// StopPodOperation is a forecast: the owner stops pods.
type StopPodOperation struct{ pods }

// RemovePodOperation is a forecast: the owner removes the records of pods that have stopped.
type RemovePodOperation struct{ pods }

// CreateVolumeOperation is a forecast: the node of each pod makes the volume when it starts the pod there.
type CreateVolumeOperation struct {
	Volume         string
	Node, NodeName string // empty: the node of each pod
	Pods           int
}

// Execute does nothing: a pod is not available without its volumes.
func (o *CreateVolumeOperation) Execute(context.Context, Client) error { return nil }

// Format implements Operation.
func (o *CreateVolumeOperation) Format(depth int) []Line { return line(depth, Added, o) }

func (o *CreateVolumeOperation) String() string {
	if o.NodeName != "" {
		return fmt.Sprintf("create volume %s on %s", o.Volume, o.NodeName)
	}
	return fmt.Sprintf("create volume %s for each of %d pods, on its node", o.Volume, o.Pods)
}

// StartRolloutOperation commits the plan with a rollout that carries it out.
type StartRolloutOperation struct {
	Strategy, Summary string
	ID                string // of the rollout; empty until it is written
	verb              string
	draft             *draft
}

// Execute makes the rollout of this moment and commits all that came before it.
func (o *StartRolloutOperation) Execute(ctx context.Context, client Client) error {
	for try := 1; ; try++ {
		err := o.commit(ctx, client)
		if err == nil || !errors.Is(err, ErrChanged) || try == startTries {
			return err
		}
	}
}

// startTries is how often a rollout is made anew, since the one under way moves the records that it replaces.
const startTries = 5

func (o *StartRolloutOperation) commit(ctx context.Context, client Client) error {
	started, err := o.draft.start(ctx)
	if err != nil {
		return err
	}
	changed := map[string]rc.RC{}
	for _, r := range started.RCs {
		changed[r.ID] = r
	}
	term := started.Record.Term()
	for i := range o.draft.Create {
		o.draft.Create[i].Mutator = term
		if r, is := changed[o.draft.Create[i].ID]; is {
			o.draft.Create[i] = r
			delete(changed, r.ID)
		}
	}
	o.draft.Change = nil
	for _, r := range started.RCs {
		if _, is := changed[r.ID]; is {
			o.draft.Change = append(o.draft.Change, r)
		}
	}
	o.draft.Rollout, o.draft.Delete = &started.Record, started.Delete
	o.draft.Deployed.Rollout, o.draft.Entry.Rollout = started.Record.ID, started.Record.ID
	o.draft.Steps = started.Audit
	if err := client.Commit(ctx, &o.draft.Draft); err != nil {
		return err
	}
	o.ID = started.Record.ID
	return nil
}

// Format implements Operation.
func (o *StartRolloutOperation) Format(depth int) []Line { return line(depth, Changed, o) }

func (o *StartRolloutOperation) String() string {
	return fmt.Sprintf("%s %s: %s", o.verb, o.Strategy, o.Summary)
}

// RecordOperation commits a plan that needs no rollout.
type RecordOperation struct{ draft *draft }

// Execute commits all that came before it.
func (o *RecordOperation) Execute(ctx context.Context, client Client) error {
	return client.Commit(ctx, &o.draft.Draft)
}

// Format implements Operation.
func (o *RecordOperation) Format(depth int) []Line { return line(depth, Changed, o) }

func (o *RecordOperation) String() string {
	return fmt.Sprintf("record the document of service %s, revision %d", o.draft.Service, o.draft.Deployed.Revision)
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
	switch op.(type) {
	case *RunPodOperation, *ReplacePodOperation, *StopPodOperation, *RemovePodOperation, *CreateVolumeOperation, *DeleteRCOperation:
		return true
	default:
		return false
	}
}

// Counts returns how many lines of a plan have each sign.
func Counts(lines []Line) map[Sign]int {
	counts := map[Sign]int{}
	for _, l := range lines {
		counts[l.Sign]++
	}
	return counts
}
