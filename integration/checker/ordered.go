package checker

import "time"

// manifestStops is what a manifest says of how its pods stop.
type manifestStops struct {
	Disconnect struct {
		StopAfter string `json:"stop_after"`
	} `json:"disconnect"`
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

// alone judges each pod of an ordered group that a node is newly told to run: no other node is told anything of it any more, so that its stop was
// confirmed, or it was declared gone, or it has stopped by itself (ADR 23).
func (j *judgement) alone(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		in, was := c.After.intent(), c.Before.intent()
		if in == nil || in.State != running || was != nil && was.State == running {
			continue
		}
		if rc := w.before(prefix + "rcs/" + in.RCID).controller(); rc == nil || !rc.ordered(in.Role) {
			continue
		}
		j.looked("P5 ordered")
		for key, k := range w.state.groups["intent"] {
			if other := k.intent(); other != nil && other.id() == in.id() && key != c.Key {
				j.violated("P5", "two copies of an ordered index", w.Index, "%s is told to run on %s, and %s at %d on %s", in.id(), nodeOfIntent(c.Key), other.State, other.Revision, nodeOfIntent(key))
			}
		}
	}
}

// stoppedItself reports whether a pod of an ordered group may be forgotten because its machine has been lost for so long that it has stopped
// by itself. What passes besides stop_after is for the farm's own tests: this asks for no more than is certain.
func (j *judgement) stoppedItself(w *Write, p *placement) bool {
	rc := w.before(prefix + "rcs/" + p.RCID).controller()
	if rc == nil || !rc.ordered(p.Role) || p.RunState != stopped || p.LostSince == nil {
		return false
	}
	m := w.before(prefix + "manifests/" + p.Digest).manifest()
	if m == nil {
		return false
	}
	after, err := time.ParseDuration(m.Manifest.Disconnect.StopAfter)
	return err == nil && w.At-p.LostSince.UnixNano() >= int64(after)
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
