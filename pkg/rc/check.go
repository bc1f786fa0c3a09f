package rc

import (
	"errors"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Limits of record fields that are not in documents.
const (
	// MaxPods is more than a controller has, with surge, copies that stop and orphans.
	MaxPods = 100 * MaxReplicas
	// MaxGeneration is the highest accepted generation and revision number. Numbers derived from it do not overflow.
	MaxGeneration = pod.MaxReported
)

// Check returns why a stored record cannot be used. Unknown fields are allowed: a newer version may have written them.
func (r *RC) Check() error {
	switch {
	case r.ID == "":
		return errors.New("the record has no id")
	case r.ManifestDigest == "":
		return errors.New("the record names no manifest")
	case r.Mode != "" && r.Mode != Replicas && r.Mode != EachNode:
		return fmt.Errorf("the record has the mode %q", r.Mode)
	case len(r.ReplicaGroups) == 0 && !r.EachNode():
		return errors.New("the record has no replica group")
	}
	if _, err := r.Selector(); err != nil {
		return err
	}
	if err := CheckGroups(r.ReplicaGroups); err != nil {
		return err
	}
	var errs field.Errors
	SpecOf(r, nil).validateLimits(&errs)
	r.checkCounters(&errs)
	return errs.Err()
}

// Limits returns the values that exceed the limits of a record.
func (s *Spec) Limits() field.Errors {
	var errs field.Errors
	validateCounts(&errs, s.ReplicaGroups)
	s.validateLimits(&errs)
	return errs
}

// CheckGroups returns why stored replica groups cannot be used.
func CheckGroups(groups []ReplicaGroup) error {
	seen := map[string]bool{}
	for _, g := range groups {
		switch {
		case g.Role == "" || seen[g.Role]:
			return fmt.Errorf("the record has an empty or repeated role %q", g.Role)
		case g.Count == nil:
			return fmt.Errorf("the record has no count for role %q", g.Role)
		case *g.Count < 0:
			return fmt.Errorf("the record has the count %d for role %q", *g.Count, g.Role)
		}
		seen[g.Role] = true
	}
	var errs field.Errors
	validateCounts(&errs, groups)
	return errs.Err()
}

func (r *RC) checkCounters(errs *field.Errors) {
	field.CheckRange(errs, "generation", r.Generation, 0, MaxGeneration)
	field.CheckRange(errs, "toggled", r.Toggled, 0, MaxGeneration)
	field.CheckRange(errs, "allow_mass_stop", r.AllowMassStop, 0, MaxGeneration)
	if r.InPlace != nil {
		field.CheckRange(errs, "in_place.limit", r.InPlace.Limit, 0, MaxReplicas)
		if r.InPlace.Keep != nil {
			field.CheckRange(errs, "in_place.keep", *r.InPlace.Keep, 0, MaxReplicas)
		}
	}
	if s := r.Service; s != nil {
		field.CheckRange(errs, "service.revision", s.Revision, 0, MaxGeneration)
		field.CheckRange(errs, "service.min", s.Min, 0, MaxReplicas)
		field.CheckRange(errs, "service.max", s.Max, 0, MaxPods)
	}
}

// Check returns why a stored status cannot be used.
func (s *Status) Check() error {
	var errs field.Errors
	for path, n := range map[string]int{
		"desired": s.Desired, "placed": s.Placed, "available": s.Available,
		"stopping": s.Stopping, "lost": s.Lost, "unmanaged": s.Unmanaged,
		"ghosts": s.Ghosts, "stopping_lost": s.StoppingLost, "unmanaged_available": s.UnmanagedAvailable,
		"updated": s.Updated, "updated_available": s.UpdatedAvailable, "standing_by": s.StandingBy,
	} {
		field.CheckRange(&errs, path, n, 0, MaxPods)
	}
	field.CheckRange(&errs, "observed_generation", s.ObservedGeneration, 0, MaxGeneration)
	field.CheckRange(&errs, "pull_seconds", s.PullSeconds, 0, int64(pod.MaxPullTime/time.Second))
	field.CheckRange(&errs, "mass_stop_used", s.MassStopUsed, 0, MaxGeneration)
	if n := len(s.Failing); n > MaxFailing {
		errs.Add("failing", field.Text(fmt.Sprintf("%d pods", n)), fmt.Sprintf("at most %d pods", MaxFailing))
	}
	return errs.Err()
}
