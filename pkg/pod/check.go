package pod

import (
	"fmt"
	"math"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Bounds of what records of pods say. What people may ask for in documents is bounded by field, manifest and rc.
const (
	// MaxReplicas is how many replicas one controller may ask for.
	MaxReplicas = 10_000
	// MaxIndex is the highest index. Indices are given from zero, and one is free again when its pod's stop is confirmed,
	// so that a controller whose pods stop while others start takes more than it asks for.
	MaxIndex = 10*MaxReplicas - 1
	// MaxRevision is the highest revision that a record may bear: from there on a few more can be counted without a number
	// that turns negative.
	MaxRevision = 1 << 62
	// MaxMessage bounds a message of a node, and MaxLogTail what it repeats of a log, in bytes.
	MaxMessage = 2 << 10
	MaxLogTail = 2 << 10
	// MaxRestarts is the highest number of restarts that is reported.
	MaxRestarts = math.MaxInt32
	// MaxLabels is how many labels a pod may have: those of its manifest, of its controller and its own, and the two that
	// every pod has.
	MaxLabels = 3*field.MaxLabels + 2
	// maxWord bounds a word of which a newer version may have others, such as a state.
	maxWord = field.MaxName
)

const (
	digestAllowed = "64 lower-case hex digits"
	runAllowed    = string(Running) + " or " + string(Stopped)
)

// check records what is wrong with an identity. It becomes part of keys and file names, so that nothing may be assumed
// of it.
func (id *Identity) check(errs *field.Errors) {
	errs.CheckName("rc_id", id.RCID)
	errs.CheckName("role", id.Role)
	field.CheckRange(errs, "index", id.Index, 0, MaxIndex)
}

// Check reports why no pod can have this identity.
func (id Identity) Check() error {
	var errs field.Errors
	id.check(&errs)
	return errs.Err()
}

// Check reports why a stored placement cannot be acted on. Unknown fields are fine: a newer version may have written
// it.
func (p *Placement) Check() error {
	var errs field.Errors
	p.Identity.check(&errs)
	errs.CheckName("node", p.Node)
	checkRun(&errs, "run_state", p.RunState, p.PodID, p.Digest)
	field.CheckRange(&errs, "revision", p.Revision, 1, MaxRevision)
	checkContent(&errs, p.Labels, p.Ports, p.Replicas, p.Epoch)
	errs.CheckLabels("own_labels", p.OwnLabels, field.MaxLabels)
	for _, digest := range p.MayRun {
		if digest != "" {
			checkDigest(&errs, "may_run", digest)
		}
	}
	for i := range p.Ghosts {
		p.Ghosts[i].check(&errs)
	}
	for i := range p.Avoid {
		a := &p.Avoid[i]
		errs.CheckName("avoid.node", a.Node)
		errs.CheckTime("avoid.since", a.Since)
		errs.CheckBytes("avoid.reason", a.Reason, MaxMessage)
		if a.Digest != "" {
			checkDigest(&errs, "avoid.digest", a.Digest)
		}
	}
	checkTimes(&errs, times{{"stopping_since", p.StoppingSince}, {"lost_since", p.LostSince}, {"unmanaged_since", p.UnmanagedSince}})
	errs.CheckTime("changed_at", p.ChangedAt)
	field.CheckRange(&errs, "adopted_at_generation", p.AdoptedAtGeneration, 0, math.MaxInt64)
	return errs.Err()
}

func (g *Ghost) check(errs *field.Errors) {
	errs.CheckName("ghosts.node", g.Node)
	field.CheckRange(errs, "ghosts.revision", g.Revision, 0, MaxRevision)
	errs.CheckTime("ghosts.since", g.Since)
	errs.CheckPorts("ghosts.ports", g.Ports)
}

// times are some that may be missing, by their fields.
type times [3]struct {
	path string
	at   *time.Time
}

func checkTimes(errs *field.Errors, all times) {
	for _, t := range all {
		if t.at != nil {
			errs.CheckTime(t.path, *t.at)
		}
	}
}

// checkRun records what keeps a pod from being run, or stopped. What is to be stopped needs no field.
func checkRun(errs *field.Errors, path string, state RunState, podID, digest string) {
	if !state.Valid() {
		errs.Add(path, string(state), runAllowed)
	}
	if state == Running || podID != "" {
		errs.CheckName("pod_id", podID)
	}
	if state == Running || digest != "" {
		checkDigest(errs, "digest", digest)
	}
}

func checkDigest(errs *field.Errors, path, digest string) {
	switch {
	case digest == "":
		errs.Missing(path, digestAllowed)
	case !field.IsDigest(digest):
		errs.Add(path, digest, digestAllowed)
	}
}

// checkContent records what is wrong with what a placement and its intents have in common.
func checkContent(errs *field.Errors, labels map[string]string, ports map[string]int, replicas int, epoch string) {
	errs.CheckLabels("labels", labels, MaxLabels)
	errs.CheckPorts("ports", ports)
	field.CheckRange(errs, "replicas", replicas, 0, math.MaxInt32) // as many as nodes, where each has one
	errs.CheckBytes("epoch", epoch, maxWord)
}

// Check reports why an intent cannot be acted on.
func (in *Intent) Check() error {
	var errs field.Errors
	in.Identity.check(&errs)
	checkRun(&errs, "state", in.State, in.PodID, in.Digest)
	field.CheckRange(&errs, "revision", in.Revision, 1, MaxRevision)
	checkContent(&errs, in.Labels, in.Ports, in.Replicas, in.Epoch)
	return errs.Err()
}

// Check reports why a reality says nothing. A state that this build does not know is none of the known ones, and
// nothing else: a newer preparer may report it.
func (r *Reality) Check() error {
	var errs field.Errors
	r.Identity.check(&errs)
	errs.CheckName("node", r.Node)
	errs.CheckBytes("kind", r.Kind, maxWord)
	if r.Digest != "" {
		checkDigest(&errs, "digest", r.Digest)
	}
	field.CheckRange(&errs, "revision", r.Revision, 0, math.MaxInt64) // which of them are believed is for who was told them to say
	if r.State == "" {
		errs.Missing("state", fmt.Sprintf("a word of at most %d bytes, such as %s or %s", maxWord, StateReady, StateStopped))
	}
	errs.CheckBytes("state", string(r.State), maxWord)
	field.CheckRange(&errs, "restarts", r.Restarts, 0, MaxRestarts)
	if e := r.LastExit; e != nil {
		errs.CheckBytes("last_exit.launchable", e.Launchable, maxWord)
		field.CheckRange(&errs, "last_exit.code", e.Code, math.MinInt32, math.MaxInt32)
		errs.CheckBytes("last_exit.signal", e.Signal, maxWord)
		errs.CheckBytes("last_exit.reason", e.Reason, MaxMessage)
		field.CheckRange(&errs, "last_exit.memory_limit", e.MemoryLimit, 0, field.MaxPodMemory)
		errs.CheckTime("last_exit.at", e.At)
	}
	errs.CheckBytes("message", r.Message, MaxMessage)
	errs.CheckBytes("log_tail", r.LogTail, MaxLogTail)
	errs.CheckTime("since", r.Since)
	return errs.Err()
}

// Fit cuts what the record would be refused for, and returns the names of those fields: a node that could not report a
// pod because of one field would report nothing of it. What no value stands for, such as another pod's identity, stays.
func (r *Reality) Fit() (cut []string) {
	text := func(name string, s *string, most int) {
		if len(*s) > most {
			*s, cut = field.CutBytes(*s, most), append(cut, name)
		}
	}
	number := func(name string, n *int, least, most int) {
		if fits := min(max(*n, least), most); fits != *n {
			*n, cut = fits, append(cut, name)
		}
	}
	at := func(name string, t *time.Time) {
		var errs field.Errors
		if errs.CheckTime(name, *t); len(errs) > 0 {
			*t, cut = time.Time{}, append(cut, name)
		}
	}
	if r.Digest != "" && !field.IsDigest(r.Digest) {
		r.Digest, cut = "", append(cut, "digest")
	}
	if r.Revision < 0 {
		r.Revision, cut = 0, append(cut, "revision")
	}
	number("restarts", &r.Restarts, 0, MaxRestarts)
	if r.LastExit != nil {
		e := *r.LastExit // the caller's own stays as it is
		text("last_exit.launchable", &e.Launchable, maxWord)
		number("last_exit.code", &e.Code, math.MinInt32, math.MaxInt32)
		text("last_exit.signal", &e.Signal, maxWord)
		text("last_exit.reason", &e.Reason, MaxMessage)
		if fits := min(max(e.MemoryLimit, 0), field.MaxPodMemory); fits != e.MemoryLimit {
			e.MemoryLimit, cut = fits, append(cut, "last_exit.memory_limit")
		}
		at("last_exit.at", &e.At)
		r.LastExit = &e
	}
	text("message", &r.Message, MaxMessage)
	text("log_tail", &r.LogTail, MaxLogTail)
	at("since", &r.Since)
	return cut
}

// Check reports why no farm could take over what a node lists.
func (o *Orphan) Check() error {
	var errs field.Errors
	o.Identity.check(&errs)
	errs.CheckName("pod_id", o.PodID)
	checkDigest(&errs, "digest", o.Digest)
	field.CheckRange(&errs, "revision", o.Revision, 0, math.MaxInt64) // which of them are believed is for who was told them to say
	errs.CheckPorts("ports", o.Ports)
	field.CheckRange(&errs, "cpu", o.CPU, 0, field.MaxPodCPU)
	field.CheckRange(&errs, "memory", o.Memory, 0, field.MaxPodMemory)
	errs.CheckBytes("reason", o.Reason, maxWord)
	return errs.Err()
}
