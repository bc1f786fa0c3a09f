package farm

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// history is one history of a unit: a store, two farms that may own it, nodes and operators. Any event may come between
// two calls of a look.
type history struct {
	*simVariant
	choose       func(n int) int
	store        *simStore
	owners       []*simOwner
	nodes        []*simNode
	flights      []simFlight
	others       map[string]map[pod.Identity]bool // shares of other units, by node
	rev          int64                            // the newest revision
	inEffect     int64
	smallBatches bool
	calm         bool // no more faults
	trace        []string
	violation    string

	mu sync.Mutex // protects the calls that wait, because looks add to them concurrently
}

// simFlight is an event that happens later, or never.
type simFlight struct {
	do   func()
	must bool // the event cannot be lost
}

// fate is what happens to a transaction.
type fate int

const (
	lands fate = iota
	landsUnheard
	isLost
	isLate
)

func (h *history) fate() fate {
	if h.calm {
		return lands
	}
	switch h.choose(24) {
	case 0:
		return landsUnheard
	case 1:
		return isLost
	case 2:
		return isLate
	default:
		return lands
	}
}

func (h *history) logf(format string, args ...any) {
	h.trace = append(h.trace, fmt.Sprintf(format, args...))
}

func (h *history) later(do func()) { h.flights = append(h.flights, simFlight{do: do}) }

func (h *history) epoch() string {
	return recordAt[store.Schema](h.store, simKeys.Schema.Key()).Value.Epoch
}

// hold makes the preparer's session hold the node's record.
func (h *history) hold(name string) {
	r := h.store.at[simKeys.Nodes.Key(name)]
	r.session, r.index = "preparer", h.store.next()
	h.store.at[simKeys.Nodes.Key(name)] = r
}

// arrives makes a farm's transaction land now, later, or never.
func (h *history) arrives(f fate, what string, t *simTxn, judge func() func(), landed func(map[string]uint64)) error {
	land := func() error {
		if err := h.store.refuses(t); err != nil {
			h.logf("%s is refused: %v", what, err)
			return err
		}
		h.logf("%s lands", what)
		judged := func() {}
		if judge != nil {
			judged = judge()
		}
		written := h.store.land(t)
		if landed != nil {
			landed(written)
		}
		judged()
		return nil
	}
	switch f {
	case lands:
		return land()
	case landsUnheard:
		_ = land() // the answer is lost
	case isLost:
		h.logf("%s is lost", what)
	default:
		h.logf("%s is late", what)
		h.later(func() { _ = land() }) // the sender does not wait for the answer
	}
	return store.ErrUnknown
}

// newHistory returns a service with one revision that runs.
func newHistory(v *simVariant, choose func(int) int) *history {
	h := &history{
		simVariant: v, choose: choose,
		store:  &simStore{at: map[string]simRecord{}, index: 100, ignored: map[condition]bool{v.ignores: true}},
		others: map[string]map[pod.Identity]bool{}, smallBatches: choose(3) == 0,
	}
	s := h.store
	s.set(simKeys.Schema.Key(), store.Schema{
		FormatVersion: store.FormatVersion, Epoch: "01hzzzzzzzzzzzzzzzzzzzzzza", CreatedAt: time.Now().Add(-time.Hour),
	})
	s.set(simKeys.Breaker.Key(), store.Breaker{})
	s.set(simKeys.Locks.Key(simUnit), "owner")
	s.set(simKeys.Drops.Key(simUnit), s.next())
	s.ring()
	for i := range 3 {
		n := &simNode{history: h, name: fmt.Sprintf("n%d", i), runs: map[pod.Identity]*simCopy{}}
		h.nodes, h.others[n.name] = append(h.nodes, n), map[pod.Identity]bool{}
		n.start()
	}
	h.nodes[0].bad = choose(3) == 0
	h.rev, h.inEffect = 1, 1
	s.set(simKeys.RCs.Key(rc.RevisionID(simUnit, 1)), h.revision(1, 2+choose(3)))
	for _, name := range []string{"f0", "f1"} {
		o := &simOwner{history: h, name: name, result: make(chan simResult, 1), prefers: name}
		h.owners = append(h.owners, o)
		o.join()
	}
	h.settle(12)
	return h
}

// revision makes the record of a revision.
func (h *history) revision(rev int64, n int) rc.RC {
	return rc.RC{
		ID: rc.RevisionID(simUnit, rev), Name: fmt.Sprintf("web-r%d", rev),
		ManifestDigest: fmt.Sprintf("%064d", rev), Strategy: rc.Dynamic,
		ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &n}},
		Service:       &rc.Service{Name: "web", Revision: rev}, Generation: 1,
		NodeLoss: rc.NodeLoss{After: new(field.Duration), UnmanagedAfter: new(field.Duration)},
	}
}

// step makes one event happen.
func (h *history) step() {
	switch c := h.choose(40); {
	case c < 22:
		h.owners[h.choose(len(h.owners))].step()
	case c < 33:
		h.nodes[h.choose(len(h.nodes))].step()
	case c < 35:
		h.operate()
	case c < 37 && len(h.flights) > 0:
		i := h.choose(len(h.flights))
		f := h.flights[i]
		h.flights = slices.Delete(h.flights, i, i+1)
		if f.must || h.choose(4) > 0 {
			f.do()
		}
	case c == 37 || c == 38:
		h.disturb()
	default:
		<-time.After(time.Duration(h.choose(3000)) * time.Millisecond) // by the bubble's clock
	}
}

func (s *simOwner) step() {
	switch calls := s.waiting(); {
	case len(calls) > 0:
		s.goOn(calls[s.choose(len(calls))])
	case s.unit == nil:
		s.claim()
	default:
		if s.choose(4) > 0 {
			s.watch()
		}
		s.begin()
	}
}

func (s *simNode) step() {
	if !s.alive {
		return
	}
	switch s.choose(8) {
	case 0, 1:
		s.hear()
	case 2, 3, 4:
		for _, id := range s.pods() {
			if s.choose(2) == 0 {
				s.work(id)
				s.turns(id, s.choose(4) > 0 && !s.bad)
			}
		}
	default:
		s.report()
	}
}

// disturb is an event of a farm, a node or a record.
func (h *history) disturb() {
	n := h.nodes[h.choose(len(h.nodes))]
	o := h.owners[h.choose(len(h.owners))]
	switch h.choose(10) {
	case 0:
		n.dies(h.choose(2) == 0)
		h.logf("%s dies, its machine too: %t", n.name, n.lost)
	case 1:
		h.logf("%s has a new preparer", n.name)
		n.start()
	case 2:
		if !o.ended {
			o.loses()
		}
	case 3:
		h.logf("%s should hand the unit over", o.name)
		if o.prefers = h.owners[h.choose(2)].name; o.unit != nil {
			o.unit.askHandOver()
		}
	case 4:
		tripped := store.Breaker{Tripped: h.choose(2) == 0}
		h.logf("the breaker: %t", tripped.Tripped)
		h.store.set(simKeys.Breaker.Key(), tripped)
	case 5, 8, 9:
		id := pod.Identity{RCID: "other", Role: "main", Index: h.choose(2)}
		h.logf("another unit changes its share of %s", n.name)
		h.share(n.name, id, h.others[n.name][id])
	case 6:
		h.logf("the drops are removed")
		delete(h.store.at, simKeys.Drops.Key(simUnit))
		for _, of := range h.nodes {
			delete(h.store.at, simKeys.Drops.Key(simUnit, of.name))
		}
	default:
		h.logf("the epoch is renewed")
		schema := recordAt[store.Schema](h.store, simKeys.Schema.Key()).Value
		schema.CreatedAt = schema.CreatedAt.Add(time.Second)
		h.store.set(simKeys.Schema.Key(), schema)
	}
}

// share makes another unit take a share of a node, or release it.
func (h *history) share(name string, id pod.Identity, gives bool) {
	key := simKeys.Reservations.Key(name)
	next := recordAt[node.Reservation](h.store, key).Value.Clone()
	if gives {
		delete(h.others[name], id)
		delete(next.Claims, id.String())
	} else {
		h.others[name][id] = true
		next.Claims[id.String()] = node.Claim{Pod: id}
	}
	h.store.set(key, next)
}

// run makes some steps, and then ends all faults. It returns which rule was broken; "": none.
func (h *history) run(steps int) string {
	for range steps {
		if h.step(); h.violation != "" {
			break
		}
	}
	if h.violation == "" {
		h.logf("calm")
		if why := h.settle(300); why != "" && h.violation == "" {
			h.violated("stuck: %s", why)
		}
	}
	h.end()
	if h.violation == "" {
		return ""
	}
	return strings.ReplaceAll(h.violation+"\n  "+strings.Join(h.trace, "\n  "), simUnit, "web")
}

// end ends all looks.
func (h *history) end() {
	h.calm = true
	for _, o := range h.owners {
		for o.looking {
			o.cancel()
			o.goOn(o.waiting()[0])
		}
	}
}

// settle makes at most this many rounds without faults. It returns what is not as desired after them.
func (h *history) settle(rounds int) (why string) {
	h.calm = true
	defer func() { h.calm = false }()
	for _, f := range h.flights {
		f.do()
	}
	h.flights = nil
	h.store.set(simKeys.Breaker.Key(), store.Breaker{})
	for _, n := range h.nodes {
		if !n.alive {
			n.start()
		}
	}
	for range rounds {
		if h.round(); h.violation != "" {
			return ""
		}
		if why = h.unsettled(); why == "" {
			return ""
		}
	}
	return why
}

// round lets each owner and node act once.
func (h *history) round() {
	<-time.After(time.Second)
	for _, o := range h.owners {
		o.watch()
		o.prefers = o.name
		if o.ended && !o.looking {
			o.join()
		}
		o.claim()
		for range 4 {
			if !o.looking && o.idle() {
				break
			}
			o.begin()
			o.runs()
		}
	}
	for _, n := range h.nodes {
		n.hear()
		for _, id := range n.pods() {
			n.work(id)
			n.turns(id, true)
		}
		if !n.busy {
			n.relist()
		}
		n.report()
	}
	switch rec := h.rollout(); rec.Value.State {
	case rollout.Paused:
		h.ask(rollout.ResumeVerb)
	case rollout.WaitingForPromote:
		h.ask(rollout.PromoteVerb)
	default:
	}
}

// runs continues the look to its end.
func (s *simOwner) runs() {
	for s.looking && s.violation == "" {
		s.goOn(s.waiting()[0])
	}
}

// unsettled returns what is not yet as desired.
func (h *history) unsettled() string {
	if rec := h.rollout(); rec.Index != 0 {
		return fmt.Sprintf("the rollout is %s, stage %d, %s %q %q %q",
			rec.Value.State, rec.Value.Stage, rec.Value.Phase, rec.Value.Reason, rec.Value.BlockedReason,
			rec.Value.Stuck)
	}
	pods := map[string]int{}
	for _, p := range h.placements() {
		r := recordAt[pod.Reality](h.store, realityKey(store.At{Node: p.Node, Identity: p.Identity})).Value
		if p.RunState != pod.Running || !r.Available || r.Digest != p.Digest || len(p.Ghosts) > 0 {
			return fmt.Sprintf(
				"%s is not available: %s on %s at %d, former copies %+v; it is %s at %d, the digests are %s, %s",
				p.Identity, p.RunState, p.Node, p.Revision, p.Ghosts, r.State, r.Revision, p.Digest, r.Digest)
		}
		pods[p.RCID]++
	}
	for _, id := range h.ids() {
		r := h.rcs()[id]
		if r.DeletedAt != nil {
			return id + " is deleted and has a record"
		}
		st := recordAt[rc.Status](h.store, simKeys.Statuses.Key(id)).Value
		if pods[id] != r.Desired() || st.Available != r.Desired() || st.ObservedGeneration != r.Generation {
			return fmt.Sprintf("%s has %d pods of %d, and the status %+v", id, pods[id], r.Desired(), st)
		}
	}
	return ""
}
