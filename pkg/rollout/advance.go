package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

type then bool

const (
	goOn then = true  // the next phase, at once
	halt then = false // wait until the owner looks again
)

var phases = map[Phase]func(stage) then{
	PreDeploying: stage.preDeploy,
	BeforeStage:  stage.beforeStage,
	Planning:     stage.planStage,
	Moving:       stage.move,
	AfterStage:   stage.afterStage,
	Promoting:    stage.awaitPromote,
	Delaying:     stage.delay,
	Joining:      stage.joining,
	Leaving:      stage.leaving,
	Keeping:      stage.keep,
	Ending:       stage.ending,
}

type stage struct{ *Work }

// Check has refused records with an unknown strategy.
func (w *Work) strategy() Strategy { return StrategyFor(w.Record.Strategy) }

func (s stage) advance() then {
	switch s.Record.State {
	case Progressing, RollingBack:
		return phases[s.Record.Phase](s)
	case WaitingForPromote:
		return s.promotion()
	default:
		return halt
	}
}

func (s stage) enter(p Phase) then {
	s.Record.Phase, s.Record.Gate, s.Record.WaitingSince, s.Record.ProgressAt, s.Record.Stuck = p, nil, nil, s.Now(), ""
	return goOn
}

func (s stage) preDeploy() then {
	p, seen := s.Record.PreDeploy, s.obs.PreDeploy
	fail := func(format string, args ...any) then {
		reason := "pre_deploy: " + fmt.Sprintf(format, args...)
		if seen != nil && seen.Tail != "" {
			reason += "; its log ends: " + field.Cut(seen.Tail, rc.MaxReason/2)
		}
		s.end(Failed, reason, 0)
		return goOn
	}
	switch {
	case p == nil:
	case seen != nil && seen.Finished && seen.Exit == 0:
		s.d.Delete = append(s.d.Delete, p.RC)
		s.Record.PreDeploy = nil
	case seen != nil && seen.Finished && seen.Failed == "":
		return fail("it ended with exit code %d", seen.Exit)
	case seen != nil && seen.Lost:
		return fail("its node is lost, so its outcome is unknown, and it does not run twice")
	case seen != nil && seen.Failed != "":
		return fail("%s", seen.Failed)
	default:
		left := s.left(PreDeployTimeout, PreDeployTimeout-p.Until.Sub(s.Now()))
		if left <= 0 {
			return fail("it has not ended within %s", PreDeployTimeout)
		}
		s.lookWithin(left)
		return halt
	}
	return s.nextStage()
}

func (s stage) nextStage() then {
	s.Record.Stage = min(s.Record.Stage+1, rc.MaxPods)
	s.Record.Stages = max(s.Record.Stages, s.Record.Stage)
	s.Record.StageSince = s.Now()
	return s.enter(BeforeStage)
}

func (s stage) beforeStage() then {
	if !s.gatesAgree(s.Record.Update.Gates.BeforeStage) {
		return s.withoutGates()
	}
	return s.enter(Planning)
}

// withoutGates returns what follows if the gates of a rollout have not agreed. A rollback asks no gate, so if there is
// one now, a gate's refusal has just begun it.
func (s stage) withoutGates() then {
	if s.Record.State == RollingBack {
		return goOn
	}
	return halt
}

func (s stage) planStage() then {
	if s.Record.State == RollingBack {
		s.fitLimits()
	}
	if !s.strategy().Plan(s.Work) {
		return s.timeout("no stage can move: first a pod must stop or become available")
	}
	r := s.Record
	r.Phase, r.ProgressAt = Moving, s.Now() // Stuck is kept until there is progress
	r.Progress = s.reached(s.In(Up), s.In(Down))
	return goOn
}

func (s stage) move() then {
	done, err := s.reconcile()
	switch {
	case err != nil:
		return s.stageFailed(err.Error(), hopeless)
	case done:
		return s.enter(AfterStage)
	}
	return s.timeout(s.waitsFor())
}

func (s stage) reconcile() (done bool, err error) {
	up, down := s.In(Up), s.In(Down)
	defer s.progress(up, down)
	for _, step := range s.strategy().Steps() {
		step.Execute(s.Work, up, down)
		if done, err := step.Verify(s.Work, up, down); err != nil || !done {
			return false, err
		}
		s.progress(up, down)
	}
	return true, nil
}

func (s stage) afterStage() then {
	if !s.gatesAgree(s.Record.Update.Gates.AfterStage) {
		return s.withoutGates()
	}
	next := s.strategy().Next(s.Work)
	if next == Moving {
		next = Delaying
	}
	s.enter(next)
	s.wait()
	return goOn
}

func (s stage) wait() {
	if s.Record.WaitingSince == nil {
		s.Record.WaitingSince = new(s.Now())
	}
}

// waited reports whether the rollout has waited for d. If not, the owner looks again when the rest has passed.
func (s stage) waited(d time.Duration) bool {
	s.wait()
	left := s.Record.WaitingSince.Add(d).Sub(s.Now())
	if left > 0 {
		s.lookWithin(left)
	}
	return left <= 0
}

func (s stage) delay() then {
	if s.Record.State != RollingBack && !s.waited(time.Duration(s.Record.Update.Delay)) {
		return halt
	}
	return s.nextStage()
}

func (s stage) awaitPromote() then {
	if !s.Record.Promoted && s.Record.State == Progressing {
		s.wait()
		s.Record.State, s.Record.Reason = WaitingForPromote, ""
		s.audit(" waits for promote")
		return goOn
	}
	next := s.strategy().Next(s.Work)
	if next == Moving {
		return s.nextStage()
	}
	return s.enter(next)
}

// promotion handles a rollout that waits for promote. If new pods are not available any more, stage_timeout starts;
// when they are available again, auto_promote starts anew. While nothing is known about the new pods, the rollout is
// neither promoted nor timed out.
func (s stage) promotion() then {
	r, up := s.Record, s.Upward()
	missing := up.waitsFor()
	if missing == "" || !up.isUnavailable() {
		r.Stuck = ""
		s.wait()
		return missing == "" && s.autoPromote()
	}
	if r.WaitingSince != nil {
		r.WaitingSince, r.ProgressAt = nil, s.Now()
	}
	if err := s.hopeless(up); err != nil {
		return s.stageFailed(err.Error(), hopeless)
	}
	return s.timeout(missing)
}

// isUnavailable reports whether pods of the revision are known to be unavailable. A pod on an unmanaged node that was
// available last is not.
func (m *Member) isUnavailable() bool {
	return m.Status != nil && m.up().Actual+m.Status.UnmanagedAvailable < *m.Target
}

func (s stage) autoPromote() then {
	after := s.Record.Update.AutoPromote
	if after == nil || !s.waited(time.Duration(*after)) {
		return halt
	}
	s.promote("promoted after " + time.Duration(*after).String())
	s.audit(" is %s", s.Record.Reason)
	return goOn
}

func (s stage) joining() then {
	if !s.join() {
		return s.timeout("not all nodes have registered the new pods under the service's name")
	}
	return s.enter(Leaving)
}

func (s stage) leaving() then {
	if !s.leave() {
		return s.timeout("not all nodes have taken the old pods out of the service's name")
	}
	s.enter(Keeping)
	s.wait()
	return goOn
}

func (s stage) keep() then {
	if !s.waited(time.Duration(s.Record.Update.KeepOld)) {
		return halt
	}
	return s.nextStage()
}

func (s stage) ending() then {
	done, err := s.reconcile()
	switch {
	case err != nil:
		return s.stageFailed(err.Error(), hopeless)
	case !done:
		return s.timeout(s.waitsFor())
	}
	state, reason, up := Done, "", s.Upward()
	if s.Record.State == RollingBack {
		state, reason = Failed, s.Record.Reason+"; "+up.Name+" has all pods again"
	}
	s.setServiceFields()
	s.strategy().Finish(s.Work)
	s.end(state, reason, up.Rev)
	return goOn
}

// reached returns the progress of the stage, in pods.
func (w *Work) reached(up, down []*Member) int {
	n := 0
	for _, m := range up {
		switch {
		case m.Status == nil || m.Target == nil:
		case m.Ctrl.InPlace != nil:
			n += min(*m.Target, m.Status.UpdatedAvailable) - m.excess()
		default:
			n += min(*m.Target, max(0, m.up().Actual))
		}
	}
	for _, m := range down {
		if m.Target != nil {
			n -= max(0, m.living()-*m.Target)
		}
	}
	return max(-rc.MaxPods, min(n, rc.MaxPods)) // as Check allows
}

// progressInterval limits writes of progress. Without it each pod of a stage would cause a write.
const progressInterval = time.Second

// progress writes that the stage got further than ever before. While a status is unknown it writes nothing.
func (w *Work) progress(up, down []*Member) {
	for _, m := range slices.Concat(up, down) {
		if m.Status == nil {
			return
		}
	}
	n := w.reached(up, down)
	if n <= w.Record.Progress {
		return
	}
	every := progressInterval
	if timeout := time.Duration(w.Record.Update.StageTimeout); timeout > 0 {
		every = min(every, timeout/4)
	}
	if left := every - w.Now().Sub(w.Record.ProgressAt); left > 0 && left <= every {
		w.lookWithin(left)
		return
	}
	w.Record.Progress, w.Record.ProgressAt, w.Record.Stuck = n, w.Now(), ""
}

func (w *Work) waitsFor() string {
	for _, m := range append(w.In(Up), w.In(Down)...) {
		if why := m.waitsFor(); why != "" {
			return why
		}
	}
	return "pods have yet to stop"
}

// waitsFor returns what the stage waits for in one revision, in words; "" for nothing.
func (m *Member) waitsFor() string {
	switch {
	case m.Status == nil:
		return fmt.Sprintf("the owner of %s has not reported", m.Name)
	case m.Target == nil:
	case m.Direction == Down:
		if over := m.living() - *m.Target; over > 0 {
			return fmt.Sprintf("%d pods of %s have yet to stop", over, m.Name)
		}
	case m.Ctrl.InStages():
		return m.waitsForInStage()
	case m.Ctrl.InPlace != nil && m.Status.UpdatedAvailable < *m.Target:
		text := fmt.Sprintf("%d of %d pods of %s run the new manifest and are available",
			m.Status.UpdatedAvailable, *m.Target, m.Name)
		if why := m.Status.Reason(rc.Blocked); why != "" { // such as too little capacity for the new manifest
			text += "; " + why
		}
		return text
	case m.up().Actual < *m.Target:
		return fmt.Sprintf("%d of %d pods of %s are available", m.up().Actual, *m.Target, m.Name)
	}
	return ""
}

// since returns when the timeout of the stage started: at its last progress or, if that is later, when a new pod last
// began to leave its first node for a second. Each pod does this at most once.
func (w *Work) since() time.Time {
	since := w.Record.ProgressAt
	for _, m := range w.In(Up) {
		if m.Status == nil || m.Status.TriedElsewhere == nil {
			continue
		}
		if at := *m.Status.TriedElsewhere; at.After(w.Now()) { // the clock that gave the time was wrong
			since = w.Now()
		} else if at.After(since) {
			since = at
		}
	}
	return since
}

// pulls returns how much longer the stage may take, because images of its pods have arrived for so long.
func (w *Work) pulls() (longest time.Duration) {
	for _, m := range w.In(Up) {
		if m.Status != nil {
			longest = max(longest, time.Duration(m.Status.PullSeconds)*time.Second)
		}
	}
	return longest
}

// timeout fails the stage if it has made no progress for stage_timeout, besides pulls of images. With a stage_timeout
// of 0 the stage does not fail for that, but after the default timeout the record names what it waits for.
func (s stage) timeout(why string) then {
	d := cmp.Or(time.Duration(s.Record.Update.StageTimeout), DefaultStageTimeout)
	if left := s.left(d+s.pulls(), s.Now().Sub(s.since())); left > 0 {
		s.lookWithin(left)
		return halt
	}
	return s.stageFailed(fmt.Sprintf("no progress for %s: %s", d, why), mayRecover)
}

type outlook string

const (
	mayRecover outlook = "may recover"
	hopeless   outlook = "hopeless"
)

// stageFailed does what on_timeout asks for. A hopeless stage pauses the rollout even with "continue". A failed stage
// never ends a rollback, because the version that it removes must not continue to serve.
func (s stage) stageFailed(reason string, o outlook) then {
	r := s.Record
	s.noteFailures()
	if o == mayRecover {
		reason += r.failures()
	}
	reason = field.Cut(reason, rc.MaxReason)
	switch {
	case r.State == RollingBack,
		o == mayRecover && (r.Update.OnTimeout == OnTimeoutContinue || r.Update.StageTimeout == 0):
		r.Stuck, r.ProgressAt = reason, s.Now() // written again after the next timeout
		return s.planAnew()
	case r.Update.OnTimeout == OnTimeoutRollback:
		s.rollback(reason)
		return goOn
	default:
		s.pause(reason)
		s.audit(" is paused: %s", reason)
		s.alert("the rollout of %s is paused: %s", r.Service, reason)
		return halt
	}
}

// planAnew plans the stage of a rollback again, because pods may have been lost or stopped since. In place it does not,
// because each plan adds pods to the stage.
func (s stage) planAnew() then {
	r := s.Record
	if r.State != RollingBack || r.Phase != Moving || r.Strategy == InPlaceStrategy {
		return halt
	}
	r.Phase = Planning
	return goOn
}

// pause pauses the rollout. After resume, it waits for promote again if it did before.
func (w *Work) pause(reason string) {
	r := w.Record
	r.Resume = Progressing
	if r.State == RollingBack {
		r.Resume = RollingBack
	}
	r.State, r.Reason, r.WaitingSince, r.Stuck = Paused, reason, nil, ""
}

func (w *Work) noteFailures() {
	w.Record.Failures = nil
	for _, m := range w.In(Up) {
		if m.Status == nil {
			continue
		}
		for _, f := range m.Status.Failing {
			if len(w.Record.Failures) < rc.MaxFailing {
				w.Record.Failures = append(w.Record.Failures, Failure{m.RC, f})
			}
		}
	}
}

func (r *Record) failures() (text string) {
	for _, f := range r.Failures {
		text += fmt.Sprintf("; %s on %s: %s", f.Pod, f.Node, f.Reason)
	}
	return text
}

// withCause adds to a person's request why pods of the new revision are not available: they will be gone when somebody
// reads the request. During a rollback it adds why that began.
func (w *Work) withCause(asked string) string {
	switch r := w.Record; {
	case r.State == RollingBack:
		return field.Cut(asked+" during the rollback"+prefixed(": ", r.Reason), rc.MaxReason)
	case r.RollsBack(): // a paused rollback: Reason has why it is paused, not why it began
		return field.Cut(asked+" during the rollback"+r.failures(), rc.MaxReason)
	}
	up := w.Upward()
	if up == nil || up.Status == nil {
		return asked
	}
	w.noteFailures()
	missing := up.waitsFor()
	if missing == "" && len(w.Record.Failures) == 0 {
		return asked
	}
	return field.Cut(asked+prefixed(" while ", missing)+w.Record.failures(), rc.MaxReason)
}

// rollback turns the rollout into a rollback, or ends it if there is no revision to go back to.
func (s stage) rollback(reason string) {
	r := s.Record
	up := s.Upward()
	if r.PreDeploy != nil {
		s.d.Delete = append(s.d.Delete, r.PreDeploy.RC)
		r.PreDeploy = nil
	}
	if up == nil || !s.strategy().Reverse(s.Work) {
		s.end(Failed, reason+"; there is no revision to go back to", 0)
		return
	}
	r.State, r.Resume, r.Reason, r.Stuck = RollingBack, "", reason, ""
	s.setRollbackGoal()
	s.audit(" rolls back to %s: %s", s.Upward().Name, reason)
	s.alert("the rollout of %s rolls back: %s", r.Service, reason)
	s.nextStage()
}

func (w *Work) setRollbackGoal() {
	r, up := w.Record, w.Upward()
	r.Groups = field.Copy(up.Before)
	if r.Strategy == InPlaceStrategy {
		r.Groups = rc.Counts(up.Ctrl.ReplicaGroups)
	}
	up.setEnd(r.Total())
}

// fitLimits lowers the limits of a rollback to the old revision's pods. If pods stop before others are added, the
// minimum is one less, because otherwise no pod could ever stop.
func (w *Work) fitLimits() {
	r := w.Record
	n := r.Total()
	least := n
	if r.Strategy == InPlaceStrategy || r.Update.Surge == 0 {
		least = max(0, n-1)
	}
	r.Update.Min, r.Update.Keep = min(r.Update.Min, least), 0
	r.Update.Unavailable = min(r.Update.Unavailable, n-r.Update.Min)
}
