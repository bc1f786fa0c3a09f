package farm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The model of the minimum and the bound of a service (ADR 16): two controllers with an owner each, nodes that report, and batches that
// land whenever the model likes. What one controller's own preparers and tenures can do is in the model of ADR 11.

const (
	revisionPods = 3 // identities of each revision
	serviceLeast = 2
	serviceMost  = 4
)

// serviceVariant leaves something out of the protocol.
type serviceVariant string

const (
	wholeService     serviceVariant = ""
	stopsUnchecked   serviceVariant = "what stops does not depend on companions' stops"
	addsUnchecked    serviceVariant = "what is added does not depend on companions' stops"
	stopsUnset       serviceVariant = "a stop does not set the owner's stops"
	addsUnset        serviceVariant = "an addition does not set the owner's stops"
	forcedUnset      serviceVariant = "a stop whatever the minimum does not set the owner's stops"
	dropsOfOwn       serviceVariant = "companions' drops are no condition"
	marksLate        serviceVariant = "stops and drops are listed after the companions' placements and realities"
	companionsUnread serviceVariant = "companions' drops are not listed again"
)

type life int

const (
	absent life = iota
	runs
	stopsNow
)

type servicePod struct {
	life      life
	placed    uint64 // index
	available bool
	reported  uint64 // index
}

// serviceState is the store.
type serviceState struct {
	pods   [2][revisionPods]servicePod
	drops  [2]store.Drops
	stops  [2]uint64
	fences [2]uint64
}

type serviceModel struct {
	serviceVariant
	choose    func(int) int
	index     uint64
	store     serviceState
	owners    [2]*serviceOwner
	flying    []*flight
	trace     []string
	violation string
}

func newServiceModel(v serviceVariant, choose func(int) int) *serviceModel {
	m := &serviceModel{serviceVariant: v, choose: choose, index: 100}
	for rev := range 2 {
		for i := range revisionPods {
			if i < 2 {
				m.store.pods[rev][i] = servicePod{runs, m.next(), i+rev < 2, m.next()}
			}
		}
		m.store.drops[rev] = store.Drops{Index: m.next(), Created: 1, Counts: map[string]store.DropCount{"n": {Created: 1}}}
		m.store.stops[rev], m.store.fences[rev] = m.next(), m.next()
		m.owners[rev] = &serviceOwner{serviceModel: m, rev: rev}
	}
	return m
}

func (m *serviceModel) next() uint64 { m.index++; return m.index }

func (m *serviceModel) say(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

func (m *serviceModel) count(is func(*servicePod) bool) (n int) {
	for rev := range 2 {
		for i := range revisionPods {
			if is(&m.store.pods[rev][i]) {
				n++
			}
		}
	}
	return n
}

func (m *serviceModel) available() int {
	return m.count(func(p *servicePod) bool { return p.life == runs && p.available })
}

func (m *serviceModel) placed() int {
	return m.count(func(p *servicePod) bool { return p.life != absent })
}

func (m *serviceModel) run(steps int) string {
	for range steps {
		switch c := m.choose(12); {
		case c < 3:
			m.report(m.choose(2), m.choose(revisionPods))
		case c < 8:
			m.owners[m.choose(2)].step()
		case len(m.flying) > 0:
			m.arrive()
		}
		if m.violation != "" {
			return m.violation + "\n  " + strings.Join(m.trace, "\n  ")
		}
	}
	return ""
}

// report is a node's: a copy that fell, one that is available by now, or one that has stopped, which its owner forgets at once.
func (m *serviceModel) report(rev, i int) {
	p := &m.store.pods[rev][i]
	switch {
	case p.life == stopsNow:
		m.say("%d.%d has stopped", rev, i)
		*p = servicePod{reported: m.next()}
	case p.life == runs && p.available:
		m.say("%d.%d falls", rev, i)
		p.available, p.reported = false, m.next()
		d := &m.store.drops[rev]
		d.Index, d.Counts = m.next(), map[string]store.DropCount{"n": {Created: 1, Drops: d.Counts["n"].Drops + 1}}
	case p.life == runs:
		m.say("%d.%d is available", rev, i)
		p.available, p.reported = true, m.next()
	}
}

func (m *serviceModel) arrive() {
	i := m.choose(len(m.flying))
	f := m.flying[i]
	m.flying = slices.Delete(m.flying, i, i+1)
	refused := f.land()
	m.say("%s lands, refused: %v", f.what, refused)
	if done := f.done; done != nil {
		done(refused, false)
	}
}

// serviceOwner is an owner and the pass that it makes.
type serviceOwner struct {
	*serviceModel
	rev     int
	todo    []func()
	waiting int
	seen    serviceState
	gate    *minimum
}

func (o *serviceOwner) step() {
	if len(o.todo) > 0 {
		i := 0
		if o.gate != nil { // batches go side by side
			i = o.choose(len(o.todo))
		}
		act := o.todo[i]
		o.todo = slices.Delete(o.todo, i, i+1)
		act()
		return
	}
	if o.waiting > 0 {
		return
	}
	o.gate = nil
	other := 1 - o.rev
	o.todo = []func(){
		func() { o.seen.fences = o.store.fences; o.readPlacements(o.rev) },
		func() {
			if o.serviceVariant != marksLate {
				o.list()
			}
			o.readPlacements(other)
		},
	}
	for rev := range 2 {
		for i := range revisionPods {
			o.todo = append(o.todo, func() {
				p := o.store.pods[rev][i]
				o.seen.pods[rev][i].available, o.seen.pods[rev][i].reported = p.available, p.reported
			})
		}
	}
	o.todo = append(o.todo, func() {
		if o.serviceVariant == marksLate {
			o.list()
		}
		o.plan()
	})
}

func (o *serviceOwner) list() { o.seen.drops, o.seen.stops = o.store.drops, o.store.stops }

func (o *serviceOwner) readPlacements(rev int) {
	for i := range revisionPods {
		o.seen.pods[rev][i].life, o.seen.pods[rev][i].placed = o.store.pods[rev][i].life, o.store.pods[rev][i].placed
	}
}

func dropsBy(d [2]store.Drops) store.DropsBy { return store.DropsBy{"0": d[0], "1": d[1]} }

func idOf(rev, i int) pod.Identity { return pod.Identity{RCID: fmt.Sprint(rev), Index: i} }

type serviceChange struct {
	pod                int
	adds, takes, force bool
}

// plan stops and adds pods as far as it may.
func (o *serviceOwner) plan() {
	var counting []store.Reported
	room := serviceMost
	forced := o.choose(8) // the pod that goes whatever the minimum, if there is such
	for rev := range 2 {
		for i := range revisionPods {
			p := &o.seen.pods[rev][i]
			if p.life != absent {
				room--
			}
			if p.life == runs && p.available && !(rev == o.rev && i == forced) {
				counting = append(counting, store.Reported{At: store.At{Identity: idOf(rev, i)}, Index: p.reported})
			}
		}
	}
	spare := len(counting) - serviceLeast
	var changes []serviceChange
	for i := range revisionPods {
		switch p := &o.seen.pods[o.rev][i]; {
		case p.life == runs && i == forced:
			changes = append(changes, serviceChange{pod: i, force: true})
		case o.choose(2) == 0:
		case p.life == runs && p.available && spare > 0:
			spare--
			changes = append(changes, serviceChange{pod: i, takes: true})
		case p.life == absent && room > 0:
			room--
			changes = append(changes, serviceChange{pod: i, adds: true})
		}
	}
	o.gate = newMinimum(dropsBy(o.seen.drops), counting, serviceLeast)
	for _, ch := range changes {
		o.todo = append(o.todo, func() { o.try(ch) })
	}
}

func (o *serviceOwner) try(ch serviceChange) {
	var cond conditions
	if ch.takes {
		var ok bool
		if cond, ok = o.gate.admit([]pod.Identity{idOf(o.rev, ch.pod)}); !ok {
			return
		}
	}
	gate, seen := o.gate, o.seen
	o.waiting++
	o.flying = append(o.flying, &flight{
		what: fmt.Sprintf("%+v of owner %d", ch, o.rev),
		land: func() []string { return o.land(ch, &seen, cond) },
		done: func(refused []string, _ bool) {
			o.waiting--
			if len(refused) == 0 || !ch.takes {
				return
			}
			gate.withdraw([]pod.Identity{idOf(o.rev, ch.pod)})
			newest := slices.Contains(refused, "newest")
			if newest {
				gate.forgo(cond.newest)
			}
			if newest && len(refused) <= 2 && !slices.Contains(refused, "stops") || slices.Equal(refused, []string{"drops"}) {
				o.todo = append(o.todo, func() {
					now := dropsBy(o.store.drops)
					if o.serviceVariant == companionsUnread { // the index alone
						d := o.store.drops[1-o.rev]
						d.Counts = seen.drops[1-o.rev].Counts
						now[fmt.Sprint(1-o.rev)] = d
					}
					gate.listed(now)
					o.try(ch)
				})
			}
		},
	})
}

// land carries a batch out if its conditions hold, and judges it.
func (o *serviceOwner) land(ch serviceChange, seen *serviceState, cond conditions) (refused []string) {
	s, other, v := &o.store, 1-o.rev, o.serviceVariant
	check := func(what string, holds bool) {
		if !holds && !slices.Contains(refused, what) {
			refused = append(refused, what)
		}
	}
	mine := &s.pods[o.rev][ch.pod]
	check("placement", mine.placed == seen.pods[o.rev][ch.pod].placed)
	check("stops", s.stops[other] == seen.stops[other] || ch.force || ch.takes && v == stopsUnchecked || ch.adds && v == addsUnchecked)
	if ch.takes {
		check("drops", s.drops[o.rev].Index == cond.drops[fmt.Sprint(o.rev)].Index)
		check("drops", v == dropsOfOwn || s.drops[other].Index == cond.drops[fmt.Sprint(other)].Index)
		if n := cond.newest; n != nil {
			rev := 0
			if n.RCID == "1" {
				rev = 1
			}
			check("newest", s.pods[rev][n.Identity.Index].reported == n.Index)
		}
	}
	if len(refused) > 0 {
		return refused
	}
	before := o.available()
	mine.placed = o.next()
	mine.life = stopsNow
	if ch.adds {
		mine.life = runs
	}
	if !(ch.adds && v == addsUnset || ch.takes && v == stopsUnset || ch.force && v == forcedUnset) {
		s.stops[o.rev] = o.next()
	}
	if after := o.available(); ch.takes && after < before && after < serviceLeast {
		o.violation = fmt.Sprintf("%d available are left of %d by %+v of owner %d", after, before, ch, o.rev)
	}
	if n := o.placed(); ch.adds && n > serviceMost {
		o.violation = fmt.Sprintf("%d are placed after %+v of owner %d", n, ch, o.rev)
	}
	return nil
}

const serviceSteps = 150

// Whatever comes between, two owners together leave the minimum of their service and keep to its bound.
func TestServiceModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10_000) {
		if why := newServiceModel(wholeService, rand.New(rand.NewPCG(seed, 16)).IntN).run(serviceSteps); why != "" {
			t.Fatalf("seed %d: %s", seed, why)
		}
	}
}

// Each part of the protocol is needed: without it some history breaks the minimum or the bound.
func TestServiceModelNeedsAll(t *testing.T) {
	t.Parallel()
	for _, v := range []serviceVariant{
		stopsUnchecked, addsUnchecked, stopsUnset, addsUnset, forcedUnset, dropsOfOwn, marksLate, companionsUnread,
	} {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(100_000) {
				if why := newServiceModel(v, rand.New(rand.NewPCG(seed, 16)).IntN).run(serviceSteps); why != "" {
					t.Logf("seed %d: %s", seed, why)
					return
				}
			}
			t.Error("no history breaks it")
		})
	}
}
