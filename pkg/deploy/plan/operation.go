package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

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
	Sign  Sign   `json:"sign"`
	Depth int    `json:"depth"` // 0: at the top
	Text  string `json:"what"`
	Where *Where `json:"where,omitempty"` // nil: the operation concerns no nodes, or the plan was made without a look at them
}

// Equal reports whether two lines show the same.
func (l Line) Equal(other Line) bool { return reflect.DeepEqual(l, other) }

// Resolver gives the names of what operations know by id.
type Resolver interface {
	// ControllerName returns the name of a controller.
	ControllerName(id string) string
}

// Names is a Resolver: names of controllers by their ids. A controller without a name is shown by its id.
type Names map[string]string

// ControllerName implements Resolver.
func (n Names) ControllerName(id string) string { return cmp.Or(n[id], id) }

// Operation is one step of a plan. Its String names controllers by id, its Format by name.
type Operation interface {
	// Execute does the operation, or waits until the owner of the controller has done it.
	Execute(ctx context.Context, client Client) error
	// Format returns the lines that show the operation.
	Format(names Resolver) []Line
	String() string
}

// Awaited is an operation that an owner carries out: Execute only waits for it. Its nodes are a forecast.
type Awaited interface {
	Operation
	awaited()
}

// written is an operation that puts something into the draft of the plan, which is committed once.
type written struct{ fill func() }

// Execute implements Operation.
func (w written) Execute(context.Context, Client) error {
	if w.fill != nil {
		w.fill()
	}
	return nil
}

// CreateManifestOperation stores a manifest.
type CreateManifestOperation struct {
	Digest string
	PodID  string // as the manifest names its pods
	written
}

// Format implements Operation.
func (o *CreateManifestOperation) Format(Resolver) []Line { return line(Added, o.String()) }

func (o *CreateManifestOperation) String() string {
	return fmt.Sprintf("create manifest %s of pod %s", o.Digest[:min(12, len(o.Digest))], o.PodID)
}

// CreateControllerOperation creates the controller of a new revision. It begins without pods where a rollout follows.
type CreateControllerOperation struct {
	RC string // id
	written
}

// Format implements Operation.
func (o *CreateControllerOperation) Format(names Resolver) []Line { return line(Added, o.text(names)) }

func (o *CreateControllerOperation) String() string { return o.text(Names{}) }

func (o *CreateControllerOperation) text(names Resolver) string {
	return "create controller " + names.ControllerName(o.RC)
}

// ChangeControllerOperation changes the controller in effect.
type ChangeControllerOperation struct {
	RC string // id
	written
}

// Format implements Operation.
func (o *ChangeControllerOperation) Format(names Resolver) []Line {
	return line(Changed, o.text(names))
}

func (o *ChangeControllerOperation) String() string { return o.text(Names{}) }

func (o *ChangeControllerOperation) text(names Resolver) string {
	return "change controller " + names.ControllerName(o.RC)
}

// ScaleOperation shows a group whose count changes. The change of the controller, or the rollout, writes it.
type ScaleOperation struct {
	RC       string // id
	Role     string
	From, To int // pods
	written
}

// Format implements Operation.
func (o *ScaleOperation) Format(names Resolver) []Line { return line(Changed, o.text(names)) }

func (o *ScaleOperation) String() string { return o.text(Names{}) }

func (o *ScaleOperation) text(names Resolver) string {
	return fmt.Sprintf("scale %s of controller %s from %d to %d", o.Role, names.ControllerName(o.RC), o.From, o.To)
}

// CommitOperation records the document of a service, and commits what the operations before it have put into the draft.
type CommitOperation struct {
	Service  string
	Revision int64
	draft    *draft
}

// Execute implements Operation.
func (o *CommitOperation) Execute(ctx context.Context, client Client) error {
	return client.Commit(ctx, &o.draft.Draft)
}

// Format implements Operation.
func (o *CommitOperation) Format(Resolver) []Line { return line(Changed, o.String()) }

func (o *CommitOperation) String() string {
	return fmt.Sprintf("record the document of service %s, revision %d", o.Service, o.Revision)
}

// AllowStopsOperation lets the mass-stop breaker pass the stops of controllers, and commits that.
type AllowStopsOperation struct {
	RCs   []string // ids
	draft *draft
}

// Execute implements Operation.
func (o *AllowStopsOperation) Execute(ctx context.Context, client Client) error {
	return client.Commit(ctx, &o.draft.Draft)
}

// Format implements Operation.
func (o *AllowStopsOperation) Format(names Resolver) []Line { return line(Changed, o.text(names)) }

func (o *AllowStopsOperation) String() string { return o.text(Names{}) }

func (o *AllowStopsOperation) text(names Resolver) string {
	return fmt.Sprintf("let the mass-stop breaker pass %s; what it withholds stops after rcctl farm resume",
		strings.Join(field.Each(o.RCs, names.ControllerName), ", "))
}

// StartRolloutOperation makes the rollout of the moment of its execution, and commits the plan with it.
type StartRolloutOperation struct {
	Strategy string
	verb     string // with what becomes of the rollout under way
	summary  string
	draft    *draft
}

// Execute implements Operation.
func (o *StartRolloutOperation) Execute(ctx context.Context, client Client) error {
	return o.draft.startRollout(ctx, client)
}

// Format implements Operation.
func (o *StartRolloutOperation) Format(Resolver) []Line { return line(Changed, o.String()) }

func (o *StartRolloutOperation) String() string {
	return fmt.Sprintf("%s %s: %s", o.verb, o.Strategy, o.summary)
}

// forecast waits until an owner has reached a goal.
type forecast struct {
	goal    Goal
	rollout *string // id of the rollout that leads there, once it is written; nil: the operation waits for nothing
}

func (forecast) awaited() {}

// Execute implements Operation.
func (f forecast) Execute(ctx context.Context, client Client) error {
	if f.rollout == nil {
		return nil
	}
	f.goal.Rollout = *f.rollout
	return client.Await(ctx, f.goal)
}

// pods are pods of one controller, and the nodes that a forecast names for them.
type pods struct {
	RC    string // id
	Pods  int
	Where *Where // nil: the plan was made without a look at nodes
	forecast
}

func (p *pods) text(verb string, names Resolver) string {
	return verb + " " + field.Count(p.Pods, "pod") + " of " + names.ControllerName(p.RC)
}

func (p *pods) line(sign Sign, verb string, names Resolver) []Line {
	return []Line{{Sign: sign, Text: p.text(verb, names), Where: p.Where}}
}

// RunPodsOperation places and starts pods. It waits until they are available.
type RunPodsOperation struct{ pods }

// Format implements Operation.
func (o *RunPodsOperation) Format(names Resolver) []Line { return o.line(Added, "run", names) }

func (o *RunPodsOperation) String() string { return o.text("run", Names{}) }

// UpgradePodsOperation lets pods run another manifest where they are. It waits until they are available.
type UpgradePodsOperation struct{ pods }

// Format implements Operation.
func (o *UpgradePodsOperation) Format(names Resolver) []Line {
	return o.line(Replaced, "upgrade in place", names)
}

func (o *UpgradePodsOperation) String() string { return o.text("upgrade in place", Names{}) }

// RelimitPodsOperation lets running pods have other limits. It waits until they have. A pod whose node cannot do that
// while it runs is started again.
type RelimitPodsOperation struct {
	pods
	Limits string // in words
}

// Format implements Operation.
func (o *RelimitPodsOperation) Format(names Resolver) []Line {
	return []Line{{Sign: Changed, Text: o.words(names), Where: o.Where}}
}

func (o *RelimitPodsOperation) String() string { return o.words(Names{}) }

func (o *RelimitPodsOperation) words(names Resolver) string {
	return o.text("change the limits of", names) + " to " + o.Limits + ", no restart"
}

// StopPodsOperation stops pods. It waits until their nodes have confirmed it.
type StopPodsOperation struct{ pods }

// Format implements Operation.
func (o *StopPodsOperation) Format(names Resolver) []Line { return o.line(Removed, "stop", names) }

func (o *StopPodsOperation) String() string { return o.text("stop", Names{}) }

// RemovePodsOperation removes the records of pods that have stopped.
type RemovePodsOperation struct{ pods }

// Format implements Operation.
func (o *RemovePodsOperation) Format(names Resolver) []Line { return o.line(Removed, "remove", names) }

func (o *RemovePodsOperation) String() string { return o.text("remove", Names{}) }

// DeleteControllerOperation deletes the controller of an old revision when it has no pods.
type DeleteControllerOperation struct {
	RC string // id
	forecast
}

// Format implements Operation.
func (o *DeleteControllerOperation) Format(names Resolver) []Line {
	return line(Removed, o.text(names))
}

func (o *DeleteControllerOperation) String() string { return o.text(Names{}) }

func (o *DeleteControllerOperation) text(names Resolver) string {
	return "delete controller " + names.ControllerName(o.RC) + " when it has no pods"
}

// CreateVolumeOperation has the node of each new pod make a volume before it starts the pod there. It waits until the
// pods are available, because a pod is available only with its volumes.
type CreateVolumeOperation struct {
	Volume string
	Pods   int
	Where  *Where // of the pods
	forecast
}

// Format implements Operation.
func (o *CreateVolumeOperation) Format(Resolver) []Line {
	return []Line{{Sign: Added, Text: o.String(), Where: o.Where}}
}

func (o *CreateVolumeOperation) String() string {
	return fmt.Sprintf("create volume %s for each of %s, on its node", o.Volume, field.Count(o.Pods, "pod"))
}

func line(sign Sign, text string) []Line { return []Line{{Sign: sign, Text: text}} }

// createManifest stores a manifest.
func (d *draft) createManifest(digest, podID string, canonical []byte) Operation {
	return &CreateManifestOperation{Digest: digest, PodID: podID, written: written{func() {
		if d.Manifests == nil {
			d.Manifests = map[string][]byte{}
		}
		d.Manifests[digest] = canonical
	}}}
}

// createRC creates the controller of a new revision.
func (d *draft) createRC(r *rc.RC) Operation {
	return &CreateControllerOperation{RC: r.ID, written: written{func() { d.Create = append(d.Create, *r) }}}
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
type SequenceOperation struct {
	Operations []Operation
	Names      Resolver        // for errors; nil: they name controllers by id
	Report     func(Operation) // called after each operation that has succeeded; nil: by nothing
}

// Execute executes them until one fails.
func (s *SequenceOperation) Execute(ctx context.Context, client Client) error {
	for _, op := range s.Operations {
		if err := op.Execute(ctx, client); err != nil {
			return fmt.Errorf("%s: %w", s.text(op), err)
		}
		if s.Report != nil {
			s.Report(op)
		}
	}
	return nil
}

func (s *SequenceOperation) text(op Operation) string {
	if s.Names != nil {
		if lines := op.Format(s.Names); len(lines) > 0 {
			return lines[0].Text
		}
	}
	return op.String()
}

// Format returns the lines of all of them: what owners do stands below what makes them do it.
func (s *SequenceOperation) Format(names Resolver) []Line {
	var lines []Line
	for _, op := range s.Operations {
		for _, l := range op.Format(names) {
			if _, awaited := op.(Awaited); awaited {
				l.Depth++
			}
			lines = append(lines, l)
		}
	}
	return lines
}

func (s *SequenceOperation) String() string { return fmt.Sprintf("%d operations", len(s.Operations)) }

// Counts returns how many lines of a plan have each sign.
func Counts(lines []Line) map[Sign]int {
	counts := map[Sign]int{}
	for _, l := range lines {
		counts[l.Sign]++
	}
	return counts
}
