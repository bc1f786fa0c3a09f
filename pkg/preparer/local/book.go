package local

import (
	"fmt"
	"maps"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Room is what Book must know about the node.
type Room struct {
	View        *node.View       // View.Orphans must have all controllers' pods that run on the node
	Reservation node.Reservation // the present reservation
	Seen        map[pod.Identity]Seen
}

// Book returns the reservation with the desired shares of all local services, and writes the numbers of dynamic ports
// into the replicas that need a place. An accepted replica keeps its share even beyond the node's capacity, because it
// runs. A share without a replica is removed when the pod has stopped. If a replica that needs a place does not fit,
// Book returns scale.ErrConflict.
func Book(all map[string]*Service, room Room) (node.Reservation, error) {
	res := room.Reservation.Clone()
	explained := map[string]bool{}
	for _, name := range Names(all) {
		s := all[name]
		for i := range s.Replicas {
			if r := &s.Replicas[i]; !r.wants {
				explained[s.Identity(r).String()] = true
				s.keep(r, &res, room.Seen[s.Identity(r)])
			}
		}
	}
	for _, name := range Names(all) {
		s := all[name]
		for i := range s.Replicas {
			if r := &s.Replicas[i]; r.wants {
				explained[s.Identity(r).String()] = true
				if err := s.find(r, &res, room.View); err != nil {
					return room.Reservation, err
				}
			}
		}
	}
	maps.DeleteFunc(res.Claims, func(key string, h node.Claim) bool {
		seen, known := room.Seen[h.Pod]
		return h.Pod.Local() && !explained[key] && (!known || seen.Stopped)
	})
	return res, nil
}

// keep writes the share of an accepted replica: enough for each version that it may run now or next. While it may run
// an earlier version, the old share is included.
func (s *Service) keep(r *Replica, res *node.Reservation, seen Seen) {
	id := s.Identity(r)
	claim := node.NewClaim(id, r.Ports, 0, 0)
	if m := s.Specs[r.Digest].parsed; m != nil {
		claim = claimOf(id, r.Ports, m)
	}
	if m := s.Specs[s.Digest].parsed; r.Digest != s.Digest && !r.Stop && m != nil {
		claim = claim.With(claimOf(id, r.Next, m))
	}
	before, has := res.Claims[id.String()]
	if has && (r.Stop || !seen.Converged || seen.Revision != r.Revision) {
		claim = claim.With(before)
	}
	res.Claims[id.String()] = claim
}

func claimOf(id pod.Identity, ports map[string]int, m *manifest.Manifest) node.Claim {
	use := m.Resources()
	return node.NewClaim(id, ports, use.CPU, use.Memory)
}

// find finds a place for a replica with the service's version. The share includes the version that it may run now.
func (s *Service) find(r *Replica, res *node.Reservation, v *node.View) error {
	id, m := s.Identity(r), s.Specs[s.Digest].parsed
	ports := m.PortMap()
	claim, numbers, reason := scheduler.ClaimOn(v, *res, claimOf(id, ports, m), m.DynamicPorts(), r.Ports)
	if reason == "" { // add the share of the version that it may run until then
		if old := s.Specs[r.Digest].parsed; r.Digest != s.Digest && old != nil {
			claim = claim.With(claimOf(id, r.Ports, old))
		}
		claim = claim.With(res.Claims[id.String()])
		reason = scheduler.Fits(v, *res, id, claim)
	}
	if reason != "" {
		return fmt.Errorf("%w: no room for %s on node %s: %s", scale.ErrConflict, id, v.Name,
			missing(v, *res, claimOf(id, ports, m), reason))
	}
	maps.Copy(ports, numbers)
	res.Claims[id.String()] = claim
	if r.Digest == s.Digest {
		r.Ports = ports
	} else {
		r.Next = ports
	}
	r.wants = false
	return nil
}

func missing(v *node.View, res node.Reservation, want node.Claim, reason scheduler.Reason) string {
	switch reason {
	case scheduler.Drained:
		return "it is drained; rcctl node undrain opens it"
	case scheduler.Ports:
		return scheduler.ClashOf(v, res, want).String()
	case scheduler.Resources:
	default:
		return string(reason)
	}
	slots, cpu, memory := 0, int64(0), int64(0)
	for h := range scheduler.Others(v, res, want.Pod) {
		slots, cpu, memory = slots+1, field.Sum(cpu, h.CPU), field.Sum(memory, h.Memory)
	}
	var lacks []string
	add := func(what string, offered, used, wanted int64) {
		if used+wanted > offered {
			lacks = append(lacks,
				fmt.Sprintf("%s: it offers %d, %d are taken, %d more are asked for", what, offered, used, wanted))
		}
	}
	add("slots", int64(v.Capacity.Slots), int64(slots), 1)
	if v.Capacity.CPU > 0 {
		add("cpu (thousandths of a core)", v.Capacity.CPU, cpu, want.CPU)
	}
	if v.Capacity.Memory > 0 {
		add("memory (bytes)", v.Capacity.Memory, memory, want.Memory)
	}
	return strings.Join(lacks, "; ")
}

// Rebuild returns a reservation for a node that has none, because it is new or its record was lost.
func Rebuild(v *node.View) node.Reservation {
	res := node.Reservation{Labels: node.LabelVersions{Own: v.LabelVersions.Own}, Claims: map[string]node.Claim{}}
	for i := range v.Orphans {
		o := &v.Orphans[i]
		res.Claims[o.Identity.String()] = node.NewClaim(o.Identity, o.Ports, o.CPU, o.Memory)
	}
	return res
}
