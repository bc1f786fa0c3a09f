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

// Sign marks what an operation does.
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
	// nil: the operation concerns no nodes, or the plan was made without a look at them
	Where *Where `json:"where,omitempty"`
}

// Equal reports whether two lines show the same.
func (l Line) Equal(other Line) bool { return reflect.DeepEqual(l, other) }

// Names are the names of controllers by their ids. One without a name is shown by its id.
type Names map[string]string

// Operation is one step of a plan. Most operations fill the draft when the plan is made, and only show what will be
// written. The last operation that writes commits the draft.
type Operation struct {
	Sign Sign
	// nil: the operation concerns no nodes, or the plan was made without a look at the nodes
	Where *Where
	// an owner does the operation, and Execute only waits for it; Where is a forecast
	awaited bool
	do      func(context.Context, Client) error // nil: nothing
	// Text joins these three parts: text, the names of the controllers with the ids rcs, and end.
	text string
	rcs  []string
	end  string
}

// Execute does the operation, or waits until an owner has done it.
func (o *Operation) Execute(ctx context.Context, client Client) error {
	if o.do == nil {
		return nil
	}
	return o.do(ctx, client)
}

// Text describes what the operation does.
func (o *Operation) Text(names Names) string {
	return o.text + strings.Join(field.Each(o.rcs, func(id string) string { return cmp.Or(names[id], id) }), ", ") +
		o.end
}

// String is Text with the ids of controllers instead of their names.
func (o *Operation) String() string { return o.Text(nil) }

func (d *draft) createManifest(digest, podID string, canonical []byte) *Operation {
	if d.Manifests == nil {
		d.Manifests = map[string][]byte{}
	}
	d.Manifests[digest] = canonical
	return &Operation{
		Sign: Added, text: fmt.Sprintf("create manifest %s of pod %s", digest[:min(12, len(digest))], podID),
	}
}

// createRC creates a new revision's controller, without pods if a rollout follows.
func (d *draft) createRC(r *rc.RC) *Operation {
	d.Create = append(d.Create, *r)
	return &Operation{Sign: Added, text: "create controller ", rcs: []string{r.ID}}
}

func (d *draft) changeRC(r *rc.RC) *Operation {
	write := func(context.Context, Client) error {
		d.Change = append(d.Change, *r)
		return nil
	}
	return &Operation{Sign: Changed, text: "change controller ", rcs: []string{r.ID}, do: write}
}

// scale shows a group whose count changes. The operation that changes the controller or starts the rollout writes the
// count.
func scale(id, role string, from, to int) *Operation {
	return &Operation{
		Sign: Changed, text: "scale " + role + " of controller ", rcs: []string{id},
		end: fmt.Sprintf(" from %d to %d", from, to),
	}
}

func (d *draft) commit(ctx context.Context, client Client) error { return client.Commit(ctx, &d.Draft) }

// commitDraft commits the document, and what earlier operations added to the draft.
func (d *draft) commitDraft(revision int64) *Operation {
	return &Operation{
		Sign: Changed, do: d.commit,
		text: fmt.Sprintf("record the document of service %s, revision %d", d.Service, revision),
	}
}

func (d *draft) allowStops(ids []string) *Operation {
	return &Operation{
		Sign: Changed, text: "let the mass-stop breaker pass ", rcs: ids,
		end: "; what it withholds stops after rcctl farm resume", do: d.commit,
	}
}

func ofPods(sign Sign, verb, id string, n int, where *Where) *Operation {
	return &Operation{
		Sign: sign, Where: where, awaited: true,
		text: verb + " " + field.Count(n, "pod") + " of ", rcs: []string{id},
	}
}

// startTries is how often a rollout is made, because the one under way may change the records meanwhile.
const startTries = 5

// startRollout makes the rollout when it is executed, and commits the plan.
func (d *draft) startRollout(text string) *Operation {
	return &Operation{Sign: Changed, text: text, do: func(ctx context.Context, client Client) error {
		for try := 1; ; try++ {
			err := d.commitRollout(ctx, client)
			if err == nil || !errors.Is(err, ErrChanged) || try == startTries {
				return err
			}
		}
	}}
}

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

// Counts returns how many lines of a plan have each sign.
func Counts(lines []Line) map[Sign]int {
	counts := map[Sign]int{}
	for _, l := range lines {
		counts[l.Sign]++
	}
	return counts
}
