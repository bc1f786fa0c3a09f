package record

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// MaxNameBytes limits a service's name. The names of its controllers are longer.
const MaxNameBytes = 50

// unpinned takes the place of digests that a document leaves out, while it is validated.
var unpinned = strings.Repeat("0", 64)

// Validate reports every mistake in the document, with paths from its top.
func (s *ServiceSpec) Validate() field.Errors {
	var errs field.Errors
	const generated = "generated"
	errs.CheckShortName("name", cmp.Or(s.Name, generated), MaxNameBytes)
	as := s.RCSpec(generated)
	as.Replicas, as.ReplicaGroups = s.Replicas, s.ReplicaGroups
	as.Pod = pinned(s.Pod)
	errs = append(errs, as.Validate()...)
	if _, taken := s.Labels[ServiceLabel]; taken {
		errs.Add("labels."+ServiceLabel, s.Labels[ServiceLabel], "any other key; a deployment sets this one")
	}
	if s.Digests != "" {
		field.CheckOneOf(&errs, "digests", s.Digests, Always, Missing, Never)
	}
	errs.Nest("update", s.Update.Validate())
	s.validateMode(&errs)
	s.validateStageTimeout(&errs)
	if s.PreDeploy != nil {
		var bad field.Errors
		checkSize(&bad, "args", len(s.PreDeploy.Args), manifest.MaxArgs)
		checkSize(&bad, "env", len(s.PreDeploy.Env), manifest.MaxEnv)
		errs.Nest("pre_deploy", bad)
	}
	return errs
}

func (s *ServiceSpec) validateLimits() field.Errors {
	errs := s.RCSpec(s.Name).Limits()
	errs.Nest("update", s.Update.Validate())
	return errs
}

func (s *ServiceSpec) validateMode(errs *field.Errors) {
	knobs := s.Knobs()
	if a := s.Anchored(); a != nil && knobs.StrategyName() != rollout.InPlaceStrategy {
		const allowed = "in-place where "
		switch because := a.What + ": " + a.Why; {
		case s.Update.Strategy != "":
			errs.Add("update.strategy", s.Update.Strategy, allowed+because)
		case s.Update.Canary != nil:
			errs.Add("update.canary", field.Text("a map"), "none, because update.strategy is "+allowed+because)
		default:
			errs.Add("update.order", s.Update.Order, "none, because update.strategy is "+allowed+because)
		}
	}
	if s.Mode == rc.EachNode && s.PreDeploy != nil {
		errs.Add("pre_deploy", field.Text("a map"),
			"nothing where mode is each-node, because the first pods would not wait for it")
	}
}

func (s *ServiceSpec) validateStageTimeout(errs *field.Errors) {
	if s.Pod == nil {
		return
	}
	knobs := s.Knobs()
	takes := StageTakes(knobs.StrategyName(), s.Pod, s.Pod)
	if takes.Within(&s.Update) {
		return
	}
	value := field.Text(s.Update.StageTimeout.Or(rollout.DefaultStageTimeout).String())
	if s.Update.StageTimeout == nil {
		value += ", the default,"
	}
	errs.Add("update.stage_timeout", value, takes.Allowed())
}

// LeastStage is the least time that a stage makes no progress.
type LeastStage struct {
	time.Duration
	what string // happens in that time
}

// StageTakes returns the least time that a stage makes no progress: until the first new pod is available and the first
// old one has stopped. In place, one follows the other.
func StageTakes(strategy string, old, next *manifest.Manifest) LeastStage {
	drain, ready := old.DrainFor(), next.ReadyAfter()
	switch {
	case strategy == rollout.InPlaceStrategy:
		return LeastStage{
			drain + ready,
			"a pod serves on (pod.service.drain) and then runs before it is available (pod.min_ready)",
		}
	case drain > ready:
		return LeastStage{drain, "a pod serves on before it stops (pod.service.drain)"}
	default:
		return LeastStage{ready, "a pod runs before it is available (pod.min_ready)"}
	}
}

// Within reports whether the stage timeout is longer than l, or is off.
func (l LeastStage) Within(k *rollout.Knobs) bool {
	limit := k.StageTimeout.Or(rollout.DefaultStageTimeout)
	return limit <= 0 || limit > l.Duration
}

// Allowed describes which values update.stage_timeout may have.
func (l LeastStage) Allowed() string {
	return fmt.Sprintf("more than %s, for which %s, or 0s for no limit", l.Duration, l.what)
}

// ServiceLabel is the label of each controller that is a revision of a service.
const ServiceLabel = "service"

// Unpinned reports whether an artifact of a manifest has no digest.
func Unpinned(m *manifest.Manifest) bool {
	return slices.ContainsFunc(m.Launchables, func(l manifest.Launchable) bool { return l.Artifact.LacksDigest() })
}

func pinned(m *manifest.Manifest) *manifest.Manifest {
	if m == nil {
		return nil
	}
	all := *m
	all.Launchables = slices.Clone(m.Launchables)
	for i := range all.Launchables {
		switch a := &all.Launchables[i].Artifact; {
		case !a.LacksDigest():
		case a.IsImage():
			a.Pin("sha256:" + unpinned)
		default:
			a.Pin(unpinned)
		}
	}
	return &all
}

func checkSize(errs *field.Errors, path string, n, most int) {
	if n > most {
		errs.Add(path, field.Text(fmt.Sprintf("%d entries", n)), fmt.Sprintf("at most %d entries", most))
	}
}
