package checker

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"
)

// Never two living copies of one index of an ordered group (ADR 23). It is judged twice: by what nodes are told, as Consul's log has it, and by
// what they run, by their own account. A copy that its machine has stopped by itself does not live.

// length is a length of time; zero where there is none.
type length time.Duration

// UnmarshalJSON reads the text form.
func (l *length) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	d, err := time.ParseDuration(text)
	*l = length(d)
	return err
}

func (l length) or(def time.Duration) time.Duration { return cmp.Or(time.Duration(l), def) }

// manifestStops is what a manifest says of how its pods stop.
type manifestStops struct {
	Disconnect struct {
		StopAfter length `json:"stop_after"`
	} `json:"disconnect"`
	Hooks struct {
		BeforeStop *struct {
			Timeout length `json:"timeout"`
		} `json:"before_stop"`
	} `json:"hooks"`
}

// What the promise of disconnect.stop_after consists of besides; see docs/manifest.md, and "Out of touch with Consul" in ADR 2.
const (
	supervisorLate   = 10 * time.Second // later than the preparer, with its hooks, the supervisor has a pod stop
	defaultHook      = time.Minute      // timeout of a hook
	defaultStopGrace = 10 * time.Second
	defaultTTL       = time.Minute // of a node's preparer
)

// selfStopLate is how much later than the sum a machine may have stopped a pod by itself: what it needs to schedule that.
const selfStopLate = 2 * time.Second

// stopsWithin returns how long after a node counts itself as without contact nothing of its pod runs any more, and false where the pod runs on.
func (m *manifestRecord) stopsWithin() (within time.Duration, stops bool) {
	if m == nil || m.Manifest.Disconnect.StopAfter == 0 {
		return 0, false
	}
	within = time.Duration(m.Manifest.Disconnect.StopAfter) + supervisorLate
	if h := m.Manifest.Hooks.BeforeStop; h != nil {
		within += h.Timeout.or(defaultHook)
	}
	grace := time.Duration(0)
	for _, l := range m.Manifest.Launchables {
		grace = max(grace, l.StopGrace.or(defaultStopGrace))
	}
	return within + grace, true
}

// believesFor returns for how long after the servers' last answer a node may count itself as in touch.
func (s *state) believesFor(node string) time.Duration {
	ttl := defaultTTL
	if n, _ := s.node(node); n != nil {
		ttl = n.TTL.or(defaultTTL)
	}
	return ttl * 3 / 2
}

// ordered reports whether replicas of a role are ordered.
func (c *controller) ordered(role string) bool {
	for _, g := range c.ReplicaGroups {
		if g.Role == role {
			return g.Ordered
		}
	}
	return false
}

// rememberOrdered notes which roles are ordered, and what manifests say.
func (j *judgement) rememberOrdered(c *Change, at int64) {
	if m := c.After.manifest(); m != nil {
		j.manifests[strings.TrimPrefix(c.Key, prefix+"manifests/")] = m
	}
	rc := c.After.controller()
	if rc == nil {
		return
	}
	for _, g := range rc.ReplicaGroups {
		if key := rc.ID + "/" + g.Role; g.Ordered {
			begin(j.alone, key, at)
		} else {
			delete(j.alone, key)
		}
	}
}

// The checks of ordered groups, without which nothing is known of them.
const (
	toldAlone     = "P5 ordered"
	livesAlone    = "P5 one living copy"
	SelfStopped   = "P5 stopped by itself"
	GivenUpByTime = "P5 given up by time"
)

// OrderedChecks are the names under which a result counts what was judged of ordered groups: nodes that were told to run an index, copies that
// started, copies that stopped by themselves, and indices that were given up because their copies had.
var OrderedChecks = []string{toldAlone, livesAlone, SelfStopped, GivenUpByTime}

// toldAlone judges each pod of an ordered group that a node is newly told to run: no other node is told anything of it any more, so that its stop
// was confirmed, or it was declared gone, or it has stopped by itself.
func (j *judgement) toldAlone(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		in, was := c.After.intent(), c.Before.intent()
		if in == nil || in.State != running || was != nil && was.State == running {
			continue
		}
		if rc := w.before(prefix + "rcs/" + in.RCID).controller(); rc == nil || !rc.ordered(in.Role) {
			continue
		}
		j.looked(toldAlone)
		for key, k := range w.state.groups["intent"] {
			if other := k.intent(); other != nil && other.id() == in.id() && key != c.Key {
				j.violated("P5", "two copies of an ordered index", w.Index, "%s is told to run on %s, and %s at %d on %s", in.id(), nodeOfIntent(c.Key), other.State, other.Revision, nodeOfIntent(key))
			}
		}
	}
}

// livesAlone judges a copy that a node has just started: no other one lives that was started since its group is ordered.
func (j *judgement) livesAlone(e Event) {
	role := e.ID[:max(0, strings.LastIndexByte(e.ID, '.'))]
	since, ordered := j.alone[role]
	if !ordered {
		return
	}
	j.looked(livesAlone)
	for node := range j.nodes.run {
		if ran, lives := j.nodes.runs(node, e.ID); lives && node != e.Node && ran.At >= since {
			j.violated("P5", "two living copies of an ordered index", j.lastIndex(), "%s runs at revision %d on %s, where it was started, and at %d on %s, since %d ms",
				e.ID, e.Revision, e.Node, ran.Revision, node, (e.At-ran.At)/1e6)
		}
	}
}

// stopsItself follows a machine that has stopped a pod by itself. It is not too late for that: neither by its own count, nor by that of Consul's
// log, which knows since when nobody holds the node's record.
func (n *nodes) stopsItself(j *judgement, e Event) {
	j.looked(SelfStopped)
	ran, lives := n.runs(e.Node, e.ID)
	if !lives || ran.Revision != e.Revision {
		j.violated("P5", "stopped by itself without running", j.lastIndex(), "%s on %s at revision %d; it runs %+v", e.ID, e.Node, e.Revision, ran)
		return
	}
	within, stops := j.manifests[ran.Digest].stopsWithin()
	free, dead := j.away.free[e.Node]
	lately := max(e.Call, ran.At) // one that starts while nobody hears of it counts from then
	switch late := time.Duration(e.At - lately); {
	case !stops:
		j.violated("P5", "stopped by itself unasked", j.lastIndex(), "%s on %s; manifest %.8s does not say so", e.ID, e.Node, ran.Digest)
	case late > within+selfStopLate:
		j.violated("P5", "stopped by itself too late", j.lastIndex(), "%s on %s, %s after the last contact, allowed %s", e.ID, e.Node, late, within)
	case dead && time.Duration(e.At-max(free, ran.At)) > j.state.believesFor(e.Node)+within+selfStopLate:
		j.violated("P5", "stopped by itself too late", j.lastIndex(), "%s on %s, %s after its record was free", e.ID, e.Node, time.Duration(e.At-free))
	}
	delete(n.run[e.Node], e.ID)
	n.held[e.Node+"|"+e.ID] = ran
}

// outlived judges what runs on a node that is back: what must have stopped by itself meanwhile has.
func (j *judgement) outlived(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		n := c.After.nodeRecord()
		if n == nil || c.After.Session == "" {
			continue
		}
		free, dead := j.away.free[n.Name]
		if !dead {
			continue
		}
		for id, ran := range j.nodes.run[n.Name] {
			within, stops := j.manifests[ran.Digest].stopsWithin()
			if away := time.Duration(w.At - max(free, ran.At)); stops && away > j.state.believesFor(n.Name)+within+selfStopLate {
				j.violated("P5", "did not stop by itself", w.Index, "%s on %s, which is back, %s after its record was free", id, n.Name, away)
			}
		}
	}
}

// stoppedItself reports whether a pod of an ordered group may be given up because its machine has been lost for so long that it has surely stopped
// by itself: by the loss that the placement names, and by Consul's log, for the sum of ADR 2, of what it was told to run and of what it ran last.
// The farm waits for longer, as it does not know the error of its clock.
func (j *judgement) stoppedItself(w *Write, p *placement) bool {
	rc := w.before(prefix + "rcs/" + p.RCID).controller()
	n, _ := w.state.node(p.Node)
	free, dead := j.away.free[p.Node]
	if rc == nil || !rc.ordered(p.Role) || p.RunState != stopped || p.LostSince == nil || n == nil || !n.Enforces || !dead {
		return false
	}
	if w.At-j.away.gone[p.Node] > int64(saidLate) { // only its preparer is gone
		return false
	}
	within, stops := j.manifests[p.Digest].stopsWithin()
	if ran, known := j.nodes.last(p.Node, p.id()); known {
		longer, too := j.manifests[ran.Digest].stopsWithin()
		within, stops = max(within, longer), stops && too
	}
	return stops && w.At-max(free, p.LostSince.UnixNano()) >= int64(j.state.believesFor(p.Node)+within)
}

// anyLists reports whether any node says that it runs a pod without being told to.
func (s *state) anyLists(id string) bool {
	for _, k := range s.groups["nodes"] {
		if n := k.nodeRecord(); n != nil && s.lists(n.Name, id) {
			return true
		}
	}
	return false
}
