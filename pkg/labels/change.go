package labels

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Kind is a kind of object with labels.
type Kind string

// The kinds.
const (
	KindPod  Kind = "pod"
	KindNode Kind = "node"
	KindRC   Kind = "rc"
)

// MaxLabels bounds how many labels people can give one object.
const MaxLabels = field.MaxLabels

// Object names one object.
type Object struct {
	Kind Kind
	Name string       // name of a node, or id of a controller
	Pod  pod.Identity // identity of a pod
	// Node is the node where the pod must be placed; empty: any node.
	Node string
}

// NodeObject names a node.
func NodeObject(name string) Object { return Object{Kind: KindNode, Name: name} }

// RCObject names a controller by its id.
func RCObject(id string) Object { return Object{Kind: KindRC, Name: id} }

// PodObject names a pod, placed on any node.
func PodObject(id pod.Identity) Object { return Object{Kind: KindPod, Pod: id} }

// String is for people.
func (o Object) String() string {
	if o.Kind == KindPod {
		return "pod " + o.Pod.String()
	}
	return string(o.Kind) + " " + o.Name
}

// Found has the labels of an object.
type Found struct {
	Labels map[string]string // all of them, as selectors see them; never nil
	// Set has the labels that people have set, and can remove; never nil.
	Set map[string]string
	// Waiting has changes, as in Change.Lines, that the pod's owner has not made yet.
	Waiting []string
}

// Change describes what a call changed.
type Change struct {
	// Lines has a line for each change: "labels.rack: a -> b". If it is empty, nothing was written.
	Lines []string
	// Request is, for a pod, the id of the request to its owner. When the record requests/<rc-id>/<id> is gone, the
	// owner has set the labels, or an audit record shows that the request was void.
	Request string
	// Node is the node where a pod is placed.
	Node string
}

// RefusedError means that the present state does not allow a change. Nothing was written.
type RefusedError struct{ Why string }

// Error says what to do instead, if anything can be done.
func (r *RefusedError) Error() string { return r.Why + "; nothing was written" }

func refusedf(format string, args ...any) error {
	return &RefusedError{fmt.Sprintf(format, args...)}
}

// Applicator reads and changes labels. It is safe for concurrent use.
type Applicator struct {
	store *store.Store
	who   string
}

// NewApplicator returns an Applicator. who is the author in the audit trail.
func NewApplicator(s *store.Store, who string) *Applicator { return &Applicator{s, who} }

const (
	// maxTries bounds how often a change is computed again after a conflict.
	maxTries = 5
	// maxNodeTries is higher, because farms often change the node's reservation.
	maxNodeTries = 50
	retryGap     = 20 * time.Millisecond
	// maxWaiting bounds how many requests can wait for one pod.
	maxWaiting = 16
)

// GetLabels reads consistently. Errors to test for: store.ErrNotFound, also for a pod that is not placed, and
// *store.CorruptError.
func (a *Applicator) GetLabels(ctx context.Context, of Object) (Found, error) {
	at, err := a.read(ctx, of)
	if err != nil {
		return Found{}, err
	}
	if at.now == nil {
		at.now = at.set
	}
	return Found{Labels: at.all, Set: at.now, Waiting: differences(at.now, at.set)}, nil
}

// SetLabels sets 1 to MaxLabels labels of an object in one transaction. For a pod it writes a request to the owner: see
// Change.Request. If nothing changes, it writes nothing.
//
// It returns field.Errors for labels that are not allowed, store.ErrNotFound, and store.ErrConflict if other writers
// changed the records at each try. It returns *RefusedError if a pod is stopping, or a controller is being deleted, is
// a revision of a service, or has a rollout in charge. After store.ErrUnknown it is not known whether the change was
// written. After any other error nothing was written.
func (a *Applicator) SetLabels(ctx context.Context, of Object, set map[string]string) (Change, error) {
	return a.ChangeLabels(ctx, of, set, nil)
}

// RemoveLabels removes labels that people set, 1 to MaxLabels keys. A label of the preparer or the controller with the
// same key stays. It returns the errors of SetLabels.
func (a *Applicator) RemoveLabels(ctx context.Context, of Object, keys ...string) (Change, error) {
	return a.ChangeLabels(ctx, of, nil, keys)
}

// ChangeLabels is SetLabels and RemoveLabels in one transaction.
func (a *Applicator) ChangeLabels(ctx context.Context, of Object, set map[string]string,
	remove []string,
) (c Change, err error) {
	if err := Check(of.Kind, set, remove); err != nil {
		return c, err
	}
	tries := maxTries
	if of.Kind == KindNode {
		tries = maxNodeTries
	}
	for try := 1; ; try++ {
		if c, err = a.try(ctx, of, set, remove); !errors.Is(err, store.ErrConflict) {
			return c, err
		}
		if try == tries {
			return Change{}, fmt.Errorf("%s: its records keep changing, %d tries; nothing was written: %w", of, tries,
				err)
		}
		if paused := wait.Pause(ctx, retryGap); paused != nil {
			return Change{}, errors.Join(paused, err)
		}
	}
}

// Check returns, as field.Errors, what is wrong with a change.
func Check(kind Kind, set map[string]string, remove []string) error {
	var errs field.Errors
	allowed := fmt.Sprintf("1 to %d labels to set or keys to remove", MaxLabels)
	switch n := len(set) + len(remove); {
	case kind != KindPod && kind != KindNode && kind != KindRC:
		errs.Add("kind", string(kind), field.Or(KindPod, KindNode, KindRC))
		return errs.Err()
	case n == 0:
		errs.Missing("labels", allowed)
		return errs.Err()
	case n > MaxLabels:
		errs.Add("labels", field.Text(fmt.Sprintf("%d entries", n)), allowed)
		return errs.Err()
	}
	check := func(key, value, text string) {
		switch {
		case !field.IsLabel(key, value):
			errs.Add("labels", text, field.LabelAllowed)
		case kind == KindPod && pod.IsReserved(key):
			errs.Add("labels", text, pod.ReservedAllowed)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(set)) {
		check(key, set[key], key+"="+set[key])
	}
	for i, key := range remove {
		check(key, "", key+"-")
		if _, both := set[key]; both || slices.Contains(remove[:i], key) {
			errs.Add("labels", key+"-", "each key once")
		}
	}
	return errs.Err()
}

// object is an object as it was read. write changes the labels that people set.
type object struct {
	all, set map[string]string
	now      map[string]string // of a pod: the labels that people have set now, without the changes of waiting requests
	write    func(ctx context.Context, next map[string]string, lines []string) (Change, error)
	mend     bool // write even if no label changed
}

func (a *Applicator) read(ctx context.Context, of Object) (object, error) {
	switch of.Kind {
	case KindPod:
		return a.readPod(ctx, of, nil, nil)
	case KindNode:
		return a.readNode(ctx, of.Name)
	case KindRC:
		return a.readRC(ctx, of.Name)
	default:
		return object{}, Check(of.Kind, nil, nil)
	}
}

func (a *Applicator) try(ctx context.Context, of Object, set map[string]string, remove []string) (Change, error) {
	var at object
	var err error
	if of.Kind == KindPod {
		at, err = a.readPod(ctx, of, set, remove)
	} else {
		at, err = a.read(ctx, of)
	}
	if err != nil {
		return Change{}, err
	}
	next := changed(at.set, set, remove)
	if len(next) > MaxLabels {
		e := &field.Error{
			Field: "labels", Value: field.Text(fmt.Sprintf("%d entries on %s after the change", len(next), of)),
			Allowed: fmt.Sprintf("0 to %d entries that people have set", MaxLabels),
		}
		return Change{}, field.Errors{e}
	}
	lines := differences(at.set, next)
	if len(lines) == 0 && !at.mend {
		return Change{}, nil
	}
	return at.write(ctx, next, lines)
}

func changed(labels, set map[string]string, remove []string) map[string]string {
	next := field.Merge(labels, set)
	for _, key := range remove {
		delete(next, key)
	}
	return next
}

// differences returns a line for each label that differs, sorted by key.
func differences(before, after map[string]string) (lines []string) {
	text := func(labels map[string]string, key string) string {
		if value, has := labels[key]; has {
			return value
		}
		return "none"
	}
	for _, key := range slices.Sorted(maps.Keys(field.Merge(before, after))) {
		was, had := before[key]
		is, has := after[key]
		if was != is || had != has {
			lines = append(lines, fmt.Sprintf("labels.%s: %s -> %s", key, text(before, key), text(after, key)))
		}
	}
	return lines
}

func (a *Applicator) readNode(ctx context.Context, name string) (object, error) {
	cur, err := a.store.Operated(ctx, name)
	if err != nil {
		return object{}, fmt.Errorf("node %s: %w", name, err)
	}
	record, err := a.store.Nodes.Get(ctx, store.Consistent, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) && !store.IsCorrupt(err) {
		return object{}, fmt.Errorf("read node %s: %w", name, err)
	}
	before := cur.Ops.Value
	return object{
		all: field.Merge(record.Value.Labels, before.Labels), set: field.Merge(before.Labels),
		mend: cur.ReservationAfter(before) != nil,
		write: func(ctx context.Context, next map[string]string, lines []string) (Change, error) {
			after := before
			if after.Labels = next; len(lines) == 0 {
				after.Labels, lines = before.Labels,
					[]string{"reservation: was not in line with the drain or the labels -> mended"}
			}
			return Change{Lines: lines}, a.store.Operator.ChangeNode(ctx, store.NodeChange{
				Ops: after, Index: cur.Ops.Index, Reservation: cur.ReservationAfter(after),
				Audit: store.NewAudit(a.who, "label", "", lines).OnNodes(name),
			})
		},
	}, nil
}

// A revision has the labels of its service's document.
func (a *Applicator) readRC(ctx context.Context, id string) (object, error) {
	rec, err := a.store.RCs.Get(ctx, store.Consistent, id)
	if err != nil {
		return object{}, fmt.Errorf("read rc %s: %w", id, err)
	}
	r := rec.Value
	return object{
		all: field.Merge(r.Labels), set: field.Merge(r.Labels),
		write: func(ctx context.Context, next map[string]string, lines []string) (Change, error) {
			if err := a.mayLabel(ctx, &r); err != nil {
				return Change{}, err
			}
			after := r
			after.Generation, after.AllowMassStop, after.ChangedBy = r.Generation+1, 0, a.who
			if after.Labels = next; len(next) == 0 {
				after.Labels = nil
			}
			return Change{Lines: lines}, a.store.Operator.ChangeRC(ctx, store.RCChange{
				RC: after, Index: rec.Index, Audit: store.NewAudit(a.who, "label", r.ID, lines),
			})
		},
	}, nil
}

// mayLabel may return a *RefusedError. If a revision's service has no record any more, its labels can change.
func (a *Applicator) mayLabel(ctx context.Context, r *rc.RC) error {
	if r.DeletedAt != nil {
		return refusedf("rc %s (%s) is marked for deletion since %s; it cannot be labelled", r.Name,
			r.ID, r.DeletedAt.Format(time.RFC3339))
	}
	if r.Service != nil {
		switch there, err := a.store.Deployed.Exists(ctx, r.Service.Name); {
		case err != nil:
			return fmt.Errorf("rc %s: %w", r.Name, err)
		case there:
			const text = "rc %s is revision %d of service %s; " +
				"change labels in the service's document: rcctl deploy -f FILE"
			return refusedf(text, r.Name, r.Service.Revision, r.Service.Name)
		}
	}
	rolls, err := a.store.Deployments.RolloutFor(ctx, r)
	switch {
	case err != nil:
		return fmt.Errorf("rc %s: %w", r.Name, err)
	case rolls != nil:
		return refusedf("rc %s: rollout %s of service %s is in charge of it", r.Name, rolls.ID, rolls.Service)
	}
	return nil
}

// The result has the labels as they will be after the waiting requests, because the owner carries these out first.
func (a *Applicator) readPod(ctx context.Context, of Object, set map[string]string, remove []string) (object, error) {
	rec, err := a.store.Pods.Get(ctx, store.Consistent, of.Pod.String())
	if err != nil {
		return object{}, fmt.Errorf("read %s: %w", of, err)
	}
	p := rec.Value
	if of.Node != "" && of.Node != p.Node {
		return object{}, fmt.Errorf("%s: it is placed on %s, not on %s: %w", of, p.Node, of.Node, store.ErrNotFound)
	}
	requests, _, err := a.store.Requests.List(ctx, store.Consistent, of.Pod.RCID)
	if err != nil {
		return object{}, fmt.Errorf("read what is asked of the owner of %s: %w", of, err)
	}
	own, waiting := p.OwnLabels, 0
	for i := range requests {
		if r := &requests[i].Value; r.Kind == store.LabelPod && r.Pod == of.Pod && r.Node == p.Node {
			own = changed(own, r.Labels, r.Remove)
			waiting++
		}
	}
	return object{
		all: OfPod(p.RCID, p.PodID, p.Labels), set: field.Merge(own), now: field.Merge(p.OwnLabels),
		write: func(ctx context.Context, _ map[string]string, lines []string) (Change, error) {
			if p.RunState != pod.Running {
				return Change{}, refusedf("%s stops; it cannot be labelled", of)
			}
			if waiting >= maxWaiting {
				const text = "%s: %d requests to label it wait for the owner of its controller already; " +
					"is a farm running? rcctl farms"
				return Change{}, refusedf(text, of, waiting)
			}
			switch there, err := a.store.RCs.Exists(ctx, p.RCID); {
			case err != nil:
				return Change{}, fmt.Errorf("read rc %s: %w", p.RCID, err)
			case !there:
				return Change{}, refusedf("%s: its controller has no record; it cannot be labelled", of)
			}
			r := store.Request{
				ID: store.NewID(), RCID: p.RCID, Kind: store.LabelPod, Node: p.Node,
				Pod: p.Identity, Labels: set, Remove: remove,
				By: a.who, At: time.Now().UTC(),
			}
			audit := store.NewAudit(a.who, "label", p.RCID, field.Each(lines, func(line string) string {
				return fmt.Sprintf("%s.%d on %s: %s", p.Role, p.Index, p.Node, line)
			})).OnNodes(p.Node)
			return Change{Lines: lines, Request: r.ID, Node: p.Node},
				a.store.Operator.AskLabels(ctx, r, rec.Index, audit)
		},
	}, nil
}
