package pod

import (
	"fmt"
	"math"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Bounds of records of pods.
const (
	// MaxReplicas is how many replicas one controller may ask for.
	MaxReplicas = 10_000
	// MaxIndex is higher than a count, because an index is free again only when its pod's stop is confirmed.
	MaxIndex = 10*MaxReplicas - 1
	// MaxRevision is the highest revision in a record. A few more can be added without an overflow.
	MaxRevision = 1 << 62
	// Of a report, in bytes.
	MaxMessage  = 2 << 10
	MaxLogTail  = 2 << 10
	MaxRestarts = math.MaxInt32
	MaxPullTime = 24 * time.Hour
	// MaxLabels bounds the labels of the manifest and the controller, own labels, and the two that every pod has.
	MaxLabels = 3*field.MaxLabels + 2
	// maxWord bounds a word for which a newer version may have further values.
	maxWord = field.MaxName
)

const (
	digestAllowed = "64 lower-case hex digits"
	runAllowed    = string(Running) + " or " + string(Stopped)
)

// An identity becomes part of keys and file names, so nothing about it may be assumed.
func (i *Identity) check(errs *field.Errors) {
	errs.CheckName("rc_id", i.RCID)
	errs.CheckName("role", i.Role)
	field.CheckRange(errs, "index", i.Index, 0, MaxIndex)
}

// Check returns why no pod can have this identity.
func (i Identity) Check() error {
	var errs field.Errors
	i.check(&errs)
	return errs.Err()
}

// Check returns why a placement cannot be used. Unknown fields are allowed: a newer version may have written them.
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
	checkTimes(&errs,
		times{{"stopping_since", p.StoppingSince}, {"lost_since", p.LostSince}, {"unmanaged_since", p.UnmanagedSince}})
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

// checkRun: a stop needs no fields.
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

func checkContent(errs *field.Errors, labels map[string]string, ports map[string]int, replicas int, epoch string) {
	errs.CheckLabels("labels", labels, MaxLabels)
	errs.CheckPorts("ports", ports)
	field.CheckRange(errs, "replicas", replicas, 0, math.MaxInt32) // with a pod on each node, as many as nodes
	errs.CheckBytes("epoch", epoch, maxWord)
}

// Check returns why an intent cannot be used.
func (i *Intent) Check() error {
	var errs field.Errors
	i.Identity.check(&errs)
	checkRun(&errs, "state", i.State, i.PodID, i.Digest)
	field.CheckRange(&errs, "revision", i.Revision, 1, MaxRevision)
	checkContent(&errs, i.Labels, i.Ports, i.Replicas, i.Epoch)
	return errs.Err()
}

// Check returns why a reality cannot be used. An unknown state is allowed: a newer preparer may report it.
func (r *Reality) Check() error {
	var errs field.Errors
	r.Identity.check(&errs)
	errs.CheckName("node", r.Node)
	errs.CheckBytes("kind", r.Kind, maxWord)
	if r.Digest != "" {
		checkDigest(&errs, "digest", r.Digest)
	}
	field.CheckRange(&errs, "revision", r.Revision, 0, math.MaxInt64)
	if r.State == "" {
		errs.Missing("state",
			fmt.Sprintf("a word of at most %d bytes, such as %s or %s", maxWord, StateReady, StateStopped))
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
	field.CheckRange(&errs, "pull_seconds", r.PullSeconds, 0, int64(MaxPullTime/time.Second))
	errs.CheckBytes("log_tail", r.LogTail, MaxLogTail)
	errs.CheckTime("since", r.Since)
	return errs.Err()
}

// Fit cuts fields because of which the record would be refused, and returns their names, because one field must not
// keep a node from reporting a pod. Some fields, such as the identity, cannot be cut.
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
		e := *r.LastExit // a copy, because the caller keeps the original
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

// Check returns why no farm could adopt a listed pod.
func (o *Orphan) Check() error {
	var errs field.Errors
	o.Identity.check(&errs)
	errs.CheckName("pod_id", o.PodID)
	checkDigest(&errs, "digest", o.Digest)
	// The farm that reads the record decides which revisions it believes.
	field.CheckRange(&errs, "revision", o.Revision, 0, math.MaxInt64)
	errs.CheckPorts("ports", o.Ports)
	field.CheckRange(&errs, "cpu", o.CPU, 0, field.MaxPodCPU)
	field.CheckRange(&errs, "memory", o.Memory, 0, field.MaxPodMemory)
	errs.CheckBytes("reason", o.Reason, maxWord)
	return errs.Err()
}
