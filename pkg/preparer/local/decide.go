package local

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// Read returns the version of the service that a request has. If it has none, digest is "". Mistakes are field.Errors.
func Read(r scale.Request) (spec Spec, digest string, err error) {
	var errs field.Errors
	if len(pod.LocalRC(r.Service)) > field.MaxName {
		errs.Add("service", r.Service,
			fmt.Sprintf("at most %d characters of a local service", field.MaxName-len(pod.LocalRC(""))))
	}
	checkRoles(&errs, r)
	if r.Spec == nil {
		return Spec{}, "", errs.Err()
	}
	m, err := manifest.Decode(r.Spec.Manifest)
	var inner field.Errors
	switch {
	case errors.As(err, &inner):
		errs.Nest("spec.manifest", inner)
	case err != nil:
		errs.Add("spec.manifest", nil, "a manifest: "+err.Error())
	case m.ID != r.Service:
		errs.Add("spec.manifest.id", m.ID, fmt.Sprintf("%q, the name of the service", r.Service))
	}
	manifest.ValidateLabels(&errs, "spec.labels", r.Spec.Labels)
	if err := errs.Err(); err != nil {
		return Spec{}, "", err
	}
	return NewSpec(m, r.Spec.Signature, r.Spec.Labels)
}

func roleOf(name string) string {
	if name == scale.DefaultGroup {
		return rc.DefaultRole
	}
	return name
}

func checkRoles(errs *field.Errors, r scale.Request) {
	roles := map[string]bool{}
	for i, a := range r.Assignments {
		role := roleOf(a.Role)
		if roles[role] {
			errs.Add(fmt.Sprintf("assignments[%d].role", i), a.Role,
				fmt.Sprintf("not both %s and %s, which are the same here", scale.DefaultGroup, rc.DefaultRole))
		}
		roles[role] = true
	}
}

// Take returns the desired state of a service after a request. before is the desired state until now; nil if the node
// does not know the service. If digest is not empty, spec is the version in the request. seen has all replicas that the
// node has, even those that before lacks. Errors: scale.ErrUnknownService and scale.ErrConflict.
func Take(before *Service, r scale.Request, spec Spec, digest string, seen map[pod.Identity]Seen,
	now time.Time,
) (*Service, error) {
	next := &Service{Version: Version, Name: r.Service, Specs: map[string]Spec{}}
	switch {
	case before == nil && digest == "":
		return nil,
			fmt.Errorf("%w %q: this node has never seen it, or has forgotten it since it stopped; send its spec",
				scale.ErrUnknownService, r.Service)
	case before != nil && r.Revision != 0 && r.Revision < before.Revision:
		return nil, fmt.Errorf("%w: revision %d is older than %d, the last that was taken of service %q",
			scale.ErrConflict, r.Revision, before.Revision, r.Service)
	case before != nil:
		next = before.Clone()
	}
	next.Revision = max(next.Revision, r.Revision)
	if digest != "" {
		next.Digest, next.Specs[digest] = digest, spec
	}
	wanted := map[pod.Identity]bool{}
	for _, a := range r.Assigned() {
		for _, index := range a.Indices {
			wanted[pod.Identity{RCID: pod.LocalRC(r.Service), Role: roleOf(a.Role), Index: int(index)}] = true
		}
	}
	changed := before != nil && before.Digest != next.Digest
	for i := range next.Replicas {
		one := &next.Replicas[i]
		id, was := next.Identity(one), one.Revision
		next.take(one, wanted[id], changed, seen[id], now)
		if relabelled := !maps.Equal(before.Specs[one.Digest].Labels, next.Specs[one.Digest].Labels); relabelled &&
			wanted[id] && one.Revision == was {
			// labels restart no process, so the replica does not wait for its turn
			one.Revision = pod.NextRevision(now, was, seen[id].Revision)
		}
		delete(wanted, id)
	}
	for id, was := range seen { // if the service's file was lost, replicas may run that it does not have
		if id.LocalService() == r.Service && !was.Stopped && !next.has(id) && !wanted[id] {
			next.Replicas = append(next.Replicas,
				Replica{
					Role: id.Role, Index: id.Index, Digest: next.Digest, Stop: true,
					Revision: pod.NextRevision(now, was.Revision),
				})
		}
	}
	for id := range wanted {
		next.Replicas = append(next.Replicas, Replica{
			Role: id.Role, Index: id.Index, Digest: next.Digest, Revision: pod.NextRevision(now,
				seen[id].Revision), wants: true,
		})
	}
	next.tidy(now)
	return next, nil
}

func (s *Service) has(id pod.Identity) bool {
	return slices.ContainsFunc(s.Replicas, func(r Replica) bool { return s.Identity(&r) == id })
}

// take makes one replica run or stop. If the service's version has changed, the replica needs a place, and gets the
// version when it is its turn.
func (s *Service) take(r *Replica, run, changed bool, seen Seen, now time.Time) {
	switch {
	case !run && !r.Stop:
		r.Stop, r.Next, r.Revision = true, nil, pod.NextRevision(now, r.Revision, seen.Revision)
	case run && r.Stop: // without waiting for the stop, because the stop can fail for ever
		*r = Replica{
			Role: r.Role, Index: r.Index, Digest: s.Digest,
			Revision: pod.NextRevision(now, r.Revision, seen.Revision), wants: true,
		}
	case run && changed:
		r.Next, r.wants = nil, r.Digest != s.Digest
	}
}

// Next returns the next desired state after the node has done what seen has. It removes replicas that have stopped.
// When all replicas with the service's version have converged, one more replica gets this version.
func (s *Service) Next(seen map[pod.Identity]Seen, now time.Time) (next *Service, news bool) {
	next = s.Clone()
	next.Replicas = slices.DeleteFunc(next.Replicas, func(r Replica) bool {
		was, known := seen[s.Identity(&r)]
		return r.Stop && (!known || was.Stopped && was.Revision >= r.Revision)
	})
	news = len(next.Replicas) != len(s.Replicas)
	if r := next.turn(seen); r != nil {
		r.Digest, r.Ports, r.Next = next.Digest, r.Next, nil
		r.Revision = pod.NextRevision(now, r.Revision, seen[next.Identity(r)].Revision)
		news = true
	}
	next.tidy(now)
	return next, news
}

// turn returns the replica that gets the service's version next, or nil while a replica with this version has not
// converged. It prefers a replica that has not converged with its old version, because that replica is not available
// anyway.
func (s *Service) turn(seen map[pod.Identity]Seen) *Replica {
	var first, broken *Replica
	for i := range s.Replicas {
		r := &s.Replicas[i]
		was := seen[s.Identity(r)]
		converged := was.Converged && was.Revision == r.Revision
		switch {
		case r.Stop:
		case r.Digest == s.Digest && !converged:
			return nil
		case r.Digest == s.Digest:
		case !converged && broken == nil:
			broken = r
		case first == nil:
			first = r
		}
	}
	if broken != nil {
		return broken
	}
	return first
}

// Conflict looks for the intent of a controller's pod that must run and has this name as its pod id.
func Conflict(name string, intents ...pod.Intent) (id pod.Identity, ok bool) {
	i := slices.IndexFunc(intents,
		func(in pod.Intent) bool { return in.PodID == name && in.State == pod.Running && !in.Identity.Local() })
	if i < 0 {
		return pod.Identity{}, false
	}
	return intents[i].Identity, true
}

// MaxResting is how many services without replicas the node remembers.
const MaxResting = 64

// Forgotten returns the services to forget: those without replicas, except the MaxResting that stopped last.
func Forgotten(all map[string]*Service) []string {
	resting := slices.DeleteFunc(Names(all), func(name string) bool { return !all[name].Resting() })
	slices.SortStableFunc(resting, func(a, b string) int { return all[a].stopped().Compare(all[b].stopped()) })
	return resting[:max(0, len(resting)-MaxResting)]
}

// Names returns sorted names.
func Names(all map[string]*Service) []string { return slices.Sorted(maps.Keys(all)) }
