// Package register keeps the services at the local Consul agent equal to the services of the node's pods, and runs the
// pods' health scripts. It does not use intents or records.
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

// Services is the local Consul agent.
type Services interface {
	RegisterService(ctx context.Context, s consul.Service) error
	DeregisterService(ctx context.Context, id string) error
	UpdateCheck(ctx context.Context, serviceID string, passing bool, output string) error
	LocalServices(ctx context.Context, metaKey, metaValue string) (map[string]consul.Health, error)
	// TokenID identifies the token of registrations. It changes when the token changes.
	TokenID() string
}

// Pod has the facts from which a pod's services are derived.
type Pod struct {
	ID        pod.Identity
	Installed *install.Installed
	Manifest  *manifest.Manifest // of the installed version; nil: not known
	UID       int
	Standby   bool // clients must not find the pod under its service's name
	Up        bool // the installed version was started, so its services may be registered
	Alive     bool // processes of the pod run
	// Works: all processes of the installed version run or have ended with code 0 for good; none is crash-looping.
	Works  bool
	Rested bool   // the initial delay of the health check is over
	Waits  bool   // the preparer waits for the check's result
	Noted  string // fingerprint of the pod's services, as on the disk

	HTTPPath string // path of the HTTP check, with variables replaced

	// Runs is a fingerprint of the running processes, for restart_after; empty while a process is missing.
	Runs      string
	Procs     []runtime.Status // if it has a health script: of the installed version; nil while some are missing
	Available bool             // the pod was available when it was last observed
}

// State is what is known about a pod's services.
type State struct {
	Health

	Service   string // fingerprint of the services as registered
	Standby   bool   // the agent has the pod under its standby name
	Check     string // name of the check that the agent runs; empty: the agent has none
	Complaint string // output of the health script or of the check, if it does not pass
	Hung      Hung
}

// Health has what is known about a pod's health.
type Health struct {
	Known   bool // the agent has the right service, or the health script has a verdict
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
	BusyPoll time.Duration // between two reads of the agent while the preparer waits for a pod's health
	IdlePoll time.Duration // between two reads otherwise

	// Reach returns which services may be changed now.
	Reach func() Reach
	Pods  func(now time.Time) []Pod
	// Up reports whether the installed version of a pod was started and is not being stopped.
	Up func(id pod.Identity) bool
	// Changed gets the pods whose State has changed, each with the time by which the change must be on the disk; zero:
	// no save is needed. It is also called after the first read of the agent.
	Changed func(pods map[pod.Identity]time.Time)
}

// Registrar registers the services of all pods.
type Registrar struct {
	// Wake is raised when the services of a pod may have to change.
	Wake wait.Signal

	cfg   Config
	began time.Time // start of the monotonic times in failing
	// vouched is the TokenID of the registrations of all pods. Only Run uses vouched and kept.
	vouched string
	kept    time.Time // when the node's own service was last renewed

	mu       sync.Mutex // guards the fields below, and most fields of each service
	asked    bool       // a read of the agent was tried at least once
	answered bool       // the agent has answered at least once
	services map[pod.Identity]*service
}

type service struct {
	// registering is held while the services change at the agent, so that no service is registered while Withdraw
	// removes them.
	registering sync.Mutex

	fingerprint string // of the registered services
	standby     bool   // as last seen, the agent has the pod only under its standby name
	wanted      bool   // the pod should have its standby name
	health      Health // from the agent
	answer      answer // what this health means for the pod's processes
	failing     failing
	check       string // name of the check at the agent
	complaint   complaint
	gate        gate         // delays registrations that the agent does not keep
	script      *scriptWatch // nil while no health script runs
}

// New returns a Registrar without pods.
func New(cfg Config) (*Registrar, error) {
	vouched, err := readVouched(cfg.Dir)
	return &Registrar{
		Wake: wait.NewSignal(), cfg: cfg, began: time.Now(), vouched: vouched,
		services: map[pod.Identity]*service{},
	}, err
}

// of adds the pod if it is new. The caller holds r.mu.
func (r *Registrar) of(id pod.Identity) *service {
	s := r.services[id]
	if s == nil {
		s = &service{}
		r.services[id] = s
	}
	return s
}

// Know adds a pod with what its record on the disk has.
func (r *Registrar) Know(id pod.Identity, fingerprint string, standby bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of(id)
	s.fingerprint, s.standby = fingerprint, standby
}

// Forget removes a pod.
func (r *Registrar) Forget(id pod.Identity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.services, id)
}

// StateOf returns what is known about a pod's services.
func (r *Registrar) StateOf(id pod.Identity) State {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of(id)
	known := State{Health: s.health, Service: s.fingerprint, Standby: s.standby, Hung: s.failing.hung()}
	known.Silent = !r.answered
	if w := s.script; w != nil { // use the script's verdict, not the agent's copy
		known.Health = Health{Known: w.known, Passing: w.known && w.verdict.passing}
	} else if known.Known {
		known.Check = s.check
	}
	if known.Known {
		known.Complaint = s.complaint.text
	}
	return known
}

// Asked reports whether a read of the agent was tried. Before that, StateOf returns nothing useful.
func (r *Registrar) Asked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// Run keeps the agent's services equal to the pods' services, and reads the pods' health, until ctx ends.
func (r *Registrar) Run(ctx context.Context) {
	defer r.endScripts()
	wait.Each(ctx, r.Wake, func() time.Duration { return r.sync(ctx) })
}

// sync reads the agent once, writes the differences, and returns the time until the next read.
func (r *Registrar) sync(ctx context.Context) (poll time.Duration) {
	r.tendScripts(ctx)
	const reading, writing = "services of the local agent", "registration of services"
	local, err := r.cfg.Services.LocalServices(ctx, MetaNode, r.cfg.Node.Name)
	now := time.Now()
	pods := r.cfg.Pods(now)
	if poll = r.cfg.IdlePoll; slices.ContainsFunc(pods, func(p Pod) bool { return p.Waits }) {
		poll = r.cfg.BusyPoll
	}
	reach := r.cfg.Reach()
	register, strays := r.saw(pods, local, err, now, reach)
	if r.sawAnswers(pods, err == nil, now) {
		poll = r.cfg.BusyPoll // because a check that passes again must be seen soon
	}
	if r.cfg.Limiter.Failed(ctx, reading, "local Consul agent cannot be asked for services; health stays as last known",
		err) {
		return poll
	}
	var errs []error
	if reach >= Running {
		errs = append(errs, r.keepNode(ctx, pods, now)) // first, because checks of pods depend on the node's service
		errs = append(errs, r.reportWorks(ctx, pods, local)...)
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
			r.Wake.Raise() // look again, because the pod becomes a standby when this service is gone
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

// saveWithin is how long the save of a new fingerprint may wait for another change of the record, usually the change to
// available. If the preparer is killed before, the next one registers the service once more.
const saveWithin = time.Second

type change struct {
	id          pod.Identity
	services    []consul.Service // all services of the pod
	fingerprint string
}

// pass: the checks start as passing if the pod passes already, for example under its other name.
func (c *change) pass(passing bool) {
	for i := range c.services {
		if c.services[i].Check != nil {
			c.services[i].Check.Passing = passing
		}
	}
}

func (r *Registrar) saw(pods []Pod, local map[string]consul.Health, err error, now time.Time,
	reach Reach,
) (register []change, strays []string) {
	r.mu.Lock()
	first := !r.asked || !r.answered && err == nil
	r.asked, r.answered = true, r.answered || err == nil
	news := map[pod.Identity]time.Time{} // when to save the change of each pod
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

// saw compares the services that the agent has with those that the pod should have. It returns whether to register the
// latter now (due), and whether the pod's state has changed (news). Between the usual and the standby name, the former
// name is kept until the agent has the new one.
func (s *service) saw(n *node.Node, p *Pod, local map[string]consul.Health, expected map[string]bool, now time.Time,
	reach Reach,
) (c change, due, news bool, saveBy time.Time) {
	here := registeredOf(local, serviceIDs(n.Name, p.ID, p.Manifest, p.Standby))
	there := registeredOf(local, serviceIDs(n.Name, p.ID, p.Manifest, !p.Standby))
	// If no process runs, the service must go, because another program could listen on its port.
	alive := p.Up || p.Alive
	for _, id := range here.ids {
		expected[id] = alive
	}
	known, main := here.all, here.main
	if !known && there.all {
		known, main = true, there.main
	}
	if p.checkless() { // such a pod is healthy if its processes run
		main = consul.Health{Passing: true}
	}
	right, up := false, p.Up && p.Manifest != nil
	if up {
		c = changeOf(n, p)
		right = here.all && s.fingerprint == c.fingerprint
		if !right {
			known = there.all && s.fingerprint == fingerprint(servicesOf(n, p, !p.Standby))
			main = there.main
		}
		if !right && here.all && s.relimited(n, p) {
			known, main = true, here.main
		}
		if p.checkless() {
			main = consul.Health{Passing: true}
			c.pass(p.Works)
		} else {
			c.pass(known && main.Passing)
		}
	}
	// Keep the services under the former name until the pod's record on the disk has the fingerprint of the new ones.
	// If a new preparer starts before that, it has only the former fingerprint. Without the former services it would
	// not know the pod's health.
	noted := right && p.Noted == s.fingerprint
	for _, id := range there.ids {
		expected[id] = alive && !noted
	}
	standby, was := s.standby, s.health
	s.wanted = p.Standby
	// A pod without a check is registered only when it works, so that one registration is enough.
	unseen := p.checkless() && !p.Works && !here.any && !there.any
	switch {
	case unseen:
		s.standby = p.Standby // the agent has the pod under no name
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
	s.health = Health{Known: known, Passing: known && main.Passing}
	s.answer = answerOf(s.health.Passing, known && main.Failed)
	news = news || s.standby != standby || s.health != was
	if !up {
		return c, false, news, saveBy
	}
	if s.check = main.Check; p.Manifest.Health == nil || p.Manifest.Health.Script == nil {
		news = s.hear(!known || main.Passing, main.Output, now) || news
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

// relimited reports whether the registered services belong to the same processes before their limits were changed, so
// that the result of the check is still valid.
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

func (s *service) hear(passing bool, text string, now time.Time) bool {
	if passing {
		s.complaint = complaint{} // the caller reports the change to passing
		return false
	}
	return s.complaint.hear(text, now)
}

// gate makes growing pauses between registrations that the agent does not keep, or does not show to the preparer's
// token.
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

// register registers the services of a pod that is up. If again is set, it only repeats a registration that has not
// changed since.
func (r *Registrar) register(ctx context.Context, c change, again bool) (done bool, err error) {
	s, up := r.enter(c.id)
	defer s.registering.Unlock()
	if !up || again && r.StateOf(c.id).Service != c.fingerprint {
		return false, nil
	}
	for _, one := range c.services {
		if err := r.cfg.Services.RegisterService(ctx, one); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			s.gate = gate{} // the gate is only for registrations that succeed but are not kept
			return false, err
		}
	}
	if again {
		return true, nil
	}
	r.cfg.Step("register done")
	main := &c.services[0]
	r.podLog(c.id).WithFields(obs.Fields{
		fieldService: main.ID, "digest": install.Short(main.Meta[MetaDigest]),
		obs.Action: "register service",
	}).Info("pod changed")
	r.mu.Lock()
	s.fingerprint = c.fingerprint
	r.mu.Unlock()
	r.cfg.Changed(map[pod.Identity]time.Time{c.id: time.Now().Add(saveWithin)})
	r.Wake.Raise() // look again, because a service without a check passes at once
	return true, nil
}

// enter locks the services of a pod. The caller unlocks s.registering.
func (r *Registrar) enter(id pod.Identity) (s *service, up bool) {
	r.mu.Lock()
	s = r.of(id)
	r.mu.Unlock()
	s.registering.Lock()
	return s, r.cfg.Up(id)
}

// withdrawTimeout is how long a stop waits for the local agent. A later sync deregisters what is left.
const withdrawTimeout = 2 * time.Second

// Withdraw deregisters the services of a pod that is not up any more, and ends its health script. If the agent fails,
// the next sync deregisters the rest. Withdraw returns how long clients can still use the pod: zero if the agent did
// not have the pod under its usual name, or a deregistration fails.
func (r *Registrar) Withdraw(ctx context.Context, p *Pod) (drain time.Duration) {
	s, _ := r.enter(p.ID)
	defer s.registering.Unlock()
	r.mu.Lock()
	if p.Manifest != nil && s.fingerprint != "" && !s.standby && p.Alive {
		drain = p.Manifest.DrainFor()
	}
	s.standby = p.Standby // the agent has the pod under no name
	s.fingerprint, s.health, s.complaint, s.gate, s.failing = "", Health{}, complaint{}, gate{}, failing{}
	script := s.script
	s.script = nil
	r.mu.Unlock()
	r.cfg.Changed(map[pod.Identity]time.Time{p.ID: {}})
	script.end()
	if r.cfg.Reach() < Running {
		return drain // the agent's services may belong to another preparer
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

const fieldService = "service"

func (r *Registrar) podLog(id pod.Identity) obs.Logger {
	return r.cfg.Log.WithField(obs.Pod, id.String())
}
