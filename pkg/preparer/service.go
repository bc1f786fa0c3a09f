package preparer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/health"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// The meta of a pod's service. MetaNode finds the services of one preparer at an agent that several may share.
const (
	MetaNode   = "rcfarm_node"
	MetaRC     = "rcfarm_rc"
	MetaRole   = "rcfarm_role"
	MetaIndex  = "rcfarm_index"
	MetaDigest = "rcfarm_digest"
)

// withdrawTimeout bounds how long a stop waits for the local agent; what it misses is swept later.
const withdrawTimeout = 2 * time.Second

// servicePrefix begins the id of every pod's service, and of nothing else's.
const servicePrefix = "rcfarm-pod-"

// ServiceID returns the id of a pod's service at the local agent.
func ServiceID(nodeName string, id pod.Identity) string {
	return fmt.Sprintf("%s%s-%s-%s-%d", servicePrefix, nodeName, id.RCID, id.Role, id.Index)
}

// StandbyServiceID returns the id of a pod's service at the local agent while the pod stands by: another one, so that the one is
// registered before the other goes.
func StandbyServiceID(nodeName string, id pod.Identity) string {
	return ServiceID(nodeName, id) + "..standby" // nothing that a main id ends with, or a port's name, has two dots
}

// serviceIDs returns the ids of all services of a pod, the main one first: those of one that stands by, or of one that does not.
func serviceIDs(nodeName string, id pod.Identity, m *manifest.Manifest, standby bool) []string {
	main := ServiceID(nodeName, id)
	if standby {
		main = StandbyServiceID(nodeName, id)
	}
	ids := []string{main}
	if m == nil {
		return ids
	}
	for _, named := range m.Services()[1:] {
		ids = append(ids, main+"."+named.Port) // neither a role nor an index has a dot
	}
	return ids
}

// servicesOf describes the services of an installed pod, one for each of its ports, the main one first, as they are while it stands by
// or does not. The check of the main one is that of all of them.
func servicesOf(n *node.Node, rec *Record, m *manifest.Manifest, standby bool) []consul.Service {
	id, ids, named := rec.Intent.Identity, serviceIDs(n.Name, rec.Intent.Identity, m, standby), m.Services()
	var tags []string
	meta := map[string]string{}
	if m.Service != nil {
		tags = m.Service.Tags
		maps.Copy(meta, m.Service.Meta)
	}
	maps.Copy(meta, map[string]string{
		MetaNode: n.Name, MetaRC: id.RCID, MetaRole: id.Role, MetaIndex: strconv.Itoa(id.Index), MetaDigest: rec.Installed.Digest,
	})
	services := make([]consul.Service, len(named))
	for i := range named {
		services[i] = consul.Service{
			ID: ids[i], Name: named[i].Name, Address: n.Address, Port: rec.Installed.Ports[named[i].Port], Tags: tags, Meta: meta,
		}
		if standby {
			services[i].Name = named[i].Standby()
		}
		switch {
		case m.Health == nil:
		case i == 0:
			services[i].Check = checkOf(n, rec, m.Health)
		default:
			services[i].Check = &consul.Check{Alias: ids[0]}
		}
	}
	return services
}

func checkOf(n *node.Node, rec *Record, h *manifest.Health) *consul.Check {
	check := &consul.Check{
		Interval: h.Interval.Or(manifest.DefaultHealthInterval), Timeout: h.Timeout.Or(manifest.DefaultHealthTimeout),
		SuccessThreshold: h.SuccessThreshold, FailureThreshold: h.FailureThreshold,
	}
	at := func(port string) string { return net.JoinHostPort(n.Address, strconv.Itoa(rec.Installed.Ports[port])) }
	switch {
	case h.HTTP != nil:
		check.HTTP = "http://" + at(h.HTTP.Port) + h.HTTP.Path
	case h.Script != nil:
		check = &consul.Check{TTL: scriptTTL(h)}
	case h.TCP != nil:
		check.TCP = at(h.TCP.Port)
	}
	return check
}

// fingerprint tells two definitions of a pod's services apart.
func fingerprint(services []consul.Service) string {
	sum := sha256.New()
	for i := range services {
		data, err := json.Marshal(&services[i])
		if err != nil {
			return "" // cannot be: it is made of plain fields
		}
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// checkState is what is known of a pod's health.
type checkState struct {
	known   bool // the agent has the service as it should be
	passing bool
	silent  bool // the agent has not answered since this preparer started
}

// saveServiceWithin is how long the fingerprint of a registered service may wait for another change of the record, mostly that
// the pod is available: a preparer that is killed before only registers the service once more, as if killed before it was noted.
const saveServiceWithin = time.Second

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

// watchServices keeps the local agent's services those of the local pods, and reads their health back from it. It
// writes only where something differs.
func (p *Preparer) watchServices(ctx context.Context) {
	select {
	case <-p.ready: // before, a running pod may be unknown
	case <-ctx.Done():
		return
	}
	defer p.endScripts()
	for {
		p.syncServices(ctx)
		if _, err := loop.PauseUnless(ctx, p.service, p.pollInterval()); err != nil {
			return
		}
	}
}

// pollInterval is short while the health of some pod is awaited. One that ends again and again is not looked at more often for that.
func (p *Preparer) pollInterval() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.pods {
		if !e.up || e.readiness.counts() {
			continue
		}
		if r, _ := p.board.Reality(e.id); !r.Available && r.State != pod.StateUnhealthy && r.State != pod.StateCrashLooping {
			return p.cfg.BusyPoll
		}
	}
	return p.cfg.IdlePoll
}

// serviceChange is one difference between the agent and the pods.
type serviceChange struct {
	entry       *entry
	services    []consul.Service // all of the pod
	fingerprint string
}

func (p *Preparer) syncServices(ctx context.Context) {
	p.tendScripts(ctx)
	const reading, writing = "services of the local agent", "registration of services"
	local, err := p.cfg.Services.LocalServices(ctx, MetaNode, p.cfg.Node.Name)
	register, strays := p.sawServices(local, err)
	if p.trouble.Failed(ctx, reading, "local Consul agent cannot be asked for services; health stays as last known", err) {
		return
	}
	var errs []error
	for _, change := range register {
		errs = append(errs, p.register(ctx, change))
	}
	for _, id := range strays {
		err := p.cfg.Services.DeregisterService(ctx, id)
		if errs = append(errs, err); err == nil {
			p.service.Raise() // that it is gone has to be seen before a pod is said to stand by
			p.step("deregister done")
			p.log.WithField(fieldService, id).Info("service that no pod is to have deregistered")
		}
	}
	errs = append(errs, p.vouchAnew(ctx))
	p.trouble.Failed(ctx, writing, "some services cannot be registered or deregistered", errors.Join(errs...))
}

// sawServices takes in what the agent has and returns what it should have in addition, and what it should not.
func (p *Preparer) sawServices(local map[string]consul.Health, err error) (register []serviceChange, strays []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.healthSeen {
		p.healthSeen = true
		p.seen.Raise()
	}
	if err != nil {
		return nil, nil
	}
	if !p.agentSeen {
		p.agentSeen = true
		p.allChanged()
	}
	now := time.Now()
	expected := map[string]bool{}
	for _, e := range p.pods {
		if change, due := p.sawServicesOf(e, local, expected, now); due {
			register = append(register, change)
		}
	}
	for id := range local {
		if !expected[id] && strings.HasPrefix(id, servicePrefix) {
			strays = append(strays, id)
		}
	}
	return register, strays
}

// sawHealth takes in what the agent says of a pod. The caller holds p.mu.
func (p *Preparer) sawHealth(e *entry, h checkState) {
	if e.health != h {
		e.health = h
		p.changed(e)
	}
}

// sawComplaint takes in what the check of a pod said. The caller holds p.mu.
func (p *Preparer) sawComplaint(e *entry, passing bool, text string, now time.Time) {
	switch {
	case passing:
		e.complaint = health.Complaint{} // that it passes is a change already
	case e.complaint.Hear(text, now):
		p.changed(e)
	}
}

// rested reports whether the initial delay of the pod's health check is over: the check begins with the registration.
func (e *entry) rested(m *manifest.Manifest, now time.Time) bool {
	if m.Health == nil || m.Health.InitialDelay == nil {
		return true
	}
	delay, running := m.Health.InitialDelay.Or(0), false
	for i := range e.procs {
		if e.procs[i].Phase != runtime.Running {
			continue
		}
		// The clock may have been ahead when the process was started; the time since it was first seen is nobody's to set.
		if running = true; now.Before(e.procs[i].StartedAt.Add(delay)) && now.Before(e.seenAt[runOf(&e.procs[i])].Add(delay)) {
			return false
		}
	}
	return running
}

// run is one run of a process.
type run struct {
	id      string
	pid     int
	started int64
}

func runOf(s *runtime.Status) run { return run{s.Spec.ID, s.PID, s.StartedAt.UnixNano()} }

// sawProcs notes what the runtime has of the pod, and since when this preparer knows of each run. The caller holds p.mu.
func (e *entry) sawProcs(procs []runtime.Status, now time.Time) {
	before := e.seenAt
	e.procs, e.seenAt = procs, make(map[run]time.Time, len(procs))
	for i := range procs {
		key := runOf(&procs[i])
		if e.seenAt[key] = now; !before[key].IsZero() {
			e.seenAt[key] = before[key]
		}
	}
}

func anyAlive(procs []runtime.Status) bool {
	return slices.ContainsFunc(procs, func(s runtime.Status) bool { return s.Phase != runtime.Stopped })
}

// sawServicesOf takes in what the agent has of one pod, and returns the services that it should have if it does not. The name that
// the pod is to leave stays, and its check counts, until the agent has the other one. The caller holds p.mu.
func (p *Preparer) sawServicesOf(e *entry, local map[string]consul.Health, expected map[string]bool, now time.Time) (change serviceChange, due bool) {
	m, standby := e.manifest(), e.rec.Intent.Standby
	here := registeredOf(local, serviceIDs(p.cfg.Node.Name, e.id, m, standby))
	there := registeredOf(local, serviceIDs(p.cfg.Node.Name, e.id, m, !standby))
	// What is registered without a process would send its clients to whatever else answers there.
	alive := e.up || anyAlive(e.procs)
	for _, id := range here.ids {
		expected[id] = alive
	}
	known, said := here.all, here.main
	if !known && there.all {
		known, said = true, there.main
	}
	right := false
	if e.up && m != nil {
		s := servicesOf(&p.cfg.Node, &e.rec, m, standby)
		change = serviceChange{entry: e, services: s, fingerprint: fingerprint(s)}
		right = here.all && e.service == change.fingerprint
		if !right {
			known = there.all && e.service == fingerprint(servicesOf(&p.cfg.Node, &e.rec, m, !standby))
			said = there.main
		}
		change.pass(known && said.Passing)
	}
	// The other name stays until the disk knows of this one: a successor that does not would take the pod for one without a service.
	noted := right && e.rec.Service == e.service
	for _, id := range there.ids {
		expected[id] = alive && !noted
	}
	if right && !noted && there.any {
		e.saveBy = now
		p.changed(e)
	}
	p.sawName(e, standby, noted || right && !there.any, there.any)
	p.sawHealth(e, checkState{known: known, passing: known && said.Passing})
	if !e.up || m == nil {
		return change, false
	}
	if e.check = said.Check; m.Health == nil || m.Health.Script == nil {
		p.sawComplaint(e, !known || said.Passing, said.Output, now)
	}
	if right {
		e.gate = gate{}
		return change, false
	}
	return change, e.rested(m, now) && e.gate.pass(now)
}

// registered is what the agent has of some services of a pod.
type registered struct {
	ids      []string
	main     consul.Health
	all, any bool
}

func registeredOf(local map[string]consul.Health, ids []string) registered {
	r := registered{ids: ids, main: local[ids[0]], all: true}
	for _, id := range ids {
		_, has := local[id]
		r.all, r.any = r.all && has, r.any || has
	}
	return r
}

// pass has the checks begin as passing: they look at what passes already, under another name.
func (c *serviceChange) pass(passing bool) {
	for i := range c.services {
		if c.services[i].Check != nil {
			c.services[i].Check.Passing = passing
		}
	}
}

// sawName takes in under which name the agent has the pod: right says that it is the one that the intent asks for, and other that
// something is there under the other one. The caller holds p.mu.
func (p *Preparer) sawName(e *entry, standby, right, other bool) {
	before := e.standby
	switch {
	case standby:
		e.standby = !other
	case right:
		e.standby = false
	}
	if e.standby != before {
		e.saveBy = sooner(e.saveBy, time.Now().Add(saveServiceWithin))
		p.changed(e)
	}
}

func (p *Preparer) register(ctx context.Context, c serviceChange) error {
	c.entry.registering.Lock()
	defer c.entry.registering.Unlock()
	p.mu.Lock()
	up := c.entry.up
	p.mu.Unlock()
	if !up {
		return nil // withdrawn since
	}
	if err := p.registerAll(ctx, c.services); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		c.entry.gate = gate{} // it paces what succeeds and does not last
		return err
	}
	p.step("register done")
	main := &c.services[0]
	p.logChange(c.entry, "register service", obs.Fields{fieldService: main.ID, fieldDigest: short(main.Meta[MetaDigest])})
	p.mu.Lock()
	defer p.mu.Unlock()
	c.entry.service = c.fingerprint
	c.entry.saveBy = time.Now().Add(saveServiceWithin)
	p.changed(c.entry)
	p.service.Raise() // one without a check passes at once
	return nil
}

// takeOut takes a pod's services away before its processes are stopped, and has it serve on for a while: whoever has just looked its
// address up comes all the same.
func (p *Preparer) takeOut(ctx context.Context, e *entry) {
	drain := p.withdraw(ctx, e)
	if drain == 0 {
		return
	}
	p.step("drain")
	if drain > tellAfter { // what all pods do is no news
		defer p.during(e, "serving on after it was deregistered")()
	}
	_ = loop.Pause(ctx, drain) // whoever comes next sees that ctx has ended
}

// withdraw takes a pod's services away. A stop does not depend on it: what the agent did not hear is swept by the next look at it. It
// returns for how long the pod has clients yet: none where it was not found before, or is found as before.
func (p *Preparer) withdraw(ctx context.Context, e *entry) (drain time.Duration) {
	e.registering.Lock()
	defer e.registering.Unlock()
	p.mu.Lock()
	m := e.manifest()
	ids := append(serviceIDs(p.cfg.Node.Name, e.id, m, false), serviceIDs(p.cfg.Node.Name, e.id, m, true)...)
	if m != nil && e.service != "" && !e.standby && anyAlive(e.procs) {
		drain = m.DrainFor()
	}
	e.standby = e.rec.Intent.Standby // it is found under no name
	e.up, e.service, e.health, e.complaint, e.gate = false, "", checkState{}, health.Complaint{}, gate{}
	script := e.script
	e.script = nil
	p.changed(e)
	p.mu.Unlock()
	script.end()
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	for _, id := range ids {
		if err := p.cfg.Services.DeregisterService(ctx, id); err != nil {
			p.podLog(e.id).WithField(obs.Error, err).Debug("service not deregistered yet")
			return 0
		}
	}
	return drain
}
