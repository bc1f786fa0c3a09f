package rcctl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// RolloutView is a rollout under way.
type RolloutView struct {
	ID        string         `json:"id"`
	Service   string         `json:"service"`
	State     rollout.State  `json:"state"`
	Reason    string         `json:"reason"`
	Held      string         `json:"held"` // why nothing moves although it is not paused
	Strategy  string         `json:"strategy"`
	Stage     int            `json:"stage"`
	Stages    int            `json:"stages"`
	Phase     rollout.Phase  `json:"phase"`
	By        string         `json:"by"`
	Runner    string         `json:"runner"` // farm that carries it out
	StartedAt time.Time      `json:"started_at"`
	Request   string         `json:"request"` // what an operator asked for and is not carried out yet
	Revisions []RevisionView `json:"revisions"`
	Failures  []string       `json:"failures"`
	Tail      []string       `json:"-"` // of the last failing pod's log
	up        *RevisionView  // that goes up
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
	Pods      map[string]int    `json:"pods"` // by state
}

func (r *RevisionView) line() string {
	states := make([]string, 0, len(r.Pods))
	for _, state := range slices.Sorted(maps.Keys(r.Pods)) {
		states = append(states, fmt.Sprintf("%d %s", r.Pods[state], state))
	}
	text := fmt.Sprintf("%s (%s): %d of %d available", r.Name, r.Direction, r.Available, r.Desired)
	if len(states) > 0 {
		text += "; " + strings.Join(states, ", ")
	}
	return text
}

// progress returns how far the stage is, in pods.
func (v *RolloutView) progress() (part, whole int) {
	if v.up == nil {
		return 0, 1
	}
	return v.up.Available, max(1, v.up.Target)
}

// line sums a rollout up.
func (v *RolloutView) line() string {
	text := fmt.Sprintf("%s: %s, stage %d of %d, %s", v.Service, v.State, v.Stage, v.Stages, v.Phase)
	for i := range v.Revisions {
		text += "; " + v.Revisions[i].line()
	}
	for _, more := range append([]string{v.Reason, v.Held}, v.Failures...) {
		if more != "" {
			text += "; " + more
		}
	}
	return text
}

// newRolloutView is a rollout's record without what is known of its pods.
func newRolloutView(r *rollout.Record) *RolloutView {
	v := &RolloutView{
		ID: r.ID, Service: r.Service, State: r.State, Reason: r.Reason, Held: r.Held, Strategy: r.Strategy, Stage: r.Stage, Stages: max(r.Stages, r.Stage),
		Phase: r.Phase, By: r.By, StartedAt: r.StartedAt, Revisions: []RevisionView{}, Failures: []string{},
	}
	if r.Request != nil {
		v.Request = fmt.Sprintf("%s, by %s", r.Request.Verb, r.Request.By)
	}
	for _, one := range r.Revisions {
		rv := RevisionView{Name: one.Name, RC: one.RC, Revision: one.Rev, Direction: one.Direction, Pods: map[string]int{}}
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

// rolloutView reads a rollout, its revisions and their pods. A service without one is a *notFoundError.
func (t *tool) rolloutView(ctx context.Context, s *conn, service string) (*RolloutView, error) {
	rec, err := s.RolloutOf(ctx, service)
	if errors.Is(err, store.ErrNotFound) {
		return nil, noRollout(service)
	}
	if err != nil {
		return nil, err
	}
	v := newRolloutView(&rec.Value)
	if v.Runner, err = s.RunnerOf(ctx, service); err != nil {
		return nil, err
	}
	for i := range v.Revisions {
		if err := t.revisionPods(ctx, s, v, &v.Revisions[i]); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// revisionPods adds what is known of a revision's pods, and the end of the log of one that fails.
func (t *tool) revisionPods(ctx context.Context, s *conn, v *RolloutView, r *RevisionView) error {
	rec, err := s.RC(ctx, r.RC, false)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	r.Desired = rec.Value.Desired()
	placements, realities, _, err := s.podsOf(ctx, r.RC)
	if err != nil {
		return err
	}
	all := make([]pod.Reality, 0, len(realities))
	for _, is := range realities {
		all = append(all, is)
	}
	for _, p := range joinPods(placements, all, nil) {
		r.Pods[p.State]++
		if p.Available {
			r.Available++
		}
	}
	if r.Direction != rollout.Up {
		return nil
	}
	worst, says := failing(placements, realities, rec.Value.ManifestDigest)
	if worst == nil || says.LastExit == nil {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, lastLimit)
	defer cancel()
	text, err := t.endOfLog(limited, s, worst, says.LastExit.Launchable)
	if err != nil {
		return nil // a log that cannot be shown is no reason to show nothing
	}
	v.Tail = append(v.Tail, fmt.Sprintf("  the end of the log of %s:", podName(worst.PodID, worst.Identity)))
	for line := range strings.Lines(text) {
		v.Tail = append(v.Tail, "    "+strings.TrimSuffix(line, "\n"))
	}
	return nil
}
