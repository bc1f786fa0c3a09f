package checker

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"
)

// No index of an ordered group ever has two living copies (ADR 23), by the intents in Consul's log and by the nodes'
// events. A copy that its machine has stopped does not live.

type length time.Duration

// UnmarshalJSON reads a text such as "10s".
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

// Times that are added to disconnect.stop_after; see docs/manifest.md and docs/design/contact.md.
const (
	supervisorLate   = 10 * time.Second // how much later than the preparer with its hooks the supervisor stops a pod
	defaultHook      = time.Minute      // timeout of a hook
	defaultStopGrace = 10 * time.Second
	defaultTTL       = time.Minute // of the session of a node's preparer
)

// selfStopLate is how late a busy machine may stop a pod by itself.
const selfStopLate = 2 * time.Second

// stopsWithin returns the time within which a pod has surely ended after its node took itself for cut off, and false if
// it does not stop by itself.
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

// believesFor returns how long after the servers' last answer a node may be in contact by its own account.
func (s *state) believesFor(node string) time.Duration {
	ttl := defaultTTL
	if n, _ := s.node(node); n != nil {
		ttl = n.TTL.or(defaultTTL)
	}
	return ttl * 3 / 2
}

func (c *controller) ordered(role string) bool {
	for _, g := range c.ReplicaGroups {
		if g.Role == role {
			return g.Ordered
		}
	}
	return false
}

// rememberOrdered also keeps manifests, which decide how pods stop.
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

// If one of these checks counts nothing, the run has not tested that part.
const (
	toldAlone     = "P5 ordered"
	livesAlone    = "P5 one living copy"
	SelfStopped   = "P5 stopped by itself"
	GivenUpByTime = "P5 given up by time"
)

// OrderedChecks names the counts of ordered groups: intents to run an index, started copies, copies that stopped by
// themselves, and indices that were given up because of that.
var OrderedChecks = []string{toldAlone, livesAlone, SelfStopped, GivenUpByTime}

// toldAlone judges each new intent to run an ordered pod: no other node may have one. An intent is removed when the
// stop is confirmed, or the copy was declared gone or has stopped by itself.
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
				j.violated("P5", "two copies of an ordered index", w.Index,
					"%s is told to run on %s, and %s at %d on %s", in.id(), nodeOfIntent(c.Key),
					other.State, other.Revision, nodeOfIntent(key))
			}
		}
	}
}

// livesAlone judges a started copy: no other may live, unless it was started before the group became ordered.
func (j *judgement) livesAlone(e Event) {
	role := e.ID[:max(0, strings.LastIndexByte(e.ID, '.'))]
	since, ordered := j.alone[role]
	if !ordered {
		return
	}
	j.looked(livesAlone)
	for node := range j.nodes.run {
		if ran, lives := j.nodes.runs(node, e.ID); lives && node != e.Node && ran.At >= since {
			j.violated("P5", "two living copies of an ordered index", j.lastIndex(),
				"%s runs at revision %d on %s, where it was started, and at %d on %s, since %d ms",
				e.ID, e.Revision, e.Node, ran.Revision, node, (e.At-ran.At)/1e6)
		}
	}
}

// stopsItself judges a pod that its machine has just stopped. The stop must not be late by the machine's clock, nor by
// Consul's log of when the node's record became free.
func (n *nodes) stopsItself(j *judgement, e Event) {
	j.looked(SelfStopped)
	ran, lives := n.runs(e.Node, e.ID)
	if !lives || ran.Revision != e.Revision {
		j.violated("P5", "stopped by itself without running", j.lastIndex(),
			"%s on %s at revision %d; it runs %+v", e.ID, e.Node, e.Revision, ran)
		return
	}
	within, stops := j.manifests[ran.Digest].stopsWithin()
	free, dead := j.away.free[e.Node]
	lately := max(e.Call, ran.At) // the time of a copy that starts without contact begins at its start
	switch late := time.Duration(e.At - lately); {
	case !stops:
		j.violated("P5", "stopped by itself unasked", j.lastIndex(), "%s on %s; manifest %.8s does not say so", e.ID,
			e.Node, ran.Digest)
	case late > within+selfStopLate:
		j.violated("P5", "stopped by itself too late", j.lastIndex(), "%s on %s, %s after the last contact, allowed %s",
			e.ID, e.Node, late, within)
	case dead && time.Duration(e.At-max(free, ran.At)) > j.state.believesFor(e.Node)+within+selfStopLate:
		j.violated("P5", "stopped by itself too late", j.lastIndex(), "%s on %s, %s after its record was free",
			e.ID, e.Node, time.Duration(e.At-free))
	}
	delete(n.run[e.Node], e.ID)
	n.held[e.Node+"|"+e.ID] = ran
}

// outlived judges a node that is back: a pod that had to stop by itself meanwhile must not run.
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
			if away := time.Duration(w.At - max(free, ran.At)); stops &&
				away > j.state.believesFor(n.Name)+within+selfStopLate {
				j.violated("P5", "did not stop by itself", w.Index,
					"%s on %s, which is back, %s after its record was free", id, n.Name, away)
			}
		}
	}
}

// stoppedItself reports whether an ordered pod may be given up because its machine was lost for the sum in
// docs/design/contact.md, from `lost_since` or, if later, from when the node's record became free. If the node last ran
// another manifest than the placement has, the longer sum counts. The farm waits longer, because it does not know its
// clock's error.
func (j *judgement) stoppedItself(w *Write, p *placement) bool {
	rc := w.before(prefix + "rcs/" + p.RCID).controller()
	n, _ := w.state.node(p.Node)
	free, dead := j.away.free[p.Node]
	if rc == nil || !rc.ordered(p.Role) || p.RunState != stopped || p.LostSince == nil || n == nil || !n.Enforces ||
		!dead {
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

func (s *state) anyLists(id string) bool {
	for _, k := range s.groups["nodes"] {
		if n := k.nodeRecord(); n != nil && s.lists(n.Name, id) {
			return true
		}
	}
	return false
}
