package store

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Replicas counts the pods of some controllers.
type Replicas struct {
	Desired, Ready, Lost int
}

// Groups of controllers that no value of a label names.
const (
	OtherGroups = "other" // those besides the largest
	NoGroup     = "none"  // those without the label, and all where none is named
)

// MaxGroups bounds how many values of a label are told apart.
const MaxGroups = 50

// FleetMark tells whether anything may have changed of what CountReplicas and OrphanedRecords read: Consul's indices of the controllers, their
// statuses, placements, intents and reports. The zero mark is that of no read.
type FleetMark [5]uint64

// FleetMark asks for the present mark, in five small answers. Two equal marks say that nothing has changed between them, if they are less than
// 15 minutes apart (see consul.Client.PrefixIndex).
func (s *Leader) FleetMark(ctx context.Context) (FleetMark, error) {
	var mark FleetMark
	for i, kind := range []Kind{s.keys.RCs, s.keys.Statuses, s.keys.Pods, s.keys.Intents, s.keys.Realities} {
		index, err := s.c.PrefixIndex(ctx, kind.Key())
		if err != nil {
			return FleetMark{}, err
		}
		mark[i] = index
	}
	return mark, nil
}

// CountReplicas counts what controllers ask for and what their owners report, by the value of a label; "": all together. Records that cannot be
// read count for nothing.
func (s *Leader) CountReplicas(ctx context.Context, label string) (map[string]Replicas, error) {
	recs, _, err := s.RCs.List(ctx, consul.Default)
	if err != nil {
		return nil, err
	}
	statuses, _, err := s.Statuses.List(ctx, consul.Default)
	if err != nil {
		return nil, err
	}
	groups, of := map[string]Replicas{}, map[string]string{}
	for i := range recs {
		r := &recs[i].Value
		group := NoGroup
		if label != "" {
			group = cmp.Or(r.Labels[label], NoGroup)
		}
		of[r.ID] = group
		sum := groups[group]
		sum.Desired += r.Asks()
		groups[group] = sum
	}
	for i := range statuses {
		st := &statuses[i].Value
		if group, known := of[st.RCID]; known {
			sum := groups[group]
			sum.Ready, sum.Lost = sum.Ready+st.Available, sum.Lost+st.Lost
			groups[group] = sum
		}
	}
	return largest(groups, MaxGroups), nil
}

// largest returns the groups that ask for most, and what the others ask for together.
func largest(groups map[string]Replicas, most int) map[string]Replicas {
	if len(groups) <= most {
		return groups
	}
	names := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		return cmp.Or(cmp.Compare(groups[b].Desired, groups[a].Desired), cmp.Compare(a, b))
	})
	out := map[string]Replicas{}
	for i, name := range names {
		if i >= most-1 {
			sum, g := out[OtherGroups], groups[name]
			out[OtherGroups] = Replicas{sum.Desired + g.Desired, sum.Ready + g.Ready, sum.Lost + g.Lost}
			continue
		}
		out[name] = groups[name]
	}
	return out
}

// Orphaned is what there is of a controller's pods without their placements.
type Orphaned struct {
	Intents, Reports []string // keys; the controller has no record
	Unplaced         []string // keys of intents; the controller has a record
	Placed           bool     // the controller has no record, and placements of other pods
}

// None reports whether there is nothing without its placement.
func (o *Orphaned) None() bool { return len(o.Intents)+len(o.Reports)+len(o.Unplaced) == 0 }

// OrphanedRecords returns intents and reports of pods that have no placement, by controller; of one that has a record only intents. What others
// remove at this moment may be among them.
func (s *Leader) OrphanedRecords(ctx context.Context) (map[string]Orphaned, error) {
	intents, err := s.c.Keys(ctx, s.keys.Intents.Key())
	if err != nil {
		return nil, err
	}
	reports, err := s.c.Keys(ctx, s.keys.Realities.Key())
	if err != nil {
		return nil, err
	}
	placed, err := s.c.Keys(ctx, s.keys.Pods.Key()) // later: what is placed meanwhile is among them
	if err != nil {
		return nil, err
	}
	ids, err := s.RCs.IDs(ctx)
	if err != nil {
		return nil, err
	}
	known, some := map[string]bool{}, map[string]bool{}
	for _, id := range ids {
		known[id] = true
	}
	for _, key := range placed {
		identity := strings.TrimPrefix(key, s.keys.Pods.Key())
		rcID, _, _ := strings.Cut(identity, "/")
		known[identity], some[rcID] = true, true
	}
	orphaned := map[string]Orphaned{}
	each := func(keys []string, prefix string, note func(o *Orphaned, key string, living bool)) {
		for _, key := range keys {
			_, identity, _ := strings.Cut(strings.TrimPrefix(key, prefix), "/")
			rcID, replica, found := strings.Cut(identity, "/")
			if !found || replica == "" || known[identity] || isLocal(rcID) {
				continue
			}
			o := orphaned[rcID]
			o.Placed = some[rcID] && !known[rcID]
			if note(&o, key, known[rcID]); !o.None() {
				orphaned[rcID] = o
			}
		}
	}
	each(intents, s.keys.Intents.Key(), func(o *Orphaned, key string, living bool) {
		if living {
			o.Unplaced = append(o.Unplaced, key)
		} else {
			o.Intents = append(o.Intents, key)
		}
	})
	each(reports, s.keys.Realities.Key(), func(o *Orphaned, key string, living bool) {
		if !living { // else its node is about to remove it
			o.Reports = append(o.Reports, key)
		}
	})
	return orphaned, nil
}

func isLocal(rcID string) bool { return pod.Identity{RCID: rcID}.Local() }
