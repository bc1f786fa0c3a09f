package preparer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/durable"
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
	wake wait.Signal // a pod of a local service has news
	disk *durable.Files[local.Service]

	turn  chan struct{}             // holds a token for whoever changes what follows: one request, or one step, at a time
	all   map[string]*local.Service // by name, as on the disk
	dirty bool                      // the reservation may hold claims that nothing explains

	mu      sync.Mutex
	session reserver // nil without a session
}

func openLocals(dir string, reserve *durable.Reserve, log obs.Logger) (*locals, error) {
	disk, err := local.OpenDisk(dir, reserve)
	if err != nil {
		return nil, err
	}
	l := &locals{wake: wait.NewSignal(), disk: disk, turn: make(chan struct{}, 1), all: map[string]*local.Service{}, dirty: true}
	services, bad, err := disk.Load()
	if err != nil {
		return nil, err
	}
	for i := range services {
		l.all[services[i].Name] = &services[i]
	}
	for _, err := range bad {
		log.WithField(obs.Error, err).Error("local service unreadable and set aside; its pods keep running")
	}
	return l, nil
}

// serve notes the session that there is; nil for none.
func (l *locals) serve(t reserver) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session = t
}

// reserver returns what the reservation may be changed with; nil while the node's lock is not held.
func (p *Preparer) reserver() reserver {
	p.locals.mu.Lock()
	defer p.locals.mu.Unlock()
	if !p.contact.Locked() {
		return nil
	}
	return p.locals.session
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
	world World
	specs map[string]local.Spec // by digest
	names map[string]bool       // of the services, which are the ids of their pods
}

// publish has the pods be what local services shall be now. The caller has the turn.
func (p *Preparer) publish() {
	d := desired{world: World{Known: true, Intents: map[pod.Identity]pod.Intent{}}, specs: map[string]local.Spec{}, names: map[string]bool{}}
	for name, s := range p.locals.all {
		d.names[name] = true
		maps.Copy(d.specs, s.Specs)
		for _, in := range s.Intents() {
			d.world.Intents[in.Identity] = in
		}
	}
	p.pods.do(func() {
		former := p.pods.local
		p.pods.local = d
		for _, e := range p.pods.all { // whoever waits for a name
			if id := e.accepted().Intent.PodID; former.names[id] && !d.names[id] {
				e.wake.Raise()
			}
		}
		p.decide()
	})
}

// seenLocals returns what the node has of the pods of local services.
func (p *Preparer) seenLocals() map[pod.Identity]local.Seen {
	seen := map[pod.Identity]local.Seen{}
	p.pods.do(func() {
		for id, e := range p.pods.all {
			if !id.Local() {
				continue
			}
			in := e.accepted().Intent
			was := local.Seen{Revision: in.Revision}
			if e.want == nil {
				r, _ := p.board.Reality(id)
				was.Stopped = e.rec.StoppedAt != nil
				was.Settled = r.Revision == in.Revision && r.Digest == in.Digest && (r.Available || r.State == pod.StateEnded)
			}
			seen[id] = was
		}
	})
	return seen
}

// errNoClaims says that there is nothing to reserve, and no record of it.
var errNoClaims = errors.New("no shares")

// bookWithin bounds one change of the reservation.
const bookWithin = 10 * time.Second

// book has the node's reservation say what local services take; next, if it is not nil, is one that wants room. It returns that with the room that was found.
// The caller has the turn.
func (p *Preparer) book(ctx context.Context, next *local.Service) (*local.Service, error) {
	session := p.reserver()
	if session == nil {
		return nil, fmt.Errorf("%w: the preparer does not hold its node's lock in Consul, where room is reserved", scale.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, bookWithin)
	defer cancel()
	seen, view := p.seenLocals(), p.viewOfNode()
	var found *local.Service
	p.locals.dirty = true // until it is known what became of it
	err := session.ChangeReservation(ctx, func(res node.Reservation, exists bool) (node.Reservation, error) {
		if !exists {
			res = local.Rebuild(view)
		}
		all := maps.Clone(p.locals.all)
		if next != nil {
			found = next.Clone()
			all[next.Name] = found
		}
		if len(all) == 0 && !exists {
			return res, errNoClaims
		}
		return local.Book(all, local.Room{View: view, Reservation: res, Seen: seen})
	})
	switch {
	case err == nil, errors.Is(err, errNoClaims):
		p.locals.dirty = next != nil // the file is still to be written
		return found, nil
	case errors.Is(err, scale.ErrConflict):
		return nil, err
	default:
		return nil, fmt.Errorf("%w: %w", scale.ErrUnavailable, err)
	}
}

// viewOfNode is the node with all pods of controllers that run there.
func (p *Preparer) viewOfNode() *node.View {
	view := node.NewView(p.cfg.Node, node.Ops{}, true)
	p.pods.do(func() {
		for _, e := range p.pods.all {
			if o, runs := e.described(""); runs {
				view.Orphans = append(view.Orphans, o)
			}
		}
	})
	return view
}

// Scale takes a request about a local service. When it returns, what the request says is on the disk, or nothing has changed. Its errors are those of package scale.
func (p *Preparer) Scale(ctx context.Context, r scale.Request) (scale.Response, error) {
	answer := scale.Response{Service: r.Service}
	switch {
	case r.Epoch != nil:
		return answer, fmt.Errorf("%w: this preparer watches its intents, and takes no requests with an epoch", scale.ErrUnavailable)
	case !p.allKnown():
		return answer, fmt.Errorf("%w: %w", scale.ErrUnavailable, errNotReady)
	}
	spec, digest, err := local.Read(r)
	if err == nil && digest != "" {
		err = p.node.Trusted(spec.Parsed(), spec.Signature)
	}
	if err != nil {
		return answer, fmt.Errorf("%w: %w", scale.ErrInvalid, err)
	}
	release, err := p.locals.take(ctx)
	if err != nil {
		return answer, fmt.Errorf("%w: %w", scale.ErrUnavailable, err)
	}
	defer release()
	before := p.locals.all[r.Service]
	if before != nil {
		answer.Replicas = uint32(before.Running())
	}
	next, err := local.Take(before, r, spec, digest, p.seenLocals(), time.Now())
	if err == nil && before == nil && next != nil {
		err = p.claimName(r.Service)
	}
	if err == nil {
		err = p.change(ctx, r.Service, next)
	}
	if err != nil {
		p.publish() // a name that was claimed for nothing
		return answer, err
	}
	answer.Success, answer.Replicas = true, 0
	if next != nil {
		answer.Replicas = uint32(next.Running())
	}
	p.log.WithFields(obs.Fields{obs.Service: r.Service, obs.Desired: answer.Replicas, fieldRevision: r.Revision}).Info("scale request taken")
	return answer, nil
}

// change finds room for what a service shall be, writes it down, and has it carried out. The caller has the turn.
func (p *Preparer) change(ctx context.Context, name string, next *local.Service) error {
	if next != nil && next.Wants() {
		var err error
		if next, err = p.book(ctx, next); err != nil {
			return err
		}
		p.cfg.Step("local booked")
	}
	if err := p.keepLocal(name, next); err != nil {
		return err
	}
	p.publish()
	p.locals.wake.Raise()
	return nil
}

// keepLocal writes down what a service shall be; nil: it is forgotten.
func (p *Preparer) keepLocal(name string, next *local.Service) error {
	if next == nil {
		if err := p.locals.disk.Forget(name); err != nil {
			return err
		}
		delete(p.locals.all, name)
	} else {
		if err := p.locals.disk.Save(*next); err != nil {
			return err
		}
		p.locals.all[name] = next
	}
	p.cfg.Step("local saved")
	return nil
}

// claimName makes a name that of a local service, unless a controller's pod has it here, or is told to.
func (p *Preparer) claimName(name string) (err error) {
	p.pods.do(func() {
		var intents []pod.Intent
		for _, e := range p.pods.all {
			intents = append(intents, e.accepted().Intent)
		}
		for _, in := range p.pods.world.Intents {
			intents = append(intents, in)
		}
		if id, taken := local.Conflict(name, intents...); taken {
			err = fmt.Errorf("%w: the name %q is that of pod %s, which a controller has on this node; use another name, or another node", scale.ErrConflict, name, id)
			return
		}
		p.pods.local.names = maps.Clone(p.pods.local.names)
		if p.pods.local.names == nil {
			p.pods.local.names = map[string]bool{}
		}
		p.pods.local.names[name] = true
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

// buried decides anew, and looks after local services, as a stop was confirmed.
func (p *Preparer) buried() {
	p.reconsider()
	p.locals.wake.Raise()
}

// watchLocals takes local services a step further whenever their pods have news, until ctx ends.
func (p *Preparer) watchLocals(ctx context.Context) {
	const key = "local services"
	if !p.awaitReady(ctx) {
		return
	}
	pace := wait.NewPace(p.cfg.RetryMin, p.cfg.RetryMax)
	first := true
	wait.Each(ctx, p.locals.wake, func() time.Duration {
		err := p.stepLocals(ctx, first)
		first = false
		if p.trouble.Saw(key, "local services cannot be brought further, trying again", err) {
			return pace.NextBackOff()
		}
		pace.Reset()
		return p.cfg.RelistEvery
	})
}

// stepLocals takes every local service as far as its pods are, and has the reservation say what they take.
func (p *Preparer) stepLocals(ctx context.Context, first bool) error {
	release, err := p.locals.take(ctx)
	if err != nil {
		return nil
	}
	defer release()
	seen, news := p.seenLocals(), first
	var errs []error
	for _, name := range local.Names(p.locals.all) {
		next, changed := p.locals.all[name].Next(seen, time.Now())
		if !changed {
			continue
		}
		news = true
		errs = append(errs, p.keepLocal(name, next))
		p.locals.dirty = true
	}
	if news {
		p.publish()
	}
	return errors.Join(append(errs, p.tidyClaims(ctx))...)
}

// tidyClaims has the reservation say what local services take, if it may not. A node without any, whose token may not write there, lacks nothing.
func (p *Preparer) tidyClaims(ctx context.Context) error {
	if p.reserver() == nil || len(p.locals.all) == 0 && !p.locals.dirty {
		return nil
	}
	_, err := p.book(ctx, nil)
	if len(p.locals.all) == 0 && (store.Denied(err) || errors.Is(err, store.ErrFiltered)) {
		p.locals.dirty = false
		return nil
	}
	if errors.Is(err, store.ErrLost) {
		return nil // the next session
	}
	return err
}

// bookAgain has the claims of local services reserved, as the record of them may have been lost.
func (p *Preparer) bookAgain(ctx context.Context) error {
	release, err := p.locals.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	if len(p.locals.all) == 0 {
		return nil
	}
	_, err = p.book(ctx, nil)
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
