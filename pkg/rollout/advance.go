package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// phases are what a rollout does while it moves. Each reports whether another one begins at once.
var phases = map[Phase]func(stage) bool{
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

// stage is a decision about a rollout that moves: its phases, and what ends one in another way.
type stage struct{ *Work }

// strategy returns the strategy of the record; Check has seen that there is one.
func (w *Work) strategy() Strategy { return StrategyFor(w.Record.Strategy) }

// advance does what follows now, and reports whether more does.
func (w stage) advance() bool {
	switch w.Record.State {
	case Progressing, RollingBack:
		return phases[w.Record.Phase](w)
	case WaitingForPromote:
		return w.promotion()
	default:
		return false
	}
}

// enter begins a phase.
func (w stage) enter(p Phase) bool {
	w.Record.Phase, w.Record.Gate, w.Record.WaitingSince, w.Record.ProgressAt, w.Record.Stuck = p, nil, nil, w.Now(), ""
	return true
}

func (w stage) preDeploy() bool {
	p, seen := w.Record.PreDeploy, w.obs.PreDeploy
	fail := func(format string, args ...any) bool {
		reason := "pre_deploy: " + fmt.Sprintf(format, args...)
		if seen != nil && seen.Tail != "" {
			reason += "; its log ends: " + field.Cut(seen.Tail, rc.MaxReason/2)
		}
		w.end(Failed, reason, 0)
		return true
	}
	switch {
	case p == nil:
	case seen != nil && seen.Finished && seen.Exit == 0:
		w.d.Delete = append(w.d.Delete, p.RC)
		w.Record.PreDeploy = nil
	case seen != nil && seen.Finished && seen.Failed == "":
		return fail("it ended with exit code %d", seen.Exit)
	case seen != nil && seen.Lost:
		return fail("its node is lost, so nobody knows how it ended, and it does not run twice")
	case seen != nil && seen.Failed != "":
		return fail("%s", seen.Failed)
	default:
		left := w.left(PreDeployTimeout, PreDeployTimeout-p.Until.Sub(w.Now()))
		if left <= 0 {
			return fail("it has not ended within %s", PreDeployTimeout)
		}
		w.look(left)
		return false
	}
	return w.nextStage()
}

func (w stage) nextStage() bool {
	w.Record.Stage = min(w.Record.Stage+1, rc.MaxPods)
	w.Record.Stages = max(w.Record.Stages, w.Record.Stage)
	w.Record.StageSince = w.Now()
	return w.enter(BeforeStage)
}

func (w stage) beforeStage() bool {
	if !w.gates(w.Record.Update.Gates.BeforeStage) {
		return w.Record.State == RollingBack
	}
	return w.enter(Planning)
}

func (w stage) planStage() bool {
	if w.Record.State == RollingBack {
		w.narrow()
	}
	if !w.strategy().Plan(w.Work) {
		return w.timeout("there is no room for a stage: a pod has to go, or to become available, first")
	}
	r := w.Record
	r.Phase, r.ProgressAt = Moving, w.Now() // Stuck stays until it gets further
	r.Progress = w.reached(w.In(Up), w.In(Down))
	return true
}

func (w stage) move() bool {
	done, again, err := w.reconcile()
	switch {
	case err != nil:
		return w.stageFailed(err.Error(), true)
	case done:
		return w.enter(AfterStage)
	}
	if again > 0 {
		w.look(again)
	}
	return w.timeout(w.lacks())
}

func (w stage) reconcile() (bool, time.Duration, error) {
	up, down := w.In(Up), w.In(Down)
	done, again, err := w.strategy().Rollout().Reconcile(w.Work, up, down)
	w.progress(up, down)
	return done, again, err
}

func (w stage) afterStage() bool {
	if !w.gates(w.Record.Update.Gates.AfterStage) {
		return w.Record.State == RollingBack
	}
	next := w.strategy().Next(w.Work)
	if next == Moving {
		next = Delaying
	}
	w.enter(next)
	w.wait()
	return true
}

// wait notes since when the rollout waits, if it does not do so already.
func (w stage) wait() {
	if w.Record.WaitingSince == nil {
		now := w.Now()
		w.Record.WaitingSince = &now
	}
}

// waited reports whether d has passed since then, and else looks again when it has.
func (w stage) waited(d time.Duration) bool {
	w.wait()
	left := w.Record.WaitingSince.Add(d).Sub(w.Now())
	if left > 0 {
		w.look(left)
	}
	return left <= 0
}

func (w stage) delay() bool {
	if w.Record.State != RollingBack && !w.waited(time.Duration(w.Record.Update.Delay)) {
		return false
	}
	return w.nextStage()
}

func (w stage) awaitPromote() bool {
	if !w.Record.Promoted && w.Record.State == Progressing {
		w.wait()
		w.Record.State, w.Record.Reason = WaitingForPromote, ""
		w.audit("rollout %s of %s waits for promote", w.Record.ID, w.Record.Service)
		return true
	}
	next := w.strategy().Next(w.Work)
	if next == Moving {
		return w.nextStage()
	}
	return w.enter(next)
}

// promotion follows a rollout that waits for promote. New pods that are not available any more are a stage without
// progress: stage_timeout counts from when the farm found them so, and auto_promote anew from when they are well again.
// Pods that the farm knows nothing about are neither, so nothing is promoted and nothing times out.
func (w stage) promotion() bool {
	r, up := w.Record, w.Upward()
	lacks := up.lacks()
	if lacks == "" || !up.isSick() {
		r.Stuck = ""
		w.wait()
		return lacks == "" && w.autoPromote()
	}
	if r.WaitingSince != nil {
		r.WaitingSince, r.ProgressAt = nil, w.Now()
	}
	if err := w.hopeless(up); err != nil {
		return w.stageFailed(err.Error(), true)
	}
	return w.timeout(lacks)
}

// isSick reports whether pods of the revision are known not to be available. Of those on a node without a preparer it
// is known only that they were.
func (m *Member) isSick() bool {
	return m.Status != nil && m.up().Actual+m.Status.UnmanagedAvailable < *m.Target
}

func (w stage) autoPromote() bool {
	after := w.Record.Update.AutoPromote
	if after == nil || !w.waited(time.Duration(*after)) {
		return false
	}
	w.promote("promoted after " + time.Duration(*after).String())
	w.audit("rollout %s of %s is %s", w.Record.ID, w.Record.Service, w.Record.Reason)
	return true
}

func (w stage) joining() bool {
	if !w.join() {
		return w.timeout("not all nodes have registered the new pods under the service's name")
	}
	return w.enter(Leaving)
}

func (w stage) leaving() bool {
	if !w.leave() {
		return w.timeout("not all nodes have taken the old pods out of the service's name")
	}
	w.enter(Keeping)
	w.wait()
	return true
}

func (w stage) keep() bool {
	if !w.waited(time.Duration(w.Record.Update.KeepOld)) {
		return false
	}
	return w.nextStage()
}

func (w stage) ending() bool {
	done, _, err := w.reconcile()
	switch {
	case err != nil:
		return w.stageFailed(err.Error(), true)
	case !done:
		return w.timeout(w.lacks())
	}
	state, reason, up := Done, "", w.Upward()
	if w.Record.State == RollingBack {
		state, reason = Failed, w.Record.Reason+"; "+up.Name+" has all pods again"
	}
	w.dress()
	w.strategy().Finish(w.Work)
	w.end(state, reason, up.Rev)
	return true
}

// reached returns how far the stage is, in pods: more is further.
func (w *Work) reached(up, down []*Member) int {
	n := 0
	for _, m := range up {
		switch {
		case m.Status == nil || m.Target == nil:
		case m.Ctrl.InPlace != nil:
			n += min(*m.Target, m.Status.UpdatedAvailable) - m.beyond()
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

// noteEvery is how often progress is noted within a stage at most. Each note is a write, and pods come one after the
// other.
const noteEvery = time.Second

// progress notes that the stage got further than it ever was. What is unknown is no progress.
func (w *Work) progress(up, down []*Member) {
	for _, m := range append(slices.Clone(up), down...) {
		if m.Status == nil {
			return
		}
	}
	n := w.reached(up, down)
	if n <= w.Record.Progress {
		return
	}
	every := noteEvery
	if timeout := time.Duration(w.Record.Update.StageTimeout); timeout > 0 {
		every = min(every, timeout/4)
	}
	if left := every - w.Now().Sub(w.Record.ProgressAt); left > 0 && left <= every {
		w.look(left)
		return
	}
	w.Record.Progress, w.Record.ProgressAt, w.Record.Stuck = n, w.Now(), ""
}

// lacks says what the stage waits for.
func (w *Work) lacks() string {
	for _, m := range append(w.In(Up), w.In(Down)...) {
		if why := m.lacks(); why != "" {
			return why
		}
	}
	return "pods have yet to stop"
}

// lacks says what the stage waits for of one revision, "" for nothing.
func (m *Member) lacks() string {
	switch {
	case m.Status == nil:
		return fmt.Sprintf("the owner of %s has not reported", m.Name)
	case m.Target == nil:
	case m.Direction == Down:
		if over := m.living() - *m.Target; over > 0 {
			return fmt.Sprintf("%d pods of %s have yet to stop", over, m.Name)
		}
	case m.Ctrl.InStages():
		return m.lacksInStage()
	case m.Ctrl.InPlace != nil && m.Status.UpdatedAvailable < *m.Target:
		text := fmt.Sprintf("%d of %d pods of %s run the new manifest and are available",
			m.Status.UpdatedAvailable, *m.Target, m.Name)
		if why := m.Status.Reason(rc.Blocked); why != "" { // such as a node that has no room for what the new one takes
			text += "; " + why
		}
		return text
	case m.up().Actual < *m.Target:
		return fmt.Sprintf("%d of %d pods of %s are available", m.up().Actual, *m.Target, m.Name)
	}
	return ""
}

// since returns when the time of the stage began: with its last progress, or when a pod that gets other ones left a
// node on which it had never become available, for a second one. Each pod does that once.
func (w *Work) since() time.Time {
	since := w.Record.ProgressAt
	for _, m := range w.In(Up) {
		if m.Status == nil || m.Status.TriedElsewhere == nil {
			continue
		}
		if at := *m.Status.TriedElsewhere; at.After(w.Now()) { // by a clock that was wrong
			since = w.Now()
		} else if at.After(since) {
			since = at
		}
	}
	return since
}

// timeout fails the stage once it has made no progress for stage_timeout. Without a stage_timeout it never fails, but
// the record says after the default one what it waits for.
func (w stage) timeout(why string) bool {
	d := cmp.Or(time.Duration(w.Record.Update.StageTimeout), DefaultStageTimeout)
	if left := w.left(d, w.Now().Sub(w.since())); left > 0 {
		w.look(left)
		return false
	}
	return w.stageFailed(fmt.Sprintf("no progress for %s: %s", d, why), false)
}

// stageFailed does what on_timeout says. Where waiting does not help, "continue" pauses. A rollback never ends before
// it is done: it waits, because the version that it takes away must not serve on. It reports whether another phase
// begins.
func (w stage) stageFailed(reason string, final bool) bool {
	r := w.Record
	w.noteFailures()
	if !final {
		reason += r.failures()
	}
	reason = field.Cut(reason, rc.MaxReason)
	switch {
	case r.State == RollingBack, !final && (r.Update.OnTimeout == OnTimeoutContinue || r.Update.StageTimeout == 0):
		r.Stuck, r.ProgressAt = reason, w.Now() // said again after as long, in other words or the same
		return w.planAnew()
	case r.Update.OnTimeout == OnTimeoutRollback:
		w.rollback(reason)
		return true
	default:
		w.pause(reason)
		w.audit("rollout %s of %s is paused: %s", r.ID, r.Service, reason)
		w.alert("the rollout of %s is paused: %s", r.Service, reason)
		return false
	}
}

// planAnew plans the stage of a way back again, because what it was planned for may have changed: pods were lost, or
// others stopped. It reports whether it does. In place each plan adds pods, so there the stage stays as it is.
func (w stage) planAnew() bool {
	r := w.Record
	if r.State != RollingBack || r.Phase != Moving || r.Strategy == InPlaceStrategy {
		return false
	}
	r.Phase = Planning
	return true
}

// pause halts the rollout. What waited for promote does so again when it is resumed.
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

// failures lists the pods that were noted, with a mark before each.
func (r *Record) failures() (text string) {
	for _, f := range r.Failures {
		text += fmt.Sprintf("; %s on %s: %s", f.Pod, f.Node, f.Reason)
	}
	return text
}

// because says after what a person asked for why pods of the new revision are not available now: they are gone when
// somebody else looks. Of a way back it says why that began.
func (w *Work) because(asked string) string {
	switch r := w.Record; {
	case r.State == RollingBack:
		return field.Cut(asked+" on the way back"+after(": ", r.Reason), rc.MaxReason)
	case r.GoesBack(): // its reason is why it is paused
		return field.Cut(asked+" on the way back"+r.failures(), rc.MaxReason)
	}
	up := w.Upward()
	if up == nil || up.Status == nil {
		return asked
	}
	w.noteFailures()
	lacks := up.lacks()
	if lacks == "" && len(w.Record.Failures) == 0 {
		return asked
	}
	return field.Cut(asked+after(" while ", lacks)+w.Record.failures(), rc.MaxReason)
}

// rollback turns the rollout round. Where there is nothing to go back to it ends.
func (w stage) rollback(reason string) {
	r := w.Record
	up := w.Upward()
	if r.PreDeploy != nil {
		w.d.Delete = append(w.d.Delete, r.PreDeploy.RC)
		r.PreDeploy = nil
	}
	if up == nil || !w.strategy().Reverse(w.Work) {
		w.end(Failed, reason+"; there is no revision to go back to", 0)
		return
	}
	r.State, r.Resume, r.Reason, r.Stuck = RollingBack, "", reason, ""
	w.backTo()
	w.audit("rollout %s of %s rolls back to %s: %s", r.ID, r.Service, w.Upward().Name, reason)
	w.alert("the rollout of %s rolls back: %s", r.Service, reason)
	w.nextStage()
}

// backTo makes what the old revision had the goal of the rollout.
func (w *Work) backTo() {
	r, up := w.Record, w.Upward()
	r.Groups = field.Copy(up.Before)
	if r.Strategy == InPlaceStrategy {
		r.Groups = rc.Counts(up.Ctrl.ReplicaGroups)
	}
	up.final(r.Total())
}

// narrow fits the bounds to the number of pods that the old revision has. Where pods stop before others come, and it
// has no more than the minimum, one pod may be missing: otherwise no pod could ever stop.
func (w *Work) narrow() {
	r := w.Record
	n := r.Total()
	least := n
	if r.Strategy == InPlaceStrategy || r.Update.Surge == 0 {
		least = max(0, n-1)
	}
	r.Update.Min, r.Update.Keep = min(r.Update.Min, least), 0
	r.Update.Unavailable = min(r.Update.Unavailable, n-r.Update.Min)
}
