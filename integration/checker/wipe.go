package checker

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// How long the cluster may take until everything that ran before a wipe is adopted. A controller whose record was written back alone has
// no bell, so that nobody is told of it: a farm's sweep makes that, 30 s to 37.5 s after the sweep before. The run disturbs nothing
// meanwhile.
const (
	BelledWithin  = 40 * time.Second // after the records are back, until each controller has its bell
	AdoptedWithin = 20 * time.Second // after the records are back and the controller has its bell
)

// heardWithin is how long after its records are back a preparer may take until it passes for good: it may start over after a wipe.
const heardWithin = 5 * time.Second

// wiped is what follows from the last wipe: an operator deleted the whole prefix by mistake, and wrote back what is desired.
type wiped struct {
	back    int64             // when the records were back, unix nanoseconds
	ran     map[string]copied // what ran then and was to run on, by identity; each in one place
	silent  map[string]int64  // nodes on which something ran, with the last time that no preparer passed there
	missing map[string]bool   // identities of ran that are not adopted yet
	belled  map[string]int64  // since when a controller has its bell
	judged  map[string]bool   // identities of ran whose time is up
	left    map[string]bool   // what else ran, by node and identity: nobody waits for it
	done    bool
}

// copied is a pod that ran in one place, with the generation of its controller.
type copied struct {
	Event
	generation int64
}

// until is when a pod must have been adopted.
func (d *wiped) until(id string) int64 {
	if belled, known := d.belled[rcOf(id)]; known {
		return max(d.back, belled) + int64(AdoptedWithin)
	}
	return d.back + int64(BelledWithin)
}

// wipes reports whether a command is an operator's mistake and nothing else: the whole prefix goes, on a condition or none, while the
// run says that it deletes it. That is no farm's doing; what follows from it is judged.
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

// wipe notes what runs, of controllers that are not being deleted. What has two copies, is being stopped, moved or upgraded, or runs
// where no preparer passes, is left out.
func (j *judgement) wipe(w *Write, back int64) {
	j.result.Wipes++
	d := &wiped{back: back, ran: map[string]copied{}, silent: map[string]int64{}, missing: map[string]bool{}, belled: map[string]int64{}, judged: map[string]bool{}, left: map[string]bool{}}
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

// wasAtRest reports whether a pod that runs was to run just there and so: nothing about it was on its way to a node.
func (w *Write) wasAtRest(id string, e Event) bool {
	p, in := w.before(prefix+"pods/"+id).placement(), w.before(prefix+"intent/"+e.Node+"/"+id).intent()
	return p != nil && p.Node == e.Node && len(p.Ghosts) == 0 && in != nil && in.State == running && in.Revision == e.Revision
}

// afterWipe follows what becomes of a wiped cluster with each entry of the log.
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
			j.violated("R1", "placed although it ran before a wipe", w.Index, "%s on %s; it runs on %s at revision %d", p.id(), p.Node, ran.Node, ran.Revision)
		}
	}
}

// hears notes since when a controller has its bell. One that somebody rang before the record was back goes again: a farm clears away
// what a controller without a record leaves behind.
func (d *wiped) hears(c *Change, at int64) {
	if group(c.Key) != "bells" {
		return
	}
	rcID := c.Key[strings.LastIndex(c.Key, "/")+1:]
	if c.After == nil {
		delete(d.belled, rcID)
		return
	}
	begin(d.belled, rcID, at)
}

// stillRuns reports whether a pod that ran before the wipe runs as it did.
func (j *judgement) stillRuns(id string) bool {
	ran := j.wiped.ran[id]
	now, runs := j.nodes.runs(ran.Node, id)
	return runs && now.Revision == ran.Revision
}

// missed reports whether nobody had to find a pod after the last wipe: its node was not heard, or it was on its way to be another.
func (d *wiped) missed(node, id string) bool {
	if d == nil {
		return false
	}
	ran, waitedFor := d.ran[id]
	return d.left[node+"|"+id] || waitedFor && ran.Node == node && d.silent[node] > d.back+int64(heardWithin)
}

// timesUp judges the pods whose time is up.
func (j *judgement) timesUp(now int64) {
	d := j.wiped
	for id := range d.ran {
		if !d.judged[id] && now > d.until(id) {
			j.foundAgain(id)
		}
	}
	d.done = len(d.judged) == len(d.ran) && now > d.back+int64(AdoptedWithin)
}

// endWipe judges the end of a wipe: everything that ran is placed where it runs.
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

// foundAgain judges that a pod is placed where it has run ever since the wipe.
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
		j.violated("R1", "not adopted after a wipe", j.lastIndex(), "%s has run on %s at revision %d ever since the records were back; its controller has a bell: %t, allowed %s, and %s from then",
			id, ran.Node, ran.Revision, belled, BelledWithin, AdoptedWithin)
	}
}

// ruleAdopted is what adoptions after a wipe are counted under.
const ruleAdopted = "R1 adopted after a wipe"

// keeps judges what a node did after a wipe: what ran runs on, unless its controller was changed since (R2).
func (j *judgement) keeps(e Event) {
	d := j.wiped
	if d == nil || d.done || e.State != stopped {
		return
	}
	ran, known := d.ran[e.ID]
	rc := j.state.get(prefix + "rcs/" + rcOf(e.ID)).controller()
	if known && ran.Node == e.Node && (rc == nil || rc.Generation == ran.generation) {
		j.violated("P4", "stopped after a wipe", j.lastIndex(), "%s on %s at revision %d; it ran before, at %d, and its controller has not been changed", e.ID, e.Node, e.Revision, ran.Revision)
	}
}
