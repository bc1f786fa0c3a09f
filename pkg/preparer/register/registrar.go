// Package register keeps what is registered at the local Consul agent that of the node's pods, runs their health scripts, and says what the agent
// and the scripts say of them. It knows no intents and no records.
package register

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Services is the local Consul agent; *consul.Services is one.
type Services interface {
	RegisterService(ctx context.Context, s consul.Service) error
	DeregisterService(ctx context.Context, id string) error
	UpdateCheck(ctx context.Context, serviceID string, passing bool, output string) error
	LocalServices(ctx context.Context, metaKey, metaValue string) (map[string]consul.Health, error)
	// TokenID changes with the token that registrations bear.
	TokenID() string
}

// Pod is what a pod's services follow from.
type Pod struct {
	ID        pod.Identity
	Installed *install.Installed
	Manifest  *manifest.Manifest // of what is installed; nil: it is not known
	UID       int
	Standby   bool   // the pod is to be out of its service's name
	Up        bool   // what is installed was started, so that its services may be registered
	Alive     bool   // processes of it run
	Works     bool   // all processes of what is installed run that have not done their work, and none is in a crash loop
	Rested    bool   // the initial delay of its health check is over
	Waits     bool   // its health is awaited
	Noted     string // fingerprint of its services, as it is on the disk

	HTTPPath string // of its HTTP check, as it is asked for

	Runs      string           // fingerprint of those that run, where restart_after is about them; empty while not all do that have not done their work
	Procs     []runtime.Status // of what is installed, where a health script belongs to one; nil while some are missing
	Available bool             // these were available when they were last looked at
}

// Said is what is known of a pod's services.
type Said struct {
	Health

	Service   string // fingerprint of what was registered
	Standby   bool   // the agent has the pod out of its service's name
	Check     string // that the agent runs, by its name there; empty: it runs none, or does not have it
	Complaint string // of the health script, or of that check
	Hung      Hung
}

// Health is what is known of a pod's health.
type Health struct {
	Known   bool // the agent has the service as it should be, or the script has spoken
	Passing bool
	Silent  bool // the agent has not answered since this preparer started
}

// Config is what New needs.
type Config struct {
	Node     node.Node
	Dir      string // the data directory
	Services Services
	Runtime  runtime.Runtime // runs health scripts
	Versions *install.Node
	Limiter  *loop.LogLimiter
	Log      obs.Logger
	Step     func(name string)
	BusyPoll time.Duration // between two looks at the agent while the health of a pod is awaited
	IdlePoll time.Duration // between two looks when none is

	// Reach returns what of the agent's services may be touched now.
	Reach func() Reach
	// Pods returns all pods as they are now.
	Pods func(now time.Time) []Pod
	// Up reports whether a pod is up now.
	Up func(id pod.Identity) bool
	// Changed is told of which pods something else is said, and by when that must be on the disk; zero: need not be. It is also told when the
	// agent was asked for the first time.
	Changed func(pods map[pod.Identity]time.Time)
}

// Registrar is what has been registered, and what was said of it.
type Registrar struct {
	// Wake is raised when a pod may need its services registered.
	Wake wait.Signal

	cfg     Config
	began   time.Time // times of failing count from here, on the monotonic clock
	vouched string    // TokenID with which the services of all pods were registered; only Run uses it, and kept
	kept    time.Time // when the node's own service was last kept up

	mu       sync.Mutex // guards all below, and what it says of a service
	asked    bool       // the agent was asked at least once
	answered bool       // and has answered
	services map[pod.Identity]*service
}

// service is the services of one pod.
type service struct {
	// registering is held while they are changed, so that none is registered for a pod that is being stopped.
	registering sync.Mutex

	// The Registrar's lock guards these.
	fingerprint string // of what was registered
	standby     bool   // the agent has the pod out of its service's name, as seen last
	wanted      bool   // and that is where it is to be
	health      Health // as the agent says
	answer      answer // and what that tells of the pod's processes
	failing     failing
	check       string // name of the check there
	complaint   complaint
	gate        gate         // paces registrations that do not last
	script      *scriptWatch // nil while no health script runs
}

// New returns a Registrar that knows of no pod yet.
func New(cfg Config) (*Registrar, error) {
	vouched, err := readVouched(cfg.Dir)
	return &Registrar{Wake: wait.NewSignal(), cfg: cfg, began: time.Now(), vouched: vouched, services: map[pod.Identity]*service{}}, err
}

// of returns what there is of a pod. The caller holds r.mu.
func (r *Registrar) of(id pod.Identity) *service {
	s := r.services[id]
	if s == nil {
		s = &service{}
		r.services[id] = s
	}
	return s
}

// Know takes in a pod, and how its services were when somebody last noted it.
func (r *Registrar) Know(id pod.Identity, fingerprint string, standby bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of(id)
	s.fingerprint, s.standby = fingerprint, standby
}

// Forget drops a pod that the node does not know any more.
func (r *Registrar) Forget(id pod.Identity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.services, id)
}

// Said returns what is known of a pod's services.
func (r *Registrar) Said(id pod.Identity) Said {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of(id)
	said := Said{Health: s.health, Service: s.fingerprint, Standby: s.standby, Hung: s.failing.hung()}
	said.Silent = !r.answered
	if w := s.script; w != nil { // what it says counts, not what the agent heard of it
		said.Health = Health{Known: w.known, Passing: w.known && w.verdict.passing}
	} else if said.Known {
		said.Check = s.check
	}
	if said.Known {
		said.Complaint = s.complaint.text
	}
	return said
}

// Asked reports whether the agent was asked, so that what is said of pods is more than nothing.
func (r *Registrar) Asked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// Run keeps the agent's services those of the pods, and reads their health back from it, until ctx ends. It writes only where something
// differs.
func (r *Registrar) Run(ctx context.Context) {
	defer r.endScripts()
	wait.Each(ctx, r.Wake, func() time.Duration { return r.sync(ctx) })
}

// sync makes one look, and returns when the next one is due.
func (r *Registrar) sync(ctx context.Context) (poll time.Duration) {
	r.tendScripts(ctx)
	const reading, writing = "services of the local agent", "registration of services"
	local, err := r.cfg.Services.LocalServices(ctx, MetaNode, r.cfg.Node.Name)
	now := time.Now()
	pods := r.cfg.Pods(now)
	if poll = r.cfg.IdlePoll; slices.ContainsFunc(pods, func(p Pod) bool { return p.Waits }) {
		poll = r.cfg.BusyPoll
	}
	reach := r.cfg.Reach() // before the pods are compared: what is known of them then is no older
	register, strays := r.saw(pods, local, err, now, reach)
	if r.sawAnswers(pods, err == nil, now) {
		poll = r.cfg.BusyPoll // a pass that is over soon is to be seen
	}
	if r.cfg.Limiter.Failed(ctx, reading, "local Consul agent cannot be asked for services; health stays as last known", err) {
		return poll
	}
	var errs []error
	if reach >= Running {
		errs = append(errs, r.keepNode(ctx, pods, now)) // before pods are registered that depend on it
		errs = append(errs, r.tell(ctx, pods, local)...)
	}
	for _, change := range register {
		if r.cfg.Reach() < Running {
			break
		}
		_, err := r.register(ctx, change, false)
		errs = append(errs, err)
	}
	for _, id := range strays {
		if r.cfg.Reach() < Known {
			break
		}
		err := r.cfg.Services.DeregisterService(ctx, id)
		if errs = append(errs, err); err == nil {
			r.Wake.Raise() // that it is gone has to be seen before a pod is said to stand by
			r.cfg.Step("deregister done")
			r.cfg.Log.WithField(fieldService, id).Info("service that no pod is to have deregistered")
		}
	}
	if r.cfg.Reach() >= Running {
		errs = append(errs, r.vouchAnew(ctx))
	}
	r.cfg.Limiter.Failed(ctx, writing, "some services cannot be registered or deregistered", errors.Join(errs...))
	return poll
}

// saveWithin is how long the fingerprint of a registered service may wait for another change of the record, mostly that
// the pod is available: a preparer that is killed before only registers the service once more, as if killed before it was noted.
const saveWithin = time.Second

// change is one difference between the agent and a pod.
type change struct {
	id          pod.Identity
	services    []consul.Service // all of the pod
	fingerprint string
}

// pass has the checks begin as passing: they look at what passes already, under another name.
func (c *change) pass(passing bool) {
	for i := range c.services {
		if c.services[i].Check != nil {
			c.services[i].Check.Passing = passing
		}
	}
}

// saw takes in what the agent has and returns what it should have in addition, and what it should not.
func (r *Registrar) saw(pods []Pod, local map[string]consul.Health, err error, now time.Time, reach Reach) (register []change, strays []string) {
	r.mu.Lock()
	first := !r.asked || !r.answered && err == nil
	r.asked, r.answered = true, r.answered || err == nil
	news := map[pod.Identity]time.Time{} // by when they are to be saved
	expected := map[string]bool{}
	for i := range pods {
		p := &pods[i]
		if err == nil {
			c, due, other, saveBy := r.of(p.ID).saw(&r.cfg.Node, p, local, expected, now, reach)
			if due {
				register = append(register, c)
			}
			if other {
				news[p.ID] = saveBy
			}
		}
		if _, other := news[p.ID]; first && !other {
			news[p.ID] = time.Time{}
		}
	}
	r.mu.Unlock()
	if first || len(news) > 0 {
		r.cfg.Changed(news)
	}
	return register, straysOf(local, expected, reach)
}

// saw takes in what the agent has of one pod, and returns the services that it should have if it does not, and whether something else is known
// of them than before. The name that the pod is to leave stays, and its check counts, until the agent has the other one.
func (s *service) saw(n *node.Node, p *Pod, local map[string]consul.Health, expected map[string]bool, now time.Time, reach Reach) (c change, due, news bool, saveBy time.Time) {
	here := registeredOf(local, serviceIDs(n.Name, p.ID, p.Manifest, p.Standby))
	there := registeredOf(local, serviceIDs(n.Name, p.ID, p.Manifest, !p.Standby))
	// What is registered without a process would send its clients to whatever else answers there.
	alive := p.Up || p.Alive
	for _, id := range here.ids {
		expected[id] = alive
	}
	known, said := here.all, here.main
	if !known && there.all {
		known, said = true, there.main
	}
	if p.told() { // it is available as its processes are
		said = consul.Health{Passing: true}
	}
	right, up := false, p.Up && p.Manifest != nil
	if up {
		c = changeOf(n, p)
		right = here.all && s.fingerprint == c.fingerprint
		if !right {
			known = there.all && s.fingerprint == fingerprint(servicesOf(n, p, !p.Standby))
			said = there.main
		}
		if !right && here.all && s.relimited(n, p) {
			known, said = true, here.main
		}
		if p.told() {
			said = consul.Health{Passing: true}
			c.pass(p.Works)
		} else {
			c.pass(known && said.Passing)
		}
	}
	// The other name stays until the disk knows of this one: a successor that does not would take the pod for one without a service.
	noted := right && p.Noted == s.fingerprint
	for _, id := range there.ids {
		expected[id] = alive && !noted
	}
	standby, was := s.standby, s.health
	s.wanted = p.Standby
	unseen := p.told() && !p.Works && !here.any && !there.any // it is registered once it works, as it would else be twice
	switch {
	case unseen:
		s.standby = p.Standby // it is found under no name
	case p.Standby:
		s.standby = !there.any
	case noted || right && !there.any:
		s.standby = false
	}
	if s.standby != standby {
		saveBy = now.Add(saveWithin)
	}
	if right && !noted && there.any {
		news, saveBy = true, now
	}
	s.health = Health{Known: known, Passing: known && said.Passing}
	s.answer = answerOf(s.health.Passing, known && said.Failed)
	news = news || s.standby != standby || s.health != was
	if !up {
		return c, false, news, saveBy
	}
	if s.check = said.Check; p.Manifest.Health == nil || p.Manifest.Health.Script == nil {
		news = s.hear(!known || said.Passing, said.Output, now) || news
	}
	if right {
		s.gate = gate{}
		return c, false, news, saveBy
	}
	if unseen {
		return c, false, news, saveBy
	}
	return c, reach >= Running && p.Rested && s.gate.pass(now), news, saveBy
}

// relimited reports whether the agent has the services of the same processes with other limits: its check goes on as
// it is.
func (s *service) relimited(n *node.Node, p *Pod) bool {
	if s.fingerprint == "" {
		return false
	}
	for _, digest := range append([]string{p.Installed.MadeAs}, p.Installed.Former...) {
		before, was := *p, *p.Installed
		was.Digest = digest
		if before.Installed = &was; digest != "" && s.fingerprint == fingerprint(servicesOf(n, &before, p.Standby)) {
			return true
		}
	}
	return false
}

func changeOf(n *node.Node, p *Pod) change {
	services := servicesOf(n, p, p.Standby)
	return change{id: p.ID, services: services, fingerprint: fingerprint(services)}
}

// hear takes in what the check of a pod said, and returns whether that is news.
func (s *service) hear(passing bool, text string, now time.Time) bool {
	if passing {
		s.complaint = complaint{} // that it passes is a change already
		return false
	}
	return s.complaint.hear(text, now)
}

// gate paces registrations of a service that the agent does not keep, or does not show to our token.
type gate struct {
	next  time.Time
	delay time.Duration
}

func (g *gate) pass(now time.Time) bool {
	if now.Before(g.next) {
		return false
	}
	g.delay = min(max(2*g.delay, time.Second), time.Minute)
	g.next = now.Add(g.delay)
	return true
}

// register registers the services of a pod, unless they were withdrawn since or, to do it again, have changed.
func (r *Registrar) register(ctx context.Context, c change, again bool) (done bool, err error) {
	s, up := r.enter(c.id)
	defer s.registering.Unlock()
	if !up || again && r.Said(c.id).Service != c.fingerprint {
		return false, nil
	}
	for _, one := range c.services {
		if err := r.cfg.Services.RegisterService(ctx, one); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			s.gate = gate{} // it paces what succeeds and does not last
			return false, err
		}
	}
	if again {
		return true, nil
	}
	r.cfg.Step("register done")
	main := &c.services[0]
	r.podLog(c.id).WithFields(obs.Fields{fieldService: main.ID, "digest": install.Short(main.Meta[MetaDigest]), obs.Action: "register service"}).Info("pod changed")
	r.mu.Lock()
	s.fingerprint = c.fingerprint
	r.mu.Unlock()
	r.cfg.Changed(map[pod.Identity]time.Time{c.id: time.Now().Add(saveWithin)})
	r.Wake.Raise() // one without a check passes at once
	return true, nil
}

// enter takes the services of a pod, so that nobody else changes them before they are unlocked, and reports whether it is up then.
func (r *Registrar) enter(id pod.Identity) (s *service, up bool) {
	r.mu.Lock()
	s = r.of(id)
	r.mu.Unlock()
	s.registering.Lock()
	return s, r.cfg.Up(id)
}

// withdrawTimeout bounds how long a stop waits for the local agent; what it misses is swept later.
const withdrawTimeout = 2 * time.Second

// Withdraw takes the services of a pod away that is not up any more, and ends its health script. A stop does not depend on it: what the agent did
// not hear is swept by the next look at it. It returns for how long the pod has clients yet: none where it was not found before, or is
// found as before.
func (r *Registrar) Withdraw(ctx context.Context, p *Pod) (drain time.Duration) {
	s, _ := r.enter(p.ID)
	defer s.registering.Unlock()
	r.mu.Lock()
	if p.Manifest != nil && s.fingerprint != "" && !s.standby && p.Alive {
		drain = p.Manifest.DrainFor()
	}
	s.standby = p.Standby // it is found under no name
	s.fingerprint, s.health, s.complaint, s.gate, s.failing = "", Health{}, complaint{}, gate{}, failing{}
	script := s.script
	s.script = nil
	r.mu.Unlock()
	r.cfg.Changed(map[pod.Identity]time.Time{p.ID: {}})
	script.end()
	if r.cfg.Reach() < Running {
		return drain // they are another preparer's, if they are there
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	for _, standby := range []bool{false, true} {
		for _, id := range serviceIDs(r.cfg.Node.Name, p.ID, p.Manifest, standby) {
			if err := r.cfg.Services.DeregisterService(ctx, id); err != nil {
				r.podLog(p.ID).WithField(obs.Error, err).Debug("service not deregistered yet")
				return 0
			}
		}
	}
	return drain
}

// fieldService names a service in the log.
const fieldService = "service"

func (r *Registrar) podLog(id pod.Identity) obs.Logger {
	return r.cfg.Log.WithField(obs.Pod, id.String())
}
