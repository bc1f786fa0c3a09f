package checker

import "slices"

// service makes a controller a revision of a service. While a companion has a record, minimum and bound are those of the service, and
// count over all of its revisions.
type service struct {
	Name       string   `json:"name"`
	Companions []string `json:"companions"`
	Min        int      `json:"min"`
	Max        int      `json:"max"` // zero: none
}

// isBeside reports whether a controller is a companion.
func (c *controller) isBeside(id string) bool {
	return c.Service != nil && slices.Contains(c.Service.Companions, id)
}

// limit is a minimum that may be in force, and what counts for it.
type limit struct {
	rcs     []string
	least   int
	service bool
}

// group is what checks by the limit are counted under.
func (l *limit) group(of string) string {
	if l.service {
		return of + " of a service"
	}
	return of
}

// together returns the revisions of a controller's service that have a record, itself among them.
func (j *judgement) together(w *Write, rc *controller) []string {
	ids := []string{rc.ID}
	for _, id := range rc.Service.Companions {
		if id != rc.ID && !slices.Contains(ids, id) && w.before(prefix+"rcs/"+id) != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// inService reports whether minimum and bound are those of the service.
func (j *judgement) inService(w *Write, rc *controller) bool {
	return rc.Service != nil && len(j.together(w, rc)) > 1
}

// asked returns how many pods the revisions ask for together, while that bounds the service: no rollout is in charge of the controller, so
// that nobody brings minimum and bound to other counts.
func (j *judgement) asked(w *Write, rc *controller) (n int, bounds bool) {
	if w.inCharge(rc.ID) {
		return 0, false
	}
	for _, id := range j.together(w, rc) {
		c := w.before(prefix + "rcs/" + id).controller()
		if c == nil {
			return 0, false
		}
		if c.DeletedAt == nil {
			n += c.desired()
		}
	}
	return n, true
}

// least returns the minimum of a controller's service, which follows the counts down.
func (j *judgement) least(w *Write, rc *controller) int {
	if n, bounds := j.asked(w, rc); bounds {
		return min(rc.Service.Min, n)
	}
	return rc.Service.Min
}

// most returns the bound of a controller's service, which follows the counts up.
func (j *judgement) most(w *Write, rc *controller) int {
	if n, bounds := j.asked(w, rc); bounds {
		return max(rc.Service.Max, n+rc.surge())
	}
	return rc.Service.Max
}

// rememberRemoval notes that a controller's record is gone.
func (j *judgement) rememberRemoval(c *Change, at int64) {
	if c.Before.controller() != nil && c.After == nil {
		j.removed[c.Before.controller().ID] = at
	}
}

// wasInService reports whether the last companion's record went a moment ago: nothing that a farm's transaction depends on tells of that.
func (j *judgement) wasInService(w *Write, rc *controller) bool {
	return rc.Service != nil && !j.inService(w, rc) &&
		slices.ContainsFunc(rc.Service.Companions, func(id string) bool { return j.recently(w, j.removed[id]) })
}

// boundedLately reports whether the bound of the service may have been in force in place of the controller's own, and holds.
func (j *judgement) boundedLately(w *Write, rc *controller) bool {
	return j.wasInService(w, rc) && rc.Service.Max > 0 && j.placedTogether(w, rc) <= rc.Service.Max
}

// limits returns the minimum that is in force for a controller, and the one that was in force a moment ago.
func (j *judgement) limits(w *Write, rc *controller) []limit {
	own := limit{rcs: []string{rc.ID}, least: rc.minimum()}
	if rc.eachNode() {
		own.least = j.leastOnEach(w, rc)
	}
	if rc.Service == nil {
		return []limit{own}
	}
	of := limit{rcs: j.together(w, rc), least: j.least(w, rc), service: true}
	switch {
	case j.inService(w, rc):
		return []limit{of}
	case j.wasInService(w, rc):
		return []limit{own, of}
	default:
		return []limit{own}
	}
}

// withinBound judges that nothing is added beyond what all revisions of the service may have together.
func (j *judgement) withinBound(w *Write, rc *controller) {
	j.looked(ruleBound)
	if n, most := j.placedTogether(w, rc), j.most(w, rc); n > most {
		j.violated("P6", ruleServiceBound, w.Index, "%s of service %s: %d pods of controllers %v, bound %d; by %s",
			rc.Name, rc.Service.Name, n, j.together(w, rc), most, w.summary())
	}
}

// The rules about a service as a whole.
const (
	ruleServiceMinimum = "service below its minimum"
	ruleServiceBound   = "service above its bound"
)

// What checks of services are counted under.
const (
	ruleBound = "P6 bound of a service"
	ruleStep  = "P1 step of a rollout"
)

// placedTogether counts the copies of all revisions that may run, those that stop included, also where only the preparer is away. Those on
// lost machines do not count, nor those whose stop their nodes have confirmed.
func (j *judgement) placedTogether(w *Write, rc *controller) int {
	n := 0
	for _, id := range j.together(w, rc) {
		for _, p := range w.state.placementsOf(id) {
			n += j.mayRun(w, p)
		}
	}
	return n
}

// mayRun returns how many copies of a pod count against the bound of its service.
func (j *judgement) mayRun(w *Write, p *placement) int {
	away := func(node string, marked bool) bool {
		return w.state.lost(node, marked) || j.recently(w, j.away.gone[node])
	}
	hasStopped := func(node string, revision int64) bool {
		return w.state.get(realityKey(node, p.id())).reality().stopped(revision)
	}
	n := 0
	if !away(p.Node, p.LostSince != nil) && (p.RunState == running || p.RunState == stopped && !hasStopped(p.Node, p.Revision)) {
		n++
	}
	for _, g := range p.Ghosts {
		if !g.Lost && !away(g.Node, g.Gone) && (g.Revision == 0 || !hasStopped(g.Node, g.Revision)) {
			n++
		}
	}
	return n
}
