package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// in characters
const (
	barWidth  = 30
	narrowBar = 5
)

func bar(part, whole, width int) string {
	filled := width
	if whole > 0 {
		filled = width * min(max(part, 0), whole) / whole
	}
	return "[" + strings.Repeat("#", filled) + strings.Repeat(".", width-filled) + "]"
}

// Lines returns the lines that show a rollout on a terminal of this size; zero: no limit. With few columns, bars are
// shorter. With few rows, only the present stage has a bar.
func (v *RolloutView) Lines(now time.Time, columns, rows int) []string {
	var text []string
	for _, r := range v.Revisions {
		text = append(text, "  "+r.Line())
	}
	for _, reason := range []string{v.Reason, v.BlockedReason, v.waits()} {
		if reason != "" {
			text = append(text, "  "+reason)
		}
	}
	for _, f := range v.unnamedIn(shown(v.Reason, columns), shown(v.Stuck, columns)) {
		text = append(text, "  failing: "+f)
	}
	text = append(text, v.Tail...)
	head := fmt.Sprintf("%s  %s  %s, %s", v.Service, v.State, v.Strategy, Age(now, v.StartedAt))
	all := v.Stages <= maxBars && (rows == 0 || 1+v.Stages+len(text) <= rows)
	return slices.Concat([]string{head}, v.bars(all, columns), text)
}

func (v *RolloutView) bars(all bool, columns int) []string {
	var lines []string
	width := barWidth
	if columns > 0 {
		width = min(width,
			max(narrowBar, columns-len(fmt.Sprintf("stage %d of %d  []  %s", v.Stages, v.Stages, v.Phase))))
	}
	for stage := 1; stage <= v.Stages; stage++ {
		if !all && stage != v.Stage {
			continue
		}
		done, of := 0, 1
		switch {
		case stage < v.Stage || v.State == rollout.Done:
			done = 1
		case stage == v.Stage:
			if v.up != nil {
				done, of = v.up.Available, max(1, v.up.Target)
				if v.up.Upgraded != nil {
					done = *v.up.Upgraded
				}
			}
		}
		line := fmt.Sprintf("stage %d of %d  %s", stage, v.Stages, bar(done, of, width))
		if stage == v.Stage && !v.State.Ended() {
			line += fmt.Sprintf("  %s", v.Phase)
		}
		lines = append(lines, line)
	}
	return lines
}

const maxBars = 12

// Asked is a line about the request that is not carried out yet, "" for none.
func Asked(v *RolloutView) string {
	if v.Request == "" {
		return ""
	}
	return "requested, and not carried out yet: " + v.Request
}

// NextOf returns the commands that an operator can give now.
func NextOf(v *RolloutView) string {
	switch v.State {
	case rollout.Paused:
		return fmt.Sprintf("rcctl rollout resume %s, or rollback, or abort", v.Service)
	case rollout.WaitingForPromote:
		if v.Unfit {
			return fmt.Sprintf("rcctl rollout rollback %s, or promote --force", v.Service)
		}
		return fmt.Sprintf("rcctl rollout promote %s, or rollback", v.Service)
	default:
		return ""
	}
}

// WhyNot returns why a request is refused now, "" if it is accepted.
func WhyNot(r *rollout.Record, q *rollout.Request) string {
	verb := q.Verb
	switch {
	case r.State.Ended():
		return "it has ended"
	case verb == rollout.PauseVerb && r.State == rollout.Paused:
		return "it is paused already"
	case verb == rollout.ResumeVerb && r.State != rollout.Paused:
		return "it is not paused"
	case verb == rollout.PromoteVerb && r.State != rollout.WaitingForPromote:
		return "it does not wait for promotion"
	case verb == rollout.PromoteVerb && r.Unfit() && !q.Force:
		return unfit + "; roll back, or promote them with --force"
	case verb == rollout.RollbackVerb && (r.State == rollout.RollingBack || r.Resume == rollout.RollingBack):
		return "it is rolling back already"
	default:
		return ""
	}
}

// RolloutView is a rollout under way.
type RolloutView struct {
	ID            string        `json:"id"`
	Service       string        `json:"service"`
	State         rollout.State `json:"state"`
	Reason        string        `json:"reason"`
	BlockedReason string        `json:"held"`  // why nothing moves although it is not paused
	Stuck         string        `json:"stuck"` // what the rollout waits for after stage_timeout
	// it waits for promotion, and a new pod is not available any more
	Unfit     bool           `json:"unfit"`
	Strategy  string         `json:"strategy"`
	Stage     int            `json:"stage"`
	Stages    int            `json:"stages"`
	Phase     rollout.Phase  `json:"phase"`
	By        string         `json:"by"`
	Owner     string         `json:"owner"` // farm that owns the service, and carries out the rollout
	StartedAt time.Time      `json:"started_at"`
	Request   string         `json:"request"` // that is not carried out yet
	Revisions []RevisionView `json:"revisions"`
	Failures  []string       `json:"failures"`
	Tail      []string       `json:"-"` // of the last failing pod's log
	up        *RevisionView  // the revision that goes up
	// the pod of pre_deploy has not ended; without a pre_deploy, a new rollout has that phase, too
	preDeploys bool
}

// RevisionView is one revision that takes part in a rollout.
type RevisionView struct {
	Name      string            `json:"name"`
	RC        string            `json:"rc"`
	Revision  int64             `json:"revision"`
	Direction rollout.Direction `json:"direction"`
	Target    int               `json:"target"` // of this stage
	Desired   int               `json:"desired"`
	Available int               `json:"available"`
	// in place: available pods that run the new manifest of their role
	Upgraded *int           `json:"upgraded,omitempty"`
	Changing int            `json:"changing,omitempty"` // in place: pods of the roles that change
	Pods     map[string]int `json:"pods"`               // by state
	Pulls    []string       `json:"pulls,omitempty"`    // how far nodes are that pull images, by pod
}

var directions = map[rollout.Direction]string{
	rollout.Up: "growing", rollout.Down: "shrinking", rollout.Stay: "as it is",
}

// maxPulls is how many pulls the line of a revision names.
const maxPulls = 2

// Line sums a revision up.
func (r *RevisionView) Line() string {
	states := field.Each(slices.Sorted(maps.Keys(r.Pods)), func(state string) string {
		return fmt.Sprintf("%d %s", r.Pods[state], state)
	})
	text := fmt.Sprintf("%s (%s): %d of %d available", r.Name, directions[r.Direction], r.Available, r.Desired)
	if len(states) > 0 {
		text += "; " + strings.Join(states, ", ")
	}
	if r.Upgraded != nil {
		text += fmt.Sprintf("; %d of %d that change are upgraded and available", *r.Upgraded, r.Changing)
	}
	if len(r.Pulls) > 0 {
		text += "; " + field.Few(r.Pulls, maxPulls, "; ")
	}
	return text
}

func (v *RolloutView) waits() string {
	switch {
	case v.Stuck != "":
		return "it still waits: " + v.Stuck
	case v.Unfit:
		return unfit + "; after stage_timeout the rollout follows on_timeout"
	default:
		return ""
	}
}

// UnnamedFailures returns the failures that Reason and Stuck do not have in full.
func (v *RolloutView) UnnamedFailures() []string { return v.unnamedIn(v.Reason, v.Stuck) }

func (v *RolloutView) unnamedIn(texts ...string) []string {
	return slices.DeleteFunc(slices.Clone(v.Failures), func(f string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, f) })
	})
}

// shown returns the beginning of a text that a terminal surely shows. rcctl shows up to three rows of a line, which are
// indented and end with a word.
func shown(text string, columns int) string {
	if columns == 0 {
		return text
	}
	return text[:min(len(text), columns*3/2)]
}

const unfit = "its new pods are not available any more"

// Line sums a rollout up.
func (v *RolloutView) Line() string {
	text := fmt.Sprintf("%s: %s, stage %d of %d, %s", v.Service, v.State, v.Stage, v.Stages, v.Phase)
	if v.Phase == rollout.PreDeploying && !v.preDeploys {
		text = fmt.Sprintf("%s: %s, %s, none has begun", v.Service, v.State, field.Count(v.Stages, "stage"))
	}
	for i := range v.Revisions {
		text += "; " + v.Revisions[i].Line()
	}
	for _, more := range append([]string{v.Reason, v.BlockedReason, v.waits()}, v.UnnamedFailures()...) {
		if more != "" {
			text += "; " + more
		}
	}
	return text
}

// NewRolloutView returns the view of a rollout. Count adds the pods.
func NewRolloutView(r *rollout.Record) *RolloutView {
	v := &RolloutView{
		ID: r.ID, Service: r.Service, State: r.State, Reason: r.Reason, BlockedReason: r.BlockedReason, Stuck: r.Stuck,
		Unfit: r.Unfit(), Strategy: r.Strategy, Stage: r.Stage, Stages: max(r.Stages, r.Stage),
		Phase: r.Phase, By: r.By, StartedAt: r.StartedAt,
		preDeploys: r.PreDeploy != nil, Revisions: []RevisionView{}, Failures: []string{},
	}
	if r.Request != nil {
		v.Request = fmt.Sprintf("%s, by %s", r.Request.Verb, r.Request.By)
	}
	for _, one := range r.Revisions {
		rv := RevisionView{
			Name: one.Name, RC: one.RC, Revision: one.Rev, Direction: one.Direction, Pods: map[string]int{},
		}
		if one.Target != nil {
			rv.Target = *one.Target
		}
		v.Revisions = append(v.Revisions, rv)
	}
	for i := range v.Revisions {
		if v.Revisions[i].Direction == rollout.Up {
			v.up = &v.Revisions[i]
		}
	}
	for _, f := range r.Failures {
		v.Failures = append(v.Failures, fmt.Sprintf("%s on %s: %s", f.Pod, f.Node, f.Reason))
	}
	return v
}

// Count sets the numbers of a revision from its controller and pods.
func (r *RevisionView) Count(ctrl *rc.RC, pods *Pods) {
	r.Desired, r.Pods, r.Available, r.Upgraded, r.Changing = ctrl.Desired(), map[string]int{}, 0, nil, 0
	r.Pulls = pullsOf(pods)
	upgraded := 0
	if ctrl.InPlace != nil {
		r.Upgraded = &upgraded
	}
	for _, p := range JoinPods(pods.Placements, slices.Collect(maps.Values(pods.Realities)), pods.Losses, nil) {
		r.Pods[p.State]++
		if p.Available {
			r.Available++
		}
		if ctrl.InPlace == nil || p.Kind != Placed || p.RunState != pod.Running || !ctrl.InPlace.Counts(p.Role) {
			continue
		}
		r.Changing++
		if p.Available && p.Digest == ctrl.ManifestOf(p.Role) {
			upgraded++
		}
	}
}

// pullsOf returns the reports of pods whose images arrive.
func pullsOf(pods *Pods) (texts []string) {
	for i := range pods.Placements {
		p := &pods.Placements[i]
		r := pods.Realities[store.At{Identity: p.Identity, Node: p.Node}]
		if r.State == pod.StateFetching && r.PullSeconds > 0 && r.Message != "" && r.Revision >= p.Revision {
			texts = append(texts, fmt.Sprintf("%s on %s: %s", NameOf(p), p.Node, r.Message))
		}
	}
	slices.Sort(texts)
	return texts
}

// AddLog adds the end of the log of a pod that fails.
func (v *RolloutView) AddLog(p *pod.Placement, log string) {
	v.Tail = append(v.Tail, fmt.Sprintf("  the end of the log of %s:", NameOf(p)))
	for line := range strings.Lines(log) {
		v.Tail = append(v.Tail, "    "+strings.TrimSuffix(line, "\n"))
	}
}
