package store

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/ownerless"
)

// Replicas has sums of pods.
type Replicas struct {
	Desired, Ready, Lost int
}

// The groups that do not stand for one value of the label.
const (
	OtherGroups = "other" // all but the largest groups
	NoGroup     = "none"  // controllers without the label; all controllers if no label is named
)

// MaxGroups bounds how many groups CountReplicas returns.
const MaxGroups = 50

// ReplicasMark shows whether the records of CountReplicas and OrphanedRecords may have changed. It has the indices of
// controllers, statuses, placements, intents and reports. The zero mark equals no other mark.
type ReplicasMark [5]uint64

// ReplicasMark reads the present mark. If two marks less than 15 minutes apart are equal, nothing has changed between
// them (see consul.Client.PrefixIndex).
func (l *Leader) ReplicasMark(ctx context.Context) (ReplicasMark, error) {
	var mark ReplicasMark
	for i, kind := range []Kind{l.keys.RCs, l.keys.Statuses, l.keys.Pods, l.keys.Intents, l.keys.Realities} {
		index, err := l.c.PrefixIndex(ctx, kind.Key())
		if err != nil {
			return ReplicasMark{}, err
		}
		mark[i] = index
	}
	return mark, nil
}

// CountReplicas adds up desired, available and lost pods for each value of a label. If label is "", all controllers are
// one group. It leaves out unreadable records.
func (l *Leader) CountReplicas(ctx context.Context, label string) (map[string]Replicas, error) {
	recs, _, err := l.RCs.List(ctx, consul.Default)
	if err != nil {
		return nil, err
	}
	statuses, _, err := l.Statuses.List(ctx, consul.Default)
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

// largest sums up the groups with the fewest desired pods.
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

// OrphanedRecords returns intents and reports without a placement. If the controller has a record, it returns only
// intents, because the nodes will remove the reports. The result may include records that are just being removed.
func (l *Leader) OrphanedRecords(ctx context.Context) ([]ownerless.Finding, error) {
	intents, err := l.c.Keys(ctx, l.keys.Intents.Key())
	if err != nil {
		return nil, err
	}
	reports, err := l.c.Keys(ctx, l.keys.Realities.Key())
	if err != nil {
		return nil, err
	}
	// Placements last, so that pods that are placed meanwhile are known.
	placed, err := l.c.Keys(ctx, l.keys.Pods.Key())
	if err != nil {
		return nil, err
	}
	ids, err := l.RCs.IDs(ctx)
	if err != nil {
		return nil, err
	}
	known := make(ownerless.Known, len(ids)+len(placed))
	known.Note(ownerless.Each(ownerless.Controller, ids)...)
	for _, key := range placed {
		known.Note(ownerless.Record{Of: ownerless.Placement, About: strings.TrimPrefix(key, l.keys.Pods.Key())})
	}
	records := append(l.keys.Intents.about(ownerless.Intent, intents),
		l.keys.Realities.about(ownerless.Report, reports)...)
	return ownerless.Scan(ownerless.Controller|ownerless.Placement, known, records), nil
}

func (k Kind) about(of ownerless.Facts, keys []string) []ownerless.Record {
	records := make([]ownerless.Record, 0, len(keys))
	for _, key := range keys {
		name, identity, _ := strings.Cut(strings.TrimPrefix(key, k.prefix), "/")
		if _, replica, _ := strings.Cut(identity, "/"); replica != "" {
			records = append(records, ownerless.Record{Of: of, Node: name, About: identity, Key: key})
		}
	}
	return records
}
