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

// reserver changes the node's reservation in Consul.
type reserver interface {
	ChangeReservation(
		ctx context.Context, change func(res node.Reservation, exists bool) (node.Reservation, error),
	) error
}

// locals has the local services of this node (ADR 22). One request or step at a time changes them.
type locals struct {
	*kit
	decide func() // applies the verdicts on the intents; called in pods.do

	wake wait.Signal // raised when a pod of a local service has changed
	disk *durable.Files[local.Service]

	turn  chan struct{}             // holds a token while a request or a step changes the fields below
	all   map[string]*local.Service // by name, the same as on the disk
	dirty bool                      // the reservation may differ from the local services

	session atomic.Pointer[reserver] // nil without a session
}

func openLocals(k *kit, decide func()) (*locals, error) {
	disk, err := local.OpenDisk(filepath.Join(k.cfg.Dir, "local"))
	if err != nil {
		return nil, err
	}
	l := &locals{
		kit: k, decide: decide, wake: wait.NewSignal(), disk: disk,
		turn: make(chan struct{}, 1), all: map[string]*local.Service{}, dirty: true,
	}
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

// reserver returns the session that may change the reservation, or nil while the node's lock is not held.
func (l *locals) reserver() reserver {
	session := l.session.Load()
	if session == nil || !l.contact.Locked() {
		return nil
	}
	return *session
}

func (l *locals) take(ctx context.Context) (release func(), err error) {
	select {
	case l.turn <- struct{}{}:
		return func() { <-l.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// desired is the desired state of local services, in the form that pods need.
type desired struct {
	intents IntentSet
	specs   map[string]local.Spec // by digest
	names   map[string]bool       // of services with replicas; a service's name is its pods' id
}

// publish hands the desired state to the pods. The caller has the turn.
func (l *locals) publish() {
	d := desired{
		intents: IntentSet{Known: true, Intents: map[pod.Identity]pod.Intent{}},
		specs:   map[string]local.Spec{}, names: map[string]bool{},
	}
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
		for _, e := range l.pods.all { // a controller's pod may have waited for a name that is free now
			if id := e.accepted().Intent.PodID; former.names[id] && !d.names[id] {
				e.wake.Raise()
			}
		}
		l.decide()
	})
}

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
				was.Converged = r.Revision == in.Revision && r.Digest == in.Digest &&
					(r.Available || r.State == pod.StateEnded)
			}
			seen[id] = was
		}
	})
	return seen
}

// errNoClaims ends a change of the reservation if there is none, and none is needed.
var errNoClaims = errors.New("no shares")

func noneRuns(all map[string]*local.Service) bool {
	for _, s := range all {
		if !s.Resting() {
			return false
		}
	}
	return true
}

const bookWithin = 10 * time.Second

// book writes the shares of local services to the node's reservation. If next is not nil, it is a service that needs
// capacity, and book returns a copy of next with the capacity that it got. The caller has the turn.
func (l *locals) book(ctx context.Context, next *local.Service) (*local.Service, error) {
	session := l.reserver()
	if session == nil {
		return nil, fmt.Errorf("%w: the preparer does not hold its node's lock in Consul, "+
			"so it cannot reserve capacity", scale.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, bookWithin)
	defer cancel()
	seen, view := l.seen(), l.view()
	var found *local.Service
	l.dirty = true // until the outcome of the write is known
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
		l.dirty = next != nil // the service is not on the disk yet
		return found, nil
	case errors.Is(err, scale.ErrConflict):
		return nil, err
	default:
		return nil, fmt.Errorf("%w: %w", scale.ErrUnavailable, err)
	}
}

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
		l.publish() // frees the claimed name
		return answer, err
	}
	answer.Success, answer.Replicas = true, uint32(next.Running())
	l.log.WithFields(obs.Fields{
		obs.Service: r.Service, obs.Desired: answer.Replicas, fieldRevision: r.Revision,
	}).Info("scale request accepted")
	return answer, nil
}

// change reserves capacity for the new state of a service, saves and applies it. The caller has the turn.
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

func (l *locals) keep(next *local.Service) error {
	if err := l.disk.Save(*next); err != nil {
		return err
	}
	l.all[next.Name] = next
	l.cfg.Step("local saved")
	return nil
}

// forget removes the services that stopped longest ago, because their files would fill the disk.
func (l *locals) forget() error {
	for _, name := range local.Forgotten(l.all) {
		if err := l.disk.Forget(name); err != nil {
			return err
		}
		delete(l.all, name)
	}
	return nil
}

// claimName reserves a name for a local service, unless a controller's pod has it on this node or in an intent.
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
			err = fmt.Errorf("%w: pod %s of a controller has the name %q on this node; "+
				"use another name, or another node", scale.ErrConflict, id, name)
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

// nameTaken returns an error if a local service has the name of this controller's pod.
func (w *worker) nameTaken(in pod.Intent) (err error) {
	w.pods.do(func() {
		if !in.Identity.Local() && w.pods.local.names[in.PodID] {
			err = fmt.Errorf("the local service %q has its name on this node; "+
				"the pod starts when that service is scaled to 0, or when the pod moves to another node", in.PodID)
		}
	})
	return err
}

func (w *worker) localManifest(digest string) (m *manifest.Manifest, signature string, err error) {
	w.pods.do(func() {
		spec, known := w.pods.local.specs[digest]
		if m, signature = spec.Parsed(), spec.Signature; !known {
			err = fmt.Errorf("no local service has this manifest: %w", store.ErrNotFound)
		}
	})
	return m, signature, err
}

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
		if l.limiter.Saw(key, "local services cannot be reconciled, trying again", err) {
			return pace.NextBackOff()
		}
		pace.Reset()
		return l.cfg.RelistEvery
	})
}

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

// tidy writes the shares to the reservation if it may differ from them. On a node without local services, the token
// need not allow that.
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
		return nil // the next session writes the shares
	}
	return err
}

// bookAgain reserves the shares again, because Consul may have lost the reservation.
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

// claimsFirst reserves the shares of local services before the node writes its orphans under a new epoch (R1), because
// then farms begin to place pods on the node.
type claimsFirst struct {
	report.NodeWriter
	book func(context.Context) error

	epoch string // epoch of the last successful reservation; valid if done
	done  bool
}

// WriteOrphans continues if the token may not reserve, or the reservation cannot be read.
func (c *claimsFirst) WriteOrphans(
	ctx context.Context, epoch string, orphans []pod.Orphan, again bool,
) (node.OrphanPages, error) {
	if !c.done || c.epoch != epoch {
		err := c.book(ctx)
		if err != nil && !store.Denied(err) && !errors.Is(err, store.ErrFiltered) && !isCorrupt(err) {
			return node.OrphanPages{}, fmt.Errorf("reserve the shares of local services: %w", err)
		}
		c.epoch, c.done = epoch, true
	}
	return c.NodeWriter.WriteOrphans(ctx, epoch, orphans, again)
}

func isCorrupt(err error) bool {
	var corrupt *store.CorruptError
	return errors.As(err, &corrupt)
}
