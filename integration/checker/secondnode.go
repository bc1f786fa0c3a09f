package checker

import "time"

const (
	progressDeadline = 2 * time.Minute
	minReady         = 10 * time.Second
)

// leaves reports whether the pod stops, or has stopped, to get a second node: it has avoided its node since the stop
// was ordered.
func (p *placement) leaves() bool {
	for _, a := range p.Avoid {
		if a.Node == p.Node && a.Digest == p.Digest && p.RunState == stopped &&
			p.StoppingSince != nil && a.Since.Equal(*p.StoppingSince) {
			return true
		}
	}
	return false
}

// tried reports whether the pod has had its second node with this manifest.
func (p *placement) tried() bool {
	for _, a := range p.Avoid {
		if a.Digest != "" && a.Digest == p.Digest {
			return true
		}
	}
	return false
}

// getsSecondNode reports whether a pod is rightly stopped because it was never available on its node, which is allowed
// once (P4). The node must report that the placed version was never available, and the pod must be hopeless or past its
// deadline; the stop must have that report as a condition, and the controller must be dynamic. Whether another node
// would take the pod is not judged.
func (j *judgement) getsSecondNode(w *Write, before, after *placement) bool {
	if before == nil || after == nil || !after.leaves() || before.RunState != running || before.tried() ||
		before.Node != after.Node || before.Digest != after.Digest || len(before.Ghosts) > 0 {
		return false
	}
	rc := w.before(prefix + "rcs/" + after.RCID).controller()
	m := j.manifests[after.Digest]
	switch {
	case rc == nil, rc.staysPut(), rc.eachNode(), rc.ordered(after.Role), rc.InPlace != nil,
		rc.Disabled, rc.DeletedAt != nil, m.runsOnce(),
		before.AdoptedAtGeneration != 0 && before.AdoptedAtGeneration == rc.Generation:
		return false
	}
	key := realityKey(after.Node, after.id())
	r := w.before(key).reality()
	if r == nil || !w.has(key, "check-index") || !r.NeverAvailable || r.Available || r.Digest != after.Digest ||
		r.Revision < before.Revision || j.served[key] {
		return false
	}
	return r.Hopeless || after.StoppingSince.Sub(before.ChangedAt) >= rc.Deadline.or(progressDeadline)+m.minReady()
}

func (j *judgement) rememberServed(c *Change) {
	if group(c.Key) != "reality" {
		return
	}
	switch r := c.After.reality(); {
	case r == nil || r.State == stopped:
		delete(j.served, c.Key)
	case r.Available:
		j.served[c.Key] = true
	}
}

// runsOnce reports whether no process of the manifest is restarted; false if it is unknown.
func (m *manifestRecord) runsOnce() bool {
	if m == nil {
		return false
	}
	for _, l := range m.Manifest.Launchables {
		if l.Restart.Policy != "never" {
			return false
		}
	}
	return len(m.Manifest.Launchables) > 0
}

func (m *manifestRecord) minReady() time.Duration {
	switch {
	case m == nil:
	case m.Manifest.MinReady != nil:
		return time.Duration(*m.Manifest.MinReady)
	case m.Manifest.Health.MinReady != nil:
		return time.Duration(*m.Manifest.Health.MinReady)
	}
	return minReady
}
