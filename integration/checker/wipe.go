package checker

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// How long until everything that ran before a wipe is adopted. If only a controller's record was written back, no farm
// notices it until a sweep writes its bell, 30 s to 37.5 s after the last sweep. The run causes no faults meanwhile.
const (
	BelledWithin  = 40 * time.Second // after the records are back, until each controller has its bell
	AdoptedWithin = 20 * time.Second // after the records are back and the controller has its bell
)

// heardWithin is how long a preparer's check may fail after the records are back, because the preparer may start over.
const heardWithin = 5 * time.Second

// wiped has the consequences of the last wipe: operators deleted the whole prefix, and wrote back what is desired.
type wiped struct {
	back    int64             // when the records were back, unix nanoseconds
	ran     map[string]copied // pods that ran at the wipe and must continue to run, by identity; each had one copy
	silent  map[string]int64  // nodes whose preparers passed at the wipe; when no preparer passed last
	missing map[string]bool   // identities of ran that are not adopted yet
	belled  map[string]int64  // since when a controller has its bell
	judged  map[string]bool   // identities of ran that were judged
	left    map[string]bool   // the other pods that ran, by node and identity: they need not be adopted
	done    bool
}

type copied struct {
	Event
	generation int64
}

func (w *wiped) until(id string) int64 {
	if belled, known := w.belled[rcOf(id)]; known {
		return max(w.back, belled) + int64(AdoptedWithin)
	}
	return w.back + int64(BelledWithin)
}

// wipes reports whether a command is only an operator's mistake: it deletes the whole prefix when the run has an event
// for it. Farms are not to blame, so only the consequences are judged.
func (j *judgement) wipes(w *Write) bool {
	deletes := slices.DeleteFunc(slices.Clone(w.Ops), func(op Op) bool { return op.Verb == "check-index" })
	if len(deletes) != 1 || deletes[0].Verb != "delete-tree" || deletes[0].DirEnt.Key != prefix {
		return false
	}
	for _, e := range j.mistakes {
		if e.Call <= w.At && w.At <= e.At {
			j.wipe(w, e.At)
			return true
		}
	}
	return false
}

// wipe records the pods that run and whose controllers are not deleted, unless they change, have two copies, or their
// preparer does not pass.
func (j *judgement) wipe(w *Write, back int64) {
	j.result.Wipes++
	d := &wiped{
		back: back, ran: map[string]copied{}, silent: map[string]int64{}, missing: map[string]bool{},
		belled: map[string]int64{}, judged: map[string]bool{}, left: map[string]bool{},
	}
	j.wiped = d
	for _, node := range w.state.passingPreparers() {
		d.silent[node] = 0
	}
	out := map[string]bool{}
	for node, there := range j.nodes.run {
		for id, e := range there {
			rc := w.before(prefix + "rcs/" + rcOf(id)).controller()
			_, twice := d.ran[id]
			if _, heard := d.silent[node]; !heard || twice || rc == nil || rc.DeletedAt != nil || !w.wasAtRest(id, e) {
				out[id] = true
				continue
			}
			d.ran[id] = copied{e, rc.Generation}
		}
	}
	for id := range out {
		delete(d.ran, id)
	}
	for node, there := range j.nodes.run {
		for id := range there {
			if _, waitedFor := d.ran[id]; !waitedFor {
				d.left[node+"|"+id] = true
			}
		}
	}
	for id := range d.ran {
		d.missing[id] = true
	}
}

// wasAtRest reports whether a pod ran on the node and at the revision that its records had. Then no change was on its
// way to a node.
func (w *Write) wasAtRest(id string, e Event) bool {
	p, in := w.before(prefix+"pods/"+id).placement(), w.before(prefix+"intent/"+e.Node+"/"+id).intent()
	return p != nil && p.Node == e.Node && len(p.Ghosts) == 0 && in != nil &&
		in.State == running && in.Revision == e.Revision
}

func (j *judgement) afterWipe(w *Write) {
	d := j.wiped
	if d == nil || d.done {
		return
	}
	passing := slices.Collect(maps.Values(w.state.passingPreparers()))
	for node := range d.silent {
		if !slices.Contains(passing, node) {
			d.silent[node] = w.At
		}
	}
	j.timesUp(w.At)
	for i := range w.Changes {
		d.hears(&w.Changes[i], w.At)
		p := w.Changes[i].After.placement()
		if p == nil || !d.missing[p.id()] {
			continue
		}
		switch ran := d.ran[p.id()]; {
		case p.Node == ran.Node && p.AdoptedAtGeneration != 0 || p.isGhostOn(ran.Node):
			delete(d.missing, p.id())
			j.result.AdoptedAfter = max(j.result.AdoptedAfter, time.Duration(w.At-d.back))
		case d.silent[ran.Node] != w.At && j.stillRuns(p.id()):
			j.violated("R1", "placed although it ran before a wipe", w.Index, "%s on %s; it runs on %s at revision %d",
				p.id(), p.Node, ran.Node, ran.Revision)
		}
	}
}

// hears notes since when a controller has its bell. A bell that was written before the record is deleted again, because
// a farm removes what a controller without a record leaves behind.
func (w *wiped) hears(c *Change, at int64) {
	if group(c.Key) != "bells" {
		return
	}
	rcID := c.Key[strings.LastIndex(c.Key, "/")+1:]
	if c.After == nil {
		delete(w.belled, rcID)
		return
	}
	begin(w.belled, rcID, at)
}

func (j *judgement) stillRuns(id string) bool {
	ran := j.wiped.ran[id]
	now, runs := j.nodes.runs(ran.Node, id)
	return runs && now.Revision == ran.Revision
}

// missed reports whether a pod need not be adopted: its node's preparer did not pass, or the pod was changing.
func (w *wiped) missed(node, id string) bool {
	if w == nil {
		return false
	}
	ran, waitedFor := w.ran[id]
	return w.left[node+"|"+id] || waitedFor && ran.Node == node && w.silent[node] > w.back+int64(heardWithin)
}

func (j *judgement) timesUp(now int64) {
	d := j.wiped
	for id := range d.ran {
		if !d.judged[id] && now > d.until(id) {
			j.foundAgain(id)
		}
	}
	d.done = len(d.judged) == len(d.ran) && now > d.back+int64(AdoptedWithin)
}

func (j *judgement) endWipe() {
	d := j.wiped
	if d == nil || d.done {
		return
	}
	d.done = true
	for id := range d.ran {
		if !d.judged[id] {
			j.foundAgain(id)
		}
	}
}

// foundAgain judges that a pod that has run since the wipe is placed where it runs.
func (j *judgement) foundAgain(id string) {
	d := j.wiped
	d.judged[id] = true
	ran := d.ran[id]
	if d.silent[ran.Node] > d.back+int64(heardWithin) {
		return
	}
	j.looked(ruleAdopted)
	if d.missing[id] && j.stillRuns(id) {
		_, belled := d.belled[rcOf(id)]
		j.violated("R1", "not adopted after a wipe", j.lastIndex(),
			"%s has run on %s at revision %d ever since the records were back; "+
				"its controller has a bell: %t, allowed %s, and %s from then",
			id, ran.Node, ran.Revision, belled, BelledWithin, AdoptedWithin)
	}
}

const ruleAdopted = "R1 adopted after a wipe"

// keeps judges a node after a wipe: its pods run on, unless their controllers were changed since (R2).
func (j *judgement) keeps(e Event) {
	d := j.wiped
	if d == nil || d.done || e.State != stopped {
		return
	}
	ran, known := d.ran[e.ID]
	rc := j.state.get(prefix + "rcs/" + rcOf(e.ID)).controller()
	if known && ran.Node == e.Node && (rc == nil || rc.Generation == ran.generation) {
		j.violated("P4", "stopped after a wipe", j.lastIndex(),
			"%s on %s at revision %d; it ran before, at %d, and its controller has not been changed",
			e.ID, e.Node, e.Revision, ran.Revision)
	}
}
