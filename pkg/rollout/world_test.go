package rollout_test

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// The ids of the service's controllers.
const (
	unit = "01m82rq476dk3dzcatmcv2vmc4"

	web1, web2, web3, web7, web9 = unit + "-1", unit + "-2", unit + "-3", unit + "-7", unit + "-9"
	webPre                       = unit + "-2-pre"
)

// world simulates a cluster with one service and its owners. Owners act as docs/design/rollouts.md describes, and each
// of their transactions sees everything.
type world struct {
	rnd      *rand.Rand
	luck     *rand.Rand // chooses nodes
	machines bool       // on some machines pods never become available
	now      time.Time
	epoch    string
	breaker  string
	rcs      map[string]rc.RC
	status   map[string]*rc.Status
	pods     []*simPod
	record   *rollout.Record
	ended    *rollout.Decision // of the last rollout that ended
	sick     map[string]bool   // digests whose pods never become available
	holding  map[string]bool
	least    int // minimum and bound of the service, computed from the knobs
	most     int
	total    int
	calm     bool // no more random faults
	tracing  bool
	trace    []string
	broken   []string // rules that were violated
	gates    func(*rollout.GateCall) string
	answer   *rollout.GateAnswer
	pre      *rollout.PreDeployed
}

type simPod struct {
	rc, role, digest string
	available        bool
	stopping         bool
	lost             bool
	standby          bool  // its node has registered it as a standby
	leaves           bool  // its placement takes it out of the name
	foundAt          int64 // generation at which it was adopted; 0: not adopted
	hopeless         bool
	switching        bool      // it has not been available since its upgrade
	unfit            bool      // it never becomes available on its node
	tried            time.Time // when it moved to its second node; zero: it did not
}

func newWorld(seed int64) *world {
	return &world{
		rnd: rand.New(rand.NewSource(seed)), luck: rand.New(rand.NewSource(^seed)), now: t0, epoch: "n1",
		rcs: map[string]rc.RC{}, status: map[string]*rc.Status{}, sick: map[string]bool{},
		holding: map[string]bool{},
	}
}

func (w *world) log(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf(format, args...))
	}
}

func (w *world) violated(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
	w.log("VIOLATED "+format, args...)
}

// ids returns the ids of the controllers, sorted.
func (w *world) ids() []string {
	var ids []string
	for id := range w.rcs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (w *world) podsOf(id string) []*simPod {
	var out []*simPod
	for _, p := range w.pods {
		if p.rc == id {
			out = append(out, p)
		}
	}
	return out
}

// serves reports whether a pod is available for the minimum, by its registration and its placement.
func (s *simPod) serves() bool {
	return s.available && !s.stopping && !s.lost && !s.standby && !s.leaves
}

func (w *world) serving() int {
	n := 0
	for _, p := range w.pods {
		if p.serves() {
			n++
		}
	}
	return n
}

func (w *world) wantsStandby(p *simPod) bool {
	s := w.rcs[p.rc].Service
	return s != nil && s.Standby
}

// living returns how many pods are counted for the bound.
func (w *world) living() int {
	n := 0
	for _, p := range w.pods {
		if !p.lost {
			n++
		}
	}
	return n
}

func (w *world) regressed(id string) bool {
	r := w.rcs[id]
	placed := 0
	found := false
	for _, p := range w.podsOf(id) {
		if !p.stopping {
			placed++
			found = found || p.foundAt == r.Generation
		}
	}
	return found && placed > r.Desired()
}

// beside returns the other revisions of the service.
func (w *world) beside(id string) (ids []string) {
	for _, other := range w.ids() {
		if r := w.rcs[other]; other != id && r.Service != nil {
			ids = append(ids, other)
		}
	}
	return ids
}

// ofService returns the strictest limits of the controllers that are not deleted.
func (w *world) ofService() (least, most int) {
	for _, r := range w.rcs {
		if r.Service == nil || r.DeletedAt != nil {
			continue
		}
		least = max(least, r.Service.Min)
		if most == 0 || r.Service.Max > 0 && r.Service.Max < most {
			most = r.Service.Max
		}
	}
	return least, most
}

// own simulates one pass of a controller's owner.
func (w *world) own(id string) {
	r := w.rcs[id]
	w.tryElsewhere(id)
	beside := w.beside(id)
	shared := r.Service != nil && len(beside) > 0
	least, most := r.MinimumAvailable(), r.Desired()+r.Surge()
	if shared {
		least, most = w.ofService()
	}
	if shared && w.record == nil {
		asked := r.Asks()
		for _, other := range beside {
			o := w.rcs[other]
			asked += o.Asks()
		}
		least, most = min(least, asked), max(most, asked+r.Surge())
	}
	blocked := w.holding[id]
	if shared {
		for _, other := range beside {
			if _, there := w.rcs[other]; there && (w.holding[other] || w.regressed(other)) {
				blocked = true
			}
		}
	}
	if !w.regressed(id) && !w.holding[id] {
		w.shrink(id, least, shared)
	}
	if !blocked {
		w.grow(id, most, shared)
	}
	w.upgrade(id, least)
	w.switchNames(id, least, shared)
	w.report(id)
}

// shrink stops pods beyond the count. Pods that do not serve stop first.
func (w *world) shrink(id string, least int, shared bool) {
	r := w.rcs[id]
	for _, g := range r.ReplicaGroups {
		want := *g.Count
		if r.DeletedAt != nil {
			want = 0
		}
		placed := 0
		for _, p := range w.podsOf(id) {
			if p.role == g.Role && !p.stopping {
				placed++
			}
		}
		for _, good := range []bool{false, true} {
			for _, p := range w.podsOf(id) {
				if p.role != g.Role || p.stopping || placed <= want || p.serves() != good {
					continue
				}
				if good && w.serving()-1 < least {
					continue
				}
				if good && shared && w.serving()-1 < w.least {
					w.violated("the owner of %s takes a pod, and %d serve of at least %d", id, w.serving(), w.least)
				}
				placed--
				if p.lost {
					w.pods = slices.DeleteFunc(w.pods, func(q *simPod) bool { return q == p })
					continue
				}
				p.stopping, p.available = true, false
			}
		}
	}
}

// switchNames gives pods their service's name, or takes it from them.
func (w *world) switchNames(id string, least int, shared bool) {
	for _, p := range w.podsOf(id) {
		leaves := w.wantsStandby(p)
		if p.stopping || p.leaves == leaves || p.foundAt == w.rcs[id].Generation ||
			p.serves() && w.serving()-1 < least {
			continue
		}
		if p.serves() && shared && w.record != nil && w.serving()-1 < w.least {
			w.violated("the owner of %s takes a pod out of the name, and %d serve of at least %d", id, w.serving(),
				w.least)
		}
		p.leaves = leaves
	}
}

// grow adds missing pods, and replaces lost ones.
func (w *world) grow(id string, most int, shared bool) {
	r := w.rcs[id]
	if r.DeletedAt != nil {
		return
	}
	for _, g := range r.ReplicaGroups {
		placed := 0
		for _, p := range w.podsOf(id) {
			if p.role != g.Role || p.stopping {
				continue
			}
			placed++
			if p.lost && w.living()+1 <= most {
				p.lost = false
				w.place(p, r)
			}
		}
		for ; placed < *g.Count && w.living()+1 <= most; placed++ {
			if shared && w.living()+1 > w.most {
				w.violated("the owner of %s adds a pod to %d, and there may be %d", id, w.living(), w.most)
			}
			p := &simPod{rc: id, role: g.Role, digest: r.ManifestOf(g.Role)}
			if limited(&r, g.Role) && w.updated(id) >= r.InPlace.Limit && r.InPlace.From != "" {
				p.digest = r.InPlace.Former().Of(g.Role)
			}
			w.place(p, r)
			w.pods = append(w.pods, p)
		}
	}
}

func (w *world) place(p *simPod, r rc.RC) {
	p.available, p.hopeless = false, w.sick[p.digest] && w.rnd.Intn(2) == 0
	p.leaves = r.Service != nil && r.Service.Standby
	p.standby, p.foundAt, p.unfit = p.leaves, 0, w.machines && !w.calm && w.luck.Intn(6) == 0
}

// tryElsewhere gives some pods of a controller their second nodes.
func (w *world) tryElsewhere(id string) {
	for _, p := range w.podsOf(id) {
		if p.unfit && !p.stopping && !p.lost && w.rcs[id].InPlace == nil && (w.calm || w.luck.Intn(3) == 0) {
			p.unfit, p.tried = false, w.now
		}
	}
}

// limited reports whether the limit of an upgrade in place applies to the pods of a role.
func limited(r *rc.RC, role string) bool { return r.InPlace != nil && r.InPlace.Counts(role) }

// updated returns how many pods run the present manifest of their role. If there is a limit, only the roles to which it
// applies are counted.
func (w *world) updated(id string) int {
	n, r := 0, w.rcs[id]
	for _, p := range w.podsOf(id) {
		if !p.stopping && p.digest == r.ManifestOf(p.role) && (r.InPlace == nil || limited(&r, p.role)) {
			n++
		}
	}
	return n
}

// upgrade changes one pod in place, up to the limit and as the minimum allows, and waits for the previous one. An
// unavailable pod of a role that does not change delays only pods of such roles.
func (w *world) upgrade(id string, least int) {
	r := w.rcs[id]
	over := 0
	if r.InPlace != nil {
		over = w.updated(id) - r.InPlace.Limit
	}
	back := over > 0 && r.InPlace.From != ""
	target := func(p *simPod) string {
		if back && limited(&r, p.role) {
			return r.InPlace.Former().Of(p.role)
		}
		return r.ManifestOf(p.role)
	}
	var changing, others []*simPod
	beside := false
	for _, p := range w.podsOf(id) {
		is := limited(&r, p.role)
		switch {
		case p.stopping || p.lost:
		case p.digest == target(p) && !p.available && (!back || !is || p.switching):
			if r.InPlace == nil || is || p.switching && !p.hopeless && !w.sick[p.digest] {
				return
			}
			beside = true
		case p.digest == target(p) || back && is && p.digest != r.ManifestOf(p.role) || p.foundAt == r.Generation:
		case !is:
			others = append(others, p)
		case back || over < 0:
			changing = append(changing, p)
		}
	}
	if !beside {
		changing = append(others, changing...)
	}
	if len(changing) == 0 {
		return
	}
	p := changing[max(0, slices.IndexFunc(changing, func(p *simPod) bool { return !p.available }))]
	if p.available && w.serving()-1 < least {
		return
	}
	w.log("%s: a pod goes from %s to %s", id, p.digest, target(p))
	p.digest, p.switching = target(p), true
	w.place(p, r)
}

func (w *world) report(id string) {
	r := w.rcs[id]
	st := &rc.Status{RCID: id, ObservedGeneration: r.Generation, Desired: r.Desired(), Epoch: w.epoch}
	for _, p := range w.podsOf(id) {
		if p.stopping {
			st.Stopping++
			if p.lost {
				st.StoppingLost++
			}
			continue
		}
		st.Placed++
		if !p.tried.IsZero() && (st.TriedElsewhere == nil || p.tried.After(*st.TriedElsewhere)) {
			st.TriedElsewhere = new(p.tried)
		}
		current := p.digest == r.ManifestOf(p.role) && (r.InPlace == nil || limited(&r, p.role))
		if current {
			st.Updated++
		}
		switch {
		case p.lost:
			st.Lost++
		case p.available:
			st.Available++
			if current {
				st.UpdatedAvailable++
			}
		}
		if p.standby && !p.lost {
			st.StandingBy++
		}
		if p.hopeless && current && len(st.Failing) < rc.MaxFailing {
			st.Failing = append(st.Failing, rc.PodFailure{
				Pod: p.role + ".0", Node: "n", Reason: "exit 1", Hopeless: true,
			})
		}
	}
	set := func(t rc.ConditionType, is bool) {
		st.Conditions = rc.SetCondition(st.Conditions, t, is, "as it is", w.now)
	}
	set(rc.Holding, w.holding[id])
	set(rc.Regressed, w.regressed(id))
	w.status[id] = st
	if r.DeletedAt != nil && len(w.podsOf(id)) == 0 {
		delete(w.rcs, id)
		delete(w.status, id)
	}
}

// nodes lets a share of the nodes act on their intents.
func (w *world) nodes(share float64) {
	for _, p := range slices.Clone(w.pods) {
		if p.lost || w.rnd.Float64() > share {
			continue
		}
		switch {
		case p.stopping:
			w.pods = slices.DeleteFunc(w.pods, func(q *simPod) bool { return q == p })
		case w.sick[p.digest], p.unfit:
			p.available = false
		default:
			p.available, p.switching = true, false
		}
		p.standby = p.leaves
	}
}

func (w *world) observe() rollout.Observed {
	obs := rollout.Observed{
		Now: w.now, Epoch: w.epoch, Breaker: w.breaker, Revisions: map[string]rollout.Seen{}, Gate: w.answer,
		PreDeploy: w.pre,
	}
	for _, v := range w.record.Revisions {
		obs.Revisions[v.RC] = rollout.Seen{RC: w.rcs[v.RC], Status: w.status[v.RC]}
	}
	return obs
}

// run decides once, and writes the decision.
func (w *world) run() rollout.Decision {
	before := *w.record
	d := rollout.Decide(*w.record, w.observe())
	w.answer = nil
	if d.Gate != nil && w.gates != nil {
		w.answer = &rollout.GateAnswer{
			Phase: d.Gate.Phase, Index: d.Gate.Index, Stage: d.Gate.Stage, Error: w.gates(d.Gate),
		}
	}
	w.write(d)
	if w.tracing && (d.Write || len(d.RCs) > 0) {
		w.log("%s %s stage %d %s %q held %q: %s", before.State, d.Record.State, d.Record.Stage, d.Record.Phase,
			d.Record.Reason, d.Record.BlockedReason, w.counts())
	}
	return d
}

func (w *world) write(d rollout.Decision) {
	for _, r := range d.RCs {
		if err := r.Check(); err != nil {
			w.violated("record of %s: %v", r.Name, err)
		}
		w.rcs[r.ID] = r
	}
	next := d.Record
	w.record = &next
	if d.Ended {
		if up := next.Upward(); d.InEffect != 0 && next.Strategy != rollout.InPlaceStrategy &&
			w.status[up.RC].Available < next.Total() {
			w.violated("%s is in effect before all of its pods are available", up.Name)
		}
		w.record, w.ended = nil, &d
		return
	}
	if err := next.Check(); err != nil {
		w.violated("%v", err)
	}
	if next.State == rollout.RollingBack && w.total != next.Total() { // the old revision may have other counts
		w.most, w.total = w.most+next.Total()-w.total, next.Total()
		w.least = min(w.least, next.Total())
		if next.Update.Surge == 0 { // a pod stops before another one comes
			w.least = min(w.least, max(0, next.Total()-1))
		}
	}
	up := next.Upward()
	if n, most := desired(w.rcs[up.RC]), next.Total(); next.Strategy != rollout.InPlaceStrategy && n > most {
		w.violated("%s asks for %d of %d", up.Name, n, most)
	}
	if !d.Write && len(d.RCs) == 0 {
		return
	}
	again := rollout.Decide(next, w.observe())
	if again.Gate == nil && (again.Write || len(again.RCs) > 0) && d.Gate == nil && w.answer == nil {
		w.violated("a repeated decision changes more: %s %s, %d controllers: %+v", again.Record.State,
			again.Record.Phase, len(again.RCs), again.Record)
	}
}

func desired(r rc.RC) int { return r.Desired() }

func (w *world) counts() string {
	var out []string
	for _, id := range w.ids() {
		r := w.rcs[id]
		good, stop, lost := 0, 0, 0
		for _, p := range w.podsOf(id) {
			switch {
			case p.lost:
				lost++
			case p.stopping:
				stop++
			case p.available:
				good++
			}
		}
		out = append(out, fmt.Sprintf("%s %d: %d pods, %d available, %d stop, %d lost", id, r.Desired(),
			len(w.podsOf(id)), good, stop, lost))
	}
	return strings.Join(out, " | ")
}

// deploy begins a rollout, or retargets the one under way.
func (w *world) deploy(k rollout.Knobs, rev int64, counts ...int) error {
	s := rollout.Start{
		ID: fmt.Sprintf("R%d", rev), Service: "web", By: "ann", Now: w.now, Epoch: w.epoch, Knobs: k,
		New: rc.RC{
			ID: rc.RevisionID(unit, rev), Name: fmt.Sprintf("web-r%d", rev), ManifestDigest: fmt.Sprintf("d%d", rev),
			ReplicaGroups: groupsOf(counts...), Strategy: rc.Dynamic,
			Service: &rc.Service{Name: "web", Revision: rev}, Generation: 1,
		},
	}
	return w.start(s)
}

func (w *world) start(s rollout.Start) error {
	for _, id := range w.ids() {
		s.Old = append(s.Old, rollout.Seen{RC: w.rcs[id], Status: w.status[id]})
	}
	begin := rollout.Begin
	if w.record != nil {
		running := *w.record
		begin = func(s rollout.Start) (rollout.Started, error) { return rollout.Retarget(running, s) }
	}
	started, err := begin(s)
	if err != nil {
		return err
	}
	for _, r := range started.RCs {
		w.rcs[r.ID] = r
	}
	w.record, w.ended = &started.Record, nil
	w.bounds(started.Record)
	if largest := w.largest(); w.record.Strategy == rollout.BlueGreenStrategy &&
		w.most > w.total+max(w.total, largest) {
		w.violated("the bound is %d for %d pods: more than the largest revision beside them", w.most, w.total)
	}
	if w.tracing {
		w.log("deploy: %s", w.counts())
	}
	return nil
}

// largest returns how many pods the largest revision has.
func (w *world) largest() int {
	n := 0
	for _, r := range w.rcs {
		n = max(n, r.Desired())
	}
	return n
}

// bounds sets the limits that must hold from now on.
func (w *world) bounds(r rollout.Record) {
	w.least, w.most, w.total = r.Update.Min, r.Total()+r.Update.Surge+r.Update.Keep, r.Total()
}

// old adds a revision that runs already.
func (w *world) old(rev int64, counts ...int) {
	id := rc.RevisionID(unit, rev)
	r := rc.RC{
		ID: id, Name: fmt.Sprintf("web-r%d", rev), ManifestDigest: fmt.Sprintf("d%d", rev),
		ReplicaGroups: groupsOf(counts...), Strategy: rc.Dynamic, Generation: 3,
		Service: &rc.Service{Name: "web", Revision: rev},
	}
	w.rcs[id] = r
	for _, g := range r.ReplicaGroups {
		for range *g.Count {
			w.pods = append(w.pods, &simPod{
				rc: id, role: g.Role, digest: r.ManifestDigest, available: !w.sick[r.ManifestDigest],
			})
		}
	}
	w.report(id)
}

// round lets some owners and nodes act, and perhaps the rollout.
func (w *world) round() {
	w.now = w.now.Add(time.Second)
	for _, id := range w.ids() {
		if w.calm || w.rnd.Intn(3) > 0 {
			w.own(id)
		}
	}
	w.nodes(0.7)
	if w.record != nil && (w.calm || w.rnd.Intn(3) > 0) {
		w.run()
	}
}

// settle runs rounds until the rollout has ended or waits for an operator, but not more than the given number.
func (w *world) settle(rounds int) bool {
	for range rounds {
		if w.record == nil || w.record.State == rollout.WaitingForPromote || w.record.State == rollout.Paused {
			return true
		}
		w.calm = true
		w.round()
	}
	return w.record == nil
}

func (w *world) ask(v rollout.Verb) {
	w.record.Request = &rollout.Request{Verb: v, By: "bob", At: w.now}
	w.run()
}
