package checker

import "github.com/rcfarm/rcfarm/pkg/rc"

// service makes a controller a revision of a service, whose minimum and bound apply while another revision has a
// record.
type service struct {
	Name string `json:"name"`
	Min  int    `json:"min"`
	Max  int    `json:"max"` // zero: none

	Standby bool `json:"standby"`
}

// isBeside excludes the controller of a pre_deploy.
func (c *controller) isBeside(id string) bool {
	return c.Service != nil && id != c.ID && rc.UnitOf(id) == rc.UnitOf(c.ID) && !rc.IsPreDeploy(id)
}

// limit is a minimum in force, and the controllers whose pods count for it.
type limit struct {
	rcs     []string
	least   int
	service bool
}

func (l *limit) group(of string) string {
	if l.service {
		return of + " of a service"
	}
	return of
}

// together returns the revisions with a record, readable or not, including c.
func (j *judgement) together(w *Write, c *controller) []string {
	ids := []string{c.ID}
	for _, id := range w.controllersBefore(rc.UnitOf(c.ID)) {
		if c.isBeside(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (j *judgement) inService(w *Write, c *controller) bool {
	return c.Service != nil && len(j.together(w, c)) > 1
}

// readBefore returns nil if farms could not read the record.
func (w *Write) readBefore(id string) *controller {
	k := w.before(prefix + "rcs/" + id)
	if k != k.believed() {
		return nil
	}
	return k.controller()
}

// said returns the strictest minimum and bound in the revisions' records. Deleted ones do not count.
func (j *judgement) said(w *Write, c *controller) (least, most int) {
	for _, id := range j.together(w, c) {
		r := w.readBefore(id)
		if r == nil || r.Service == nil || r.DeletedAt != nil {
			continue
		}
		least = max(least, r.Service.Min)
		if most == 0 || r.Service.Max > 0 && r.Service.Max < most {
			most = r.Service.Max
		}
	}
	return least, most
}

// asked returns how many pods all revisions desire, and how many of these are no standbys. While no rollout is in
// charge, these numbers limit the minimum and the bound, because no step adjusts minimum and bound to new counts.
func (j *judgement) asked(w *Write, c *controller) (all, serving int, bounds bool) {
	if w.inCharge(c.ID) {
		return 0, 0, false
	}
	for _, id := range j.together(w, c) {
		r := w.readBefore(id)
		if r == nil {
			return 0, 0, false
		}
		if r.DeletedAt != nil {
			continue
		}
		all += r.desired()
		if r.Service == nil || !r.Service.Standby {
			serving += r.desired()
		}
	}
	return all, serving, true
}

func (j *judgement) least(w *Write, c *controller) int {
	least, _ := j.said(w, c)
	if _, serving, bounds := j.asked(w, c); bounds {
		return min(least, serving)
	}
	return least
}

func (j *judgement) most(w *Write, c *controller) int {
	_, most := j.said(w, c)
	if all, _, bounds := j.asked(w, c); bounds {
		return max(most, all+c.surge())
	}
	return most
}

// limit returns the minimum in force for a controller. The transaction depends on all revisions' records, so no older
// state counts.
func (j *judgement) limit(w *Write, c *controller) limit {
	if j.inService(w, c) {
		return limit{rcs: j.together(w, c), least: j.least(w, c), service: true}
	}
	own := limit{rcs: []string{c.ID}, least: c.minimum()}
	if c.eachNode() {
		own.least = j.leastOnEach(w, c)
	}
	return own
}

func (j *judgement) withinBound(w *Write, rc *controller) {
	j.looked(ruleBound)
	if n, most := j.placedTogether(w, rc), j.most(w, rc); n > most {
		j.violated("P6", ruleServiceBound, w.Index, "%s of service %s: %d pods of controllers %v, bound %d; by %s",
			rc.Name, rc.Service.Name, n, j.together(w, rc), most, w.summary())
	}
}

const (
	ruleServiceMinimum = "service below its minimum"
	ruleServiceBound   = "service above its bound"
)

const (
	ruleBound = "P6 bound of a service"
	ruleStep  = "P1 step of a rollout"
)

// placedTogether counts all revisions' copies that may run, also stopping ones and those on unmanaged nodes, but none
// on lost machines.
func (j *judgement) placedTogether(w *Write, rc *controller) int {
	n := 0
	for _, id := range j.together(w, rc) {
		for _, p := range w.state.placementsOf(id) {
			n += j.mayRun(w, p)
		}
	}
	return n
}

func (j *judgement) mayRun(w *Write, p *placement) int {
	away := func(node string, marked bool) bool {
		return w.state.lost(node, marked) || j.recently(w, j.away.gone[node])
	}
	hasStopped := func(node string, revision int64) bool {
		return w.state.get(realityKey(node, p.id())).reality().stopped(revision)
	}
	n := 0
	if !away(p.Node, p.LostSince != nil) &&
		(p.RunState == running || p.RunState == stopped && !hasStopped(p.Node, p.Revision)) {
		n++
	}
	for _, g := range p.Ghosts {
		if !g.Lost && !away(g.Node, g.Gone) && (g.Revision == 0 || !hasStopped(g.Node, g.Revision)) {
			n++
		}
	}
	return n
}
