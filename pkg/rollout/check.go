package rollout

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// maxSurge keeps all pods of a service together at or below rc.MaxPods.
const maxSurge = rc.MaxPods - rc.MaxReplicas

// Check returns an error if a stored record cannot be used. If it passes, Decide neither panics nor overflows. A newer
// version may have written the record, so unknown fields are fine.
func (r *Record) Check() error {
	switch {
	case r.ID == "" || r.Service == "":
		return errors.New("the rollout has no id or no service")
	case StrategyFor(r.Strategy) == nil:
		return fmt.Errorf("the rollout has the strategy %q; allowed: %s",
			r.Strategy, field.Few(StrategyNames(), 10, ", "))
	case !slices.Contains([]State{Progressing, Paused, WaitingForPromote, RollingBack, Failed, Done, Aborted}, r.State):
		return fmt.Errorf("the rollout has the state %q", r.State)
	case r.State == Paused && r.Resume != Progressing && r.Resume != RollingBack:
		return fmt.Errorf("the rollout is paused and would resume in the state %q", r.Resume)
	case r.State == WaitingForPromote && r.Phase != Promoting:
		return fmt.Errorf("the rollout waits for promote in the phase %q", r.Phase)
	case len(r.Revisions) == 0:
		return errors.New("the rollout has no revision")
	case len(r.Groups) == 0:
		return errors.New("the rollout has no replica group")
	case phases[r.Phase] == nil:
		return fmt.Errorf("the rollout has the phase %q", r.Phase)
	case r.Strategy == InPlaceStrategy && len(r.Revisions) != 1:
		return errors.New("a rollout in place has one revision")
	}
	if err := rc.CheckGroups(r.Groups); err != nil {
		return fmt.Errorf("groups of the rollout: %w", err)
	}
	if r.Before != nil {
		if err := r.Before.Check(); err != nil {
			return fmt.Errorf("the controller before the rollout: %w", err)
		}
	}
	if err := r.checkRevisions(); err != nil {
		return err
	}
	if r.PreDeploy != nil && rc.UnitOf(r.PreDeploy.RC) != r.Unit() {
		return fmt.Errorf("the rollout names %q as its pre_deploy controller, which is of another unit", r.PreDeploy.RC)
	}
	errs := r.Update.validate()
	// replicas and kept pods together are at most MaxReplicas
	field.CheckRange(&errs, "update.keep", r.Update.Keep, 0, rc.MaxReplicas-r.Total())
	errs.Nest("knobs", r.Knobs.Validate())
	field.CheckRange(&errs, "stage", r.Stage, 0, rc.MaxPods)
	field.CheckRange(&errs, "stages", r.Stages, 0, rc.MaxPods)
	field.CheckRange(&errs, "progress", r.Progress, -rc.MaxPods, rc.MaxPods)
	if g := r.Gate; g != nil {
		field.CheckRange(&errs, "gate.index", g.Index, 0, rc.MaxPods)
		field.CheckRange(&errs, "gate.tries", g.Tries, 0, MaxGateRetries+1)
	}
	return errs.Err()
}

// planned reports whether the stage is planned in this phase. Then each revision that moves has a target.
func (p Phase) planned() bool {
	return p != PreDeploying && p != BeforeStage && p != Planning
}

func (r *Record) checkRevisions() error {
	up, seen := 0, map[string]bool{}
	for i := range r.Revisions {
		v := &r.Revisions[i]
		switch {
		case v.RC == "" || v.Name == "" || v.Rev < 1 || v.Rev > rc.MaxGeneration || v.Manifest == "" || seen[v.RC]:
			return fmt.Errorf("the rollout has an incomplete or repeated revision %q", v.RC)
		case rc.UnitOf(v.RC) != r.Unit():
			return fmt.Errorf("the rollout has controllers of two units, %s and %s", r.Revisions[0].RC, v.RC)
		case v.Direction != Up && v.Direction != Down && v.Direction != Stay:
			return fmt.Errorf("the rollout has the direction %q for %s", v.Direction, v.Name)
		case v.Target != nil && *v.Target < 0 || v.Percent != nil && (*v.Percent < 0 || *v.Percent > 100):
			return fmt.Errorf("the rollout has a target below 0, or a percentage beyond 0 to 100, for %s", v.Name)
		case v.Target == nil && v.Direction != Stay && r.Phase.planned():
			return fmt.Errorf("the rollout has no target for %s, and is in the phase %q", v.Name, r.Phase)
		case len(v.Before) == 0:
			return fmt.Errorf("the rollout does not have the groups of %s before it", v.Name)
		}
		if err := rc.CheckGroups(v.Before); err != nil {
			return fmt.Errorf("groups of %s before the rollout: %w", v.Name, err)
		}
		most := rc.MaxPods // for a revision that goes down this includes copies that stop
		if r.Strategy == InPlaceStrategy {
			most = rc.MaxReplicas
		}
		if err := v.checkBounds(most); err != nil {
			return fmt.Errorf("revision %s of the rollout: %w", v.Name, err)
		}
		if v.Direction == Up {
			up++
		}
		seen[v.RC] = true
	}
	if up != 1 {
		return fmt.Errorf("%d revisions of the rollout go up; exactly one has to", up)
	}
	return nil
}

func (r *Revision) checkBounds(most int) error {
	var errs field.Errors
	check := func(path string, n *int) {
		if n != nil {
			field.CheckRange(&errs, path, *n, 0, most)
		}
	}
	check("target", r.Target)
	check("min", r.Min)
	check("max", r.Max)
	if b := r.Bounds; b != nil {
		check("bounds.min", b.Min)
		check("bounds.max", b.Max)
	}
	return errs.Err()
}

// validate finds numbers that cannot come from valid knobs.
func (u *Update) validate() field.Errors {
	var errs field.Errors
	field.CheckRange(&errs, "ratio", u.Ratio, 0, 100)
	for _, n := range []struct {
		name    string
		n, most int
	}{
		{"step", u.Step, rc.MaxReplicas},
		{"surge", u.Surge, maxSurge},
		{"unavailable", u.Unavailable, rc.MaxReplicas},
		{"min", u.Min, rc.MaxReplicas},
		{"first", u.First, rc.MaxReplicas},
		{"canary_pods", u.CanaryPods, rc.MaxReplicas},
	} {
		field.CheckRange(&errs, n.name, n.n, 0, n.most)
	}
	field.CheckWait(&errs, "stage_timeout", &u.StageTimeout)
	field.CheckWait(&errs, "delay", &u.Delay)
	field.CheckWait(&errs, "auto_promote", u.AutoPromote)
	field.CheckWait(&errs, "keep_old", &u.KeepOld)
	u.Gates.validate(&errs)
	var at field.Errors
	at.Nest("update", errs)
	return at
}
