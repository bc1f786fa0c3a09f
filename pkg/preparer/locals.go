package preparer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/local"
	"github.com/rcfarm/rcfarm/pkg/preparer/report"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// reserver changes what is reserved on the node; *store.NodeSession is one.
type reserver interface {
	ChangeReservation(ctx context.Context, change func(res node.Reservation, exists bool) (node.Reservation, error)) error
}

// locals are the services that this node runs for itself (ADR 22). What they shall be is decided in package local; here is whose turn it is to change it.
type locals struct {
	*kit
	decide func() // applies what the intents say; called in pods.do

	wake wait.Signal // a pod of a local service has news
	disk *durable.Files[local.Service]

	turn  chan struct{}             // holds a token for whoever changes what follows: one request, or one step, at a time
	all   map[string]*local.Service // by name, as on the disk
	dirty bool                      // the reservation may hold claims that nothing explains

	session atomic.Pointer[reserver] // nil without a session
}

func openLocals(k *kit, decide func()) (*locals, error) {
	disk, err := local.OpenDisk(filepath.Join(k.cfg.Dir, "local"))
	if err != nil {
		return nil, err
	}
	l := &locals{kit: k, decide: decide, wake: wait.NewSignal(), disk: disk, turn: make(chan struct{}, 1), all: map[string]*local.Service{}, dirty: true}
	services, bad, err := disk.Load()
	if err != nil {
		return nil, err
	}
	for i := range services {
		l.all[services[i].Name] = &services[i]
	}
	for _, err := range bad {
		l.log.WithField(obs.Error, err).Error("local service unreadable and set aside; its pods keep running")
	}
	return l, nil
}

// reserver returns what the reservation may be changed with; nil while the node's lock is not held.
func (l *locals) reserver() reserver {
	session := l.session.Load()
	if session == nil || !l.contact.Locked() {
		return nil
	}
	return *session
}

// take waits for the turn to change local services.
func (l *locals) take(ctx context.Context) (release func(), err error) {
	select {
	case l.turn <- struct{}{}:
		return func() { <-l.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// desired is what local services shall be, as the pods need it.
type desired struct {
	intents IntentSet
	specs   map[string]local.Spec // by digest
	names   map[string]bool       // of the services that have replicas, which are the ids of their pods
}

// publish has the pods be what local services shall be now. The caller has the turn.
func (l *locals) publish() {
	d := desired{intents: IntentSet{Known: true, Intents: map[pod.Identity]pod.Intent{}}, specs: map[string]local.Spec{}, names: map[string]bool{}}
	for name, s := range l.all {
		if s.Resting() {
			continue
		}
		d.names[name] = true
		maps.Copy(d.specs, s.Specs)
		for _, in := range s.Intents() {
			d.intents.Intents[in.Identity] = in
		}
	}
	l.pods.do(func() {
		former := l.pods.local
		l.pods.local = d
		for _, e := range l.pods.all { // whoever waits for a name
			if id := e.accepted().Intent.PodID; former.names[id] && !d.names[id] {
				e.wake.Raise()
			}
		}
		l.decide()
	})
}

// seen returns what the node has of the pods of local services.
func (l *locals) seen() map[pod.Identity]local.Seen {
	seen := map[pod.Identity]local.Seen{}
	l.pods.do(func() {
		for id, e := range l.pods.all {
			if !id.Local() {
				continue
			}
			in := e.accepted().Intent
			was := local.Seen{Revision: in.Revision}
			if e.want == nil {
				r, _ := l.board.Reality(id)
				was.Stopped = e.rec.StoppedAt != nil
				was.Converged = r.Revision == in.Revision && r.Digest == in.Digest && (r.Available || r.State == pod.StateEnded)
			}
			seen[id] = was
		}
	})
	return seen
}

// errNoClaims says that there is nothing to reserve, and no record of it.
var errNoClaims = errors.New("no shares")

// noneRuns reports whether no service has replicas, so that there is nothing to reserve.
func noneRuns(all map[string]*local.Service) bool {
	for _, s := range all {
		if !s.Resting() {
			return false
		}
	}
	return true
}

// bookWithin bounds one change of the reservation.
const bookWithin = 10 * time.Second

// book has the node's reservation say what local services take; next, if it is not nil, is one that wants room. It returns that with the room that was found.
// The caller has the turn.
func (l *locals) book(ctx context.Context, next *local.Service) (*local.Service, error) {
	session := l.reserver()
	if session == nil {
		return nil, fmt.Errorf("%w: the preparer does not hold its node's lock in Consul, where room is reserved", scale.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, bookWithin)
	defer cancel()
	seen, view := l.seen(), l.view()
	var found *local.Service
	l.dirty = true // until it is known what became of it
	err := session.ChangeReservation(ctx, func(res node.Reservation, exists bool) (node.Reservation, error) {
		if !exists {
			res = local.Rebuild(view)
		}
		all := maps.Clone(l.all)
		if next != nil {
			found = next.Clone()
			all[next.Name] = found
		}
		if noneRuns(all) && !exists {
			return res, errNoClaims
		}
		return local.Book(all, local.Room{View: view, Reservation: res, Seen: seen})
	})
	switch {
	case err == nil, errors.Is(err, errNoClaims):
		l.dirty = next != nil // the file is still to be written
		return found, nil
	case errors.Is(err, scale.ErrConflict):
		return nil, err
	default:
		return nil, fmt.Errorf("%w: %w", scale.ErrUnavailable, err)
	}
}

// view is the node with all pods of controllers that run there.
func (l *locals) view() *node.View {
	view := node.NewView(l.cfg.Node, node.Ops{}, true)
	view.PortsInUse = l.inUse.inUseNow()
	l.pods.do(func() {
		for _, e := range l.pods.all {
			if o, runs := e.described(""); runs {
				view.Orphans = append(view.Orphans, o)
			}
		}
	})
	return view
}

// scale takes a request about a local service.
func (l *locals) scale(ctx context.Context, r scale.Request) (scale.Response, error) {
	answer := scale.Response{Service: r.Service}
	if !l.allKnown() {
		return answer, fmt.Errorf("%w: %w", scale.ErrUnavailable, errNotReady)
	}
	spec, digest, err := local.Read(r)
	if err == nil && digest != "" {
		err = l.node.Trusted(spec.Parsed(), spec.Signature)
	}
	if err != nil {
		return answer, fmt.Errorf("%w: %w", scale.ErrInvalid, err)
	}
	release, err := l.take(ctx)
	if err != nil {
		return answer, fmt.Errorf("%w: %w", scale.ErrUnavailable, err)
	}
	defer release()
	before := l.all[r.Service]
	if before != nil {
		answer.Replicas = uint32(before.Running())
	}
	next, err := local.Take(before, r, spec, digest, l.seen(), time.Now())
	if err == nil && (before == nil || before.Resting()) && !next.Resting() {
		err = l.claimName(r.Service)
	}
	if err == nil {
		next, err = l.change(ctx, next)
	}
	if err != nil {
		l.publish() // a name that was claimed for nothing
		return answer, err
	}
	answer.Success, answer.Replicas = true, uint32(next.Running())
	l.log.WithFields(obs.Fields{obs.Service: r.Service, obs.Desired: answer.Replicas, fieldRevision: r.Revision}).Info("scale request taken")
	return answer, nil
}

// change finds room for what a service shall be, writes it down, and has it carried out. The caller has the turn.
func (l *locals) change(ctx context.Context, next *local.Service) (*local.Service, error) {
	if next.Wants() {
		var err error
		if next, err = l.book(ctx, next); err != nil {
			return nil, err
		}
		l.cfg.Step("local booked")
	}
	if err := l.keep(next); err != nil {
		return nil, err
	}
	l.publish()
	l.wake.Raise()
	return next, nil
}

// keep writes down what a service shall be.
func (l *locals) keep(next *local.Service) error {
	if err := l.disk.Save(*next); err != nil {
		return err
	}
	l.all[next.Name] = next
	l.cfg.Step("local saved")
	return nil
}

// forget forgets the services that stopped longest ago, so that the disk does not fill up with what once ran.
func (l *locals) forget() error {
	for _, name := range local.Forgotten(l.all) {
		if err := l.disk.Forget(name); err != nil {
			return err
		}
		delete(l.all, name)
	}
	return nil
}

// claimName makes a name that of a local service, unless a controller's pod has it here, or is told to.
func (l *locals) claimName(name string) (err error) {
	l.pods.do(func() {
		var intents []pod.Intent
		for _, e := range l.pods.all {
			intents = append(intents, e.accepted().Intent)
		}
		for _, in := range l.pods.intents.Intents {
			intents = append(intents, in)
		}
		if id, taken := local.Conflict(name, intents...); taken {
			err = fmt.Errorf("%w: the name %q is that of pod %s, which a controller has on this node; use another name, or another node", scale.ErrConflict, name, id)
			return
		}
		l.pods.local.names = maps.Clone(l.pods.local.names)
		if l.pods.local.names == nil {
			l.pods.local.names = map[string]bool{}
		}
		l.pods.local.names[name] = true
	})
	return err
}

// nameTaken says that a controller's pod waits for a name that a local service has.
func (w *worker) nameTaken(in pod.Intent) (err error) {
	w.pods.do(func() {
		if !in.Identity.Local() && w.pods.local.names[in.PodID] {
			err = fmt.Errorf("the local service %q has its name on this node; it starts when that service is scaled to 0, or moves to another node", in.PodID)
		}
	})
	return err
}

// localManifest returns a version of a local service.
func (w *worker) localManifest(digest string) (m *manifest.Manifest, signature string, err error) {
	w.pods.do(func() {
		spec, known := w.pods.local.specs[digest]
		if m, signature = spec.Parsed(), spec.Signature; !known {
			err = fmt.Errorf("no local service has it: %w", store.ErrNotFound)
		}
	})
	return m, signature, err
}

// watch takes local services a step further whenever their pods have news, until ctx ends.
func (l *locals) watch(ctx context.Context) {
	const key = "local services"
	if !l.awaitReady(ctx) {
		return
	}
	pace := wait.NewPace(l.cfg.RetryMin, l.cfg.RetryMax)
	first := true
	wait.Each(ctx, l.wake, func() time.Duration {
		err := l.step(ctx, first)
		first = false
		if l.limiter.Saw(key, "local services cannot be brought further, trying again", err) {
			return pace.NextBackOff()
		}
		pace.Reset()
		return l.cfg.RelistEvery
	})
}

// step takes every local service as far as its pods are, and has the reservation say what they take.
func (l *locals) step(ctx context.Context, first bool) error {
	release, err := l.take(ctx)
	if err != nil {
		return nil
	}
	defer release()
	seen, news := l.seen(), first
	var errs []error
	for _, name := range local.Names(l.all) {
		next, changed := l.all[name].Next(seen, time.Now())
		if !changed {
			continue
		}
		news = true
		errs = append(errs, l.keep(next))
		l.dirty = true
	}
	if news {
		l.publish()
	}
	return errors.Join(append(errs, l.forget(), l.tidy(ctx))...)
}

// tidy has the reservation say what local services take, if it may not. A node without any, whose token may not write there, lacks nothing.
func (l *locals) tidy(ctx context.Context) error {
	if l.reserver() == nil || noneRuns(l.all) && !l.dirty {
		return nil
	}
	_, err := l.book(ctx, nil)
	if noneRuns(l.all) && (store.Denied(err) || errors.Is(err, store.ErrFiltered)) {
		l.dirty = false
		return nil
	}
	if errors.Is(err, store.ErrLost) {
		return nil // the next session
	}
	return err
}

// bookAgain has the claims of local services reserved, as the record of them may have been lost.
func (l *locals) bookAgain(ctx context.Context) error {
	release, err := l.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	if noneRuns(l.all) {
		return nil
	}
	_, err = l.book(ctx, nil)
	return err
}

// claimsFirst has the claims of local services reserved before the node says, under a new epoch, what it runs (R1): farms place there once it has.
type claimsFirst struct {
	report.NodeWriter
	book func(context.Context) error

	epoch string // under which they were
	done  bool
}

// WriteOrphans implements report.NodeWriter. Who may not reserve, or cannot read what is reserved, tells what runs all the same.
func (s *claimsFirst) WriteOrphans(ctx context.Context, epoch string, orphans []pod.Orphan, again bool) (node.OrphanPages, error) {
	if !s.done || s.epoch != epoch {
		err := s.book(ctx)
		if corrupt := (*store.CorruptError)(nil); err != nil && !store.Denied(err) && !errors.Is(err, store.ErrFiltered) && !errors.As(err, &corrupt) {
			return node.OrphanPages{}, fmt.Errorf("reserve what local services take: %w", err)
		}
		s.epoch, s.done = epoch, true
	}
	return s.NodeWriter.WriteOrphans(ctx, epoch, orphans, again)
}
