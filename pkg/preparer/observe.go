package preparer

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
)

// observation is everything that a reality is derived from.
type observation struct {
	node      string
	rec       Record
	decided   decided
	activity  activity
	doing     string
	procs     []runtime.Status // of the installed version
	missing   bool             // not all of its processes are there
	available bool
	served    bool   // it has been since it began with nothing on the node
	spent     bool   // it runs once, and nobody knows how it ended
	standby   bool   // it is out of its service's name
	unhealthy bool   // the check has had its time and does not pass
	unlisted  bool   // the local agent does not have the service
	check     string // that the local agent runs, by its name there; empty: it runs none, or does not have it
	silent    bool   // the supervisor does not answer
	complaint string // of the health script, or of that check
}

// observe derives what is reported about a pod that has a saved record. Since is left to the caller.
func observe(o observation) pod.Reality {
	digest, _ := o.rec.runs()
	r := pod.Reality{
		Identity: o.rec.Intent.Identity, Node: o.node, Digest: digest, Revision: o.rec.Intent.Revision,
		Available: o.available, Standby: o.standby, Message: o.activity.message,
	}
	if r.Local() {
		r.Kind = pod.KindLocal
	}
	for _, status := range o.procs {
		r.Restarts += status.Restarts
		if exit := status.LastExit; exit != nil && (r.LastExit == nil || exit.At.After(r.LastExit.At)) {
			last := *exit
			last.At = last.At.Round(0).UTC()
			r.LastExit = &last
		}
	}
	if o.rec.Intent.State == pod.Stopped {
		r.State, r.Available = pod.StateStopping, false
		if o.rec.StoppedAt != nil {
			r.State = pod.StateStopped
		}
	} else {
		state, message, never := processState(o)
		r.State, r.Hopeless = state, never
		if o.activity.state != "" {
			r.State, r.Hopeless = o.activity.state, o.activity.hopeless
		} else if r.Message == "" {
			r.Message = message
			if broken(state) && len(o.rec.Previous) > 0 && !o.rec.wasReady() {
				r.Message += stays(o.rec.Previous[0])
			}
		}
	}
	if o.doing != "" && !broken(r.State) { // why it failed last stays until it does not any more
		r.Message = o.doing
	}
	r.AllEnded = r.State == pod.StateFailed && allEnded(o)
	r.NeverAvailable = o.rec.NeverAvailable && !o.served && !r.Available && o.rec.Intent.State == pod.Running && !r.Local()
	tellDecided(&r, o.decided)
	if o.silent && r.State != pod.StateStopped {
		tellSilent(&r)
	}
	r.Message = shorten(r.Message, maxMessage)
	return r
}

// broken reports whether a state has a message that must not be replaced by what is being done about it.
func broken(state pod.State) bool { return state == pod.StateFailed || state == pod.StateCrashLooping }

// startingMessage is the same for whatever is missing, so that a reality changes no more often than its state does.
const startingMessage = "not all of its processes run yet"

// spentMessage is about a version that runs once.
const spentMessage = "it was started before and runs at most once, and nobody saw how it ended"

// processState derives the state from the processes alone. hopeless says that it will not change by itself.
func processState(o observation) (state pod.State, message string, hopeless bool) {
	switch {
	case o.rec.Installed == nil:
		return pod.StatePending, "nothing of it is installed yet", false
	case o.spent:
		return pod.StateFailed, spentMessage, true
	case o.missing:
		return pod.StateStarting, startingMessage, false
	}
	if i := slices.IndexFunc(o.procs, crashLoops); i >= 0 {
		return pod.StateCrashLooping, crashMessage(&o.procs[i]), true
	}
	state = pod.StateEnded
	for _, status := range o.procs {
		switch {
		case status.Phase == runtime.Unknown:
			return pod.StateFailed, "what the runtime recorded of a process cannot be read, so it is left alone: " + status.Message, false
		case status.Phase == runtime.Backoff:
			return pod.StateFailed, downMessage(status), false
		case done(status):
		case status.Phase == runtime.Exited:
			return pod.StateFailed, downMessage(status), true
		case status.Phase != runtime.Running:
			state = pod.StateStarting
		case state == pod.StateEnded:
			state = pod.StateRunning
		}
	}
	if state != pod.StateRunning {
		return state, map[pod.State]string{pod.StateStarting: startingMessage}[state], false
	}
	state, message = healthState(o)
	return state, message, false
}

// healthState derives the state of a pod whose processes run.
func healthState(o observation) (state pod.State, message string) {
	switch {
	case o.available:
		return pod.StateReady, ""
	case o.unhealthy && o.check != "":
		return pod.StateUnhealthy, strings.TrimSuffix(fmt.Sprintf("its check %q does not pass at the local Consul agent: %s", o.check, oneLine(o.complaint)), ": ")
	case o.unhealthy && o.complaint != "":
		return pod.StateUnhealthy, oneLine(o.complaint)
	case o.unhealthy && o.unlisted:
		return pod.StateUnhealthy, "the local Consul agent does not have its service, or does not show it to the node's token"
	case o.unhealthy:
		return pod.StateUnhealthy, "its health check does not pass at the local Consul agent"
	}
	return pod.StateRunning, ""
}

// crashLoops reports whether a process ends again and again. One that its restart policy leaves at that does not.
func crashLoops(status runtime.Status) bool {
	return status.ShortRuns >= pod.CrashLoop && status.Phase != runtime.Exited && status.Phase != runtime.Unknown
}

// crashMessage is the same while the process runs and while it waits.
func crashMessage(status *runtime.Status) string {
	how := "it could not be started"
	switch {
	case status.Phase == runtime.Backoff && status.Message != "":
		how = status.Message
	case status.LastExit != nil:
		how = status.LastExit.String()
	}
	return fmt.Sprintf("%s: %s, again and again soon after its start; it is started again after longer and longer pauses", status.Spec.Name, how)
}

// done reports whether a process has ended well for good: its restart policy leaves it at that.
func done(status runtime.Status) bool {
	return status.Phase == runtime.Exited && status.LastExit != nil && endedWell(status.LastExit)
}

func endedWell(exit *pod.Exit) bool { return !exit.Unknown && exit.Code == 0 }

// allEnded reports whether all processes of the installed version have ended for good, and somebody saw it.
func allEnded(o observation) bool {
	running := func(status runtime.Status) bool { return status.Phase != runtime.Exited || status.LastExit == nil }
	return len(o.procs) > 0 && !o.missing && !o.spent && !slices.ContainsFunc(o.procs, running)
}

// maxMessage bounds the message of a reality, in bytes. Errors repeat what others wrote, and a record that Consul refuses
// for its size would report nothing at all.
const maxMessage = pod.MaxMessage

// shorten makes text valid UTF-8 of at most so many bytes.
func shorten(text string, most int) string {
	const more = "..."
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	return strings.TrimRight(strings.ToValidUTF8(text[:most-len(more)], ""), " ") + more
}

// maxComplaint bounds what a reality repeats of a health check's output, in bytes.
const maxComplaint = 200

// oneLine makes text fit a message. What would do something to a terminal is left out.
func oneLine(text string) string {
	return shorten(strings.Join(strings.Fields(printable(text)), " "), maxComplaint)
}

// printable leaves out of a text what would bend the display of a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, text)
}

func downMessage(status runtime.Status) string {
	name, next := status.Spec.Name, "; it is started again"
	if status.Phase == runtime.Exited {
		next = "; its restart policy leaves it at that"
	}
	switch {
	case status.Message != "" && status.Phase != runtime.Exited:
		return name + ": " + status.Message
	case status.Message != "":
		return name + ": " + status.Message + next
	case status.LastExit != nil:
		return name + " " + status.LastExit.String() + next
	default:
		return name + " does not run" + next
	}
}

// tellSilent says that nothing can be done for the pod. What it said before is as of the last answer, but that
// processes have ended which the kernel does not have any more.
func tellSilent(r *pod.Reality) {
	if text := supervise.ErrSilent.Error(); !strings.Contains(r.Message, text) {
		r.Message = strings.TrimSuffix(text+", so that nothing of it is started or stopped; "+r.Message, "; ")
	}
}

// tellDecided says in the reality what the verdict on the pod is.
func tellDecided(r *pod.Reality, d decided) {
	var text string
	switch d.verdict {
	case Orphan:
		text = "orphaned: it has no intent and keeps running until its owner adopts it or stops it with a higher revision"
		if r.State == pod.StatePending { // it is held back
			text = "orphaned: it has no intent, so that it does not start until its owner adopts it"
		}
		if r.Local() {
			text = "the node's record of its service was lost; it keeps running until a request with a spec says what it shall be"
		} else if slices.Contains([]pod.State{pod.StateRunning, pod.StateReady, pod.StateUnhealthy}, r.State) {
			r.State = pod.StateOrphaned
		}
	case Ahead:
		text = fmt.Sprintf("regressed: its intent has revision %d, but revision %d was applied; it keeps running as applied", d.revision, r.Revision)
	case NodeShut:
		text = fmt.Sprintf("revision %d is not taken: pods can write to Consul without a token, and this node runs with --isolation on; it stays as it is", d.revision)
	case Refuse:
		text = fmt.Sprintf("refused to run revision %d: it was stopped at revision %d; use a higher one", d.revision, r.Revision)
	default:
		return
	}
	if r.Message != "" {
		text += "; " + r.Message
	}
	r.Message = text
}

// Counting is a count of min_ready that is under way.
type Counting struct {
	Processes string      `json:"processes"` // their fingerprint
	Since     proc.Moment `json:"since"`
}

// readiness counts min_ready on the monotonic clock.
type readiness struct {
	procs   string    // fingerprint of the running processes; empty while not all run
	changed time.Time // when they became so
	trust   time.Time // a check that passes before may still be about earlier processes
	passing time.Time // since when the check passes; zero while it does not
	passed  bool      // the check has passed for these processes
	ready   string    // fingerprint of the processes that have been available since the check last failed
	// kept is what a predecessor had counted, and for which processes. It goes on unless the check is known not to pass.
	kept      time.Time
	keptProcs string
}

// keep takes over what a predecessor had counted since the machine was started.
func (r *readiness) keep(c *Counting) {
	if c == nil {
		return
	}
	if now, err := proc.Now(); err == nil && now.Since(c.Since) != proc.Never {
		r.kept, r.keptProcs = time.Now().Add(-now.Since(c.Since)), c.Processes
	}
}

// counts reports whether only min_ready is awaited.
func (r *readiness) counts() bool { return !r.passing.IsZero() && r.ready != r.procs }

// update takes in the present state of a pod, whose manifest may not be known: then it has run before. available is the verdict, never
// while it is crash-looping; unhealthy says that the check had its time; due is when to look again although nothing happens, zero for never.
func (r *readiness) update(now time.Time, procs string, h register.Health, m *manifest.Manifest, looping bool) (available, unhealthy bool, due time.Time) {
	var first, last, minReady time.Duration // how long a check takes to pass for the first time, and to fail
	if m != nil {
		minReady = m.ReadyAfter()
	}
	if m != nil && m.Health != nil {
		spec := m.Health
		interval := spec.Interval.Or(manifest.DefaultHealthInterval)
		timeout := spec.Timeout.Or(manifest.DefaultHealthTimeout)
		// The agent spreads a check's first run over its interval.
		first = spec.InitialDelay.Or(0) + time.Duration(max(1, spec.SuccessThreshold)+1)*interval + timeout
		last = time.Duration(max(1, spec.FailureThreshold))*interval + timeout
	}
	if procs != r.procs {
		r.procs, r.changed, r.passing, r.passed, r.trust = procs, now, time.Time{}, false, now
		if h.Passing && procs != r.keptProcs { // it was not these processes that passed
			r.trust = now.Add(last)
		}
	}
	if procs == "" {
		return false, false, time.Time{}
	}
	if h.Silent && r.ready == procs { // as its predecessor knew it, which nobody has contradicted
		return true, false, time.Time{}
	}
	if !h.Passing {
		r.passing = time.Time{}
		if h.Known {
			r.ready, r.keptProcs = "", ""
		}
		late := r.changed.Add(first)
		return false, r.passed || !now.Before(late), late
	}
	if r.ready == procs {
		r.passed = true
		return true, false, time.Time{}
	}
	if now.Before(r.trust) {
		return false, false, r.trust
	}
	if r.passing.IsZero() {
		if r.passing, r.passed = now, true; r.keptProcs == procs {
			r.passing = r.kept
		}
	}
	due = r.passing.Add(minReady)
	if now.Before(due) {
		return false, false, due
	}
	if looping { // the runtime says when it is over
		return false, false, time.Time{}
	}
	r.ready = procs
	return true, false, time.Time{}
}

// instances names the running processes of a version, each with its own start; empty while not all of them run that have
// not done their work.
func instances(procs []runtime.Status, missing bool) string {
	if missing {
		return ""
	}
	var lines []string
	for _, status := range procs {
		if done(status) {
			continue
		}
		if status.Phase != runtime.Running {
			return ""
		}
		lines = append(lines, fmt.Sprintf("%s:%d:%d", status.Spec.ID, status.PID, status.StartedAt.UnixNano()))
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}
