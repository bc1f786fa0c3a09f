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

type observation struct {
	node      string
	rec       Record
	decided   decided
	activity  activity
	doing     string
	procs     []runtime.Status // of the installed version
	missing   bool             // the runtime does not have all its processes
	available bool
	served    bool // the pod has been available since it began with nothing on the node
	spent     bool // the pod runs at most once, and how it ended is unknown
	standby   bool // the pod is registered as <name>-standby
	unhealthy bool // the check had enough time and does not pass
	unlisted  bool // the local agent does not have the service
	// check is the name of the check that the local agent runs; empty: none, or not known
	check     string
	pulled    int64  // seconds for which the images of the intent's revision have arrived
	silent    bool   // the supervisor does not answer
	complaint string // output of the health script or of check
}

// observe derives the reality of a pod with a saved record. The caller sets Since.
func observe(o observation) pod.Reality {
	digest, _ := o.rec.runs()
	r := pod.Reality{
		Identity: o.rec.Intent.Identity, Node: o.node, Digest: digest, Revision: o.rec.Intent.Revision,
		Available: o.available, Standby: o.standby, Message: o.activity.message, PullSeconds: o.pulled,
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
				r.Message += stillInstalled(o.rec.Previous[0])
			}
		}
	}
	if o.doing != "" && !broken(r.State) { // the message of a failed pod names the reason of the failure
		r.Message = o.doing
	}
	r.AllEnded = r.State == pod.StateFailed && allEnded(o)
	r.NeverAvailable = o.rec.NeverAvailable && !o.served && !r.Available &&
		o.rec.Intent.State == pod.Running && !r.Local()
	addVerdict(&r, o.decided)
	if o.silent && r.State != pod.StateStopped {
		addSilence(&r)
	}
	r.Message = shorten(r.Message, maxMessage)
	return r
}

// broken reports whether a state's message must not be replaced by the worker's activity.
func broken(state pod.State) bool { return state == pod.StateFailed || state == pod.StateCrashLooping }

// startingMessage does not name the missing processes, because the reality would change at each start of one.
const startingMessage = "not all of its processes run yet"

const spentMessage = "it was started before and runs at most once; how it ended is unknown"

// processState derives the state from the processes alone. hopeless: only a new intent can change it.
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
			const message = "the runtime's record of a process cannot be read, so the process is left alone: "
			return pod.StateFailed, message + status.Message, false
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

func healthState(o observation) (state pod.State, message string) {
	switch {
	case o.available:
		return pod.StateReady, ""
	case o.unhealthy && o.check != "":
		const format = "its check %q does not pass at the local Consul agent: %s"
		return pod.StateUnhealthy, strings.TrimSuffix(fmt.Sprintf(format, o.check, oneLine(o.complaint)), ": ")
	case o.unhealthy && o.complaint != "":
		return pod.StateUnhealthy, oneLine(o.complaint)
	case o.unhealthy && o.unlisted:
		return pod.StateUnhealthy,
			"the local Consul agent does not have its service, or does not show it to the node's token"
	case o.unhealthy:
		return pod.StateUnhealthy, "its health check does not pass at the local Consul agent"
	}
	return pod.StateRunning, ""
}

func crashLoops(status runtime.Status) bool {
	return status.ShortRuns >= pod.CrashLoop && status.Phase != runtime.Exited && status.Phase != runtime.Unknown
}

// crashMessage is the same while the process runs and while it waits for its next start.
func crashMessage(status *runtime.Status) string {
	how := "it could not be started"
	switch {
	case status.Phase == runtime.Backoff && status.Message != "":
		how = status.Message
	case status.LastExit != nil:
		how = status.LastExit.String()
	}
	return fmt.Sprintf("%s: %s, again and again soon after its start; "+
		"it is started again after longer and longer pauses", status.Spec.Name, how)
}

func done(status runtime.Status) bool {
	return status.Phase == runtime.Exited && status.LastExit != nil && endedWell(status.LastExit)
}

func endedWell(exit *pod.Exit) bool { return !exit.Unknown && exit.Code == 0 }

func allEnded(o observation) bool {
	running := func(status runtime.Status) bool {
		return status.Phase != runtime.Exited || status.LastExit == nil
	}
	return len(o.procs) > 0 && !o.missing && !o.spent && !slices.ContainsFunc(o.procs, running)
}

// maxMessage is in bytes. Errors repeat long texts of other programs. If Consul refused the record because of its size,
// the pod would have no report at all.
const maxMessage = pod.MaxMessage

// shorten returns text as valid UTF-8 with at most `most` bytes.
func shorten(text string, most int) string {
	const more = "..."
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	return strings.TrimRight(strings.ToValidUTF8(text[:most-len(more)], ""), " ") + more
}

// maxComplaint is in bytes.
const maxComplaint = 200

// oneLine returns one line of printable characters, of at most maxComplaint bytes.
func oneLine(text string) string {
	return shorten(strings.Join(strings.Fields(printable(text)), " "), maxComplaint)
}

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
		next = "; its restart policy does not start it again"
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

// addSilence adds to the message that the supervisor does not answer. The rest of the reality comes from the
// supervisor's last answer, except for processes that the kernel does not have any more.
func addSilence(r *pod.Reality) {
	if text := supervise.ErrSilent.Error(); !strings.Contains(r.Message, text) {
		r.Message = strings.TrimSuffix(text+", so that nothing of it is started or stopped; "+r.Message, "; ")
	}
}

func addVerdict(r *pod.Reality, d decided) {
	var text string
	switch d.verdict {
	case Orphan:
		text = "orphaned: it has no intent and keeps running " +
			"until its owner adopts it or stops it with a higher revision"
		if r.State == pod.StatePending { // the pod was not started yet
			text = "orphaned: it has no intent, so it does not start until its owner adopts it"
		}
		if r.Local() {
			text = "the node's record of its service was lost; it keeps running until a request with a spec arrives"
		} else if slices.Contains([]pod.State{pod.StateRunning, pod.StateReady, pod.StateUnhealthy}, r.State) {
			r.State = pod.StateOrphaned
		}
	case Ahead:
		text = fmt.Sprintf("regressed: its intent has revision %d, but revision %d was applied; "+
			"it keeps running as applied", d.revision, r.Revision)
	case NodeShut:
		text = fmt.Sprintf("revision %d is not accepted: pods can write to Consul without a token, "+
			"and this node runs with --isolation on; the pod stays as it is", d.revision)
	case Refuse:
		text = fmt.Sprintf("refused to run revision %d: it was stopped at revision %d; "+
			"use a higher revision", d.revision, r.Revision)
	default:
		return
	}
	if r.Message != "" {
		text += "; " + r.Message
	}
	r.Message = text
}

// Counting is the time that a pod has already waited for min_ready.
type Counting struct {
	Processes string      `json:"processes"` // fingerprint of the processes
	Since     proc.Moment `json:"since"`
}

// readiness measures on the monotonic clock whether a pod has passed its check for min_ready.
type readiness struct {
	procs   string    // fingerprint of the running processes; empty while a process does not run
	changed time.Time // when procs changed
	trust   time.Time // before this time, a passing check may still be about earlier processes
	passing time.Time // since when the check passes; zero while the check does not pass
	passed  bool      // the check has passed for these processes
	ready   string    // fingerprint of the processes that have become available since the check last failed
	// kept is when the previous preparer began to count min_ready, and keptProcs the fingerprint of the processes then.
	// This preparer continues the count, unless it sees that the check does not pass.
	kept      time.Time
	keptProcs string
}

// keep ignores the previous preparer's count if the machine was restarted since.
func (r *readiness) keep(c *Counting) {
	if c == nil {
		return
	}
	if now, err := proc.Now(); err == nil && now.Since(c.Since) != proc.Never {
		r.kept, r.keptProcs = time.Now().Add(-now.Since(c.Since)), c.Processes
	}
}

func (r *readiness) counting() bool { return !r.passing.IsZero() && r.ready != r.procs }

// update takes in the present state of a pod. m is nil while the manifest is not known, which is only possible if the
// pod ran before. looping: the pod is crash-looping, so it does not become available. unhealthy: the check had enough
// time and does not pass. due is when update must be called again if nothing happens; zero: never.
func (r *readiness) update(
	now time.Time, procs string, h register.Health, m *manifest.Manifest, looping bool,
) (available, unhealthy bool, due time.Time) {
	// first is the longest time from the start until a check passes, last the longest time until it fails.
	var first, last, minReady time.Duration
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
		if h.Passing && procs != r.keptProcs { // perhaps earlier processes passed the check
			r.trust = now.Add(last)
		}
	}
	if procs == "" {
		return false, false, time.Time{}
	}
	if h.Silent && r.ready == procs { // until the agent answers, the previous preparer's knowledge is valid
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
	if looping { // the runtime will report the end of the crash loop
		return false, false, time.Time{}
	}
	r.ready = procs
	return true, false, time.Time{}
}

// instances returns a fingerprint of the running processes, which changes at each start. It is empty if a process does
// not run. Processes that have ended with code 0 for good are not part of it.
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
