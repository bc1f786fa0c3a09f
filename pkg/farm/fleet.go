package farm

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Census is what the leader reads of all controllers.
type Census interface {
	FleetMark(ctx context.Context) (store.FleetMark, error)
	CountReplicas(ctx context.Context, label string) (map[string]store.Replicas, error)
	OrphanedRecords(ctx context.Context) (map[string]store.Orphaned, error)
}

// nodeState is where a node stands, for those who count nodes.
type nodeState string

const (
	nodeOpen      nodeState = "open" // it lives, and takes pods
	nodeCordoned  nodeState = "cordoned"
	nodeDrained   nodeState = "drained"
	nodeUnmanaged nodeState = "unmanaged" // its preparer is away
	nodeLost      nodeState = "lost"      // its machine is
)

var nodeStates = []nodeState{nodeOpen, nodeCordoned, nodeDrained, nodeUnmanaged, nodeLost}

func stateOf(v *node.View) nodeState {
	switch {
	case v.MachineLost:
		return nodeLost
	case !v.Alive:
		return nodeUnmanaged
	case v.MustLeave():
		return nodeDrained
	case !v.Eligible():
		return nodeCordoned
	default:
		return nodeOpen
	}
}

// fleetMetrics are about all controllers and nodes. The leader alone reports them; those of all other farms are zero, so that they may be
// summed up.
type fleetMetrics struct {
	nodes, replicas, orphaned *prometheus.GaugeVec
}

// Labels of the fleet's metrics.
const (
	desiredReplicas = "desired"
	readyReplicas   = "ready"
	lostReplicas    = "lost"
	orphanedIntents = "intent"
	orphanedReports = "reality"
	unplacedIntents = "unplaced"
)

func newFleetMetrics(f obs.Meter) fleetMetrics {
	m := fleetMetrics{
		nodes: obs.Gauges(f, "nodes", "All nodes, by whether they take pods; reported by the leader.", "state", nodeStates...),
		replicas: f.Gauges("replicas", fmt.Sprintf("Replicas of all controllers, by what their owners say, and by the value of the label that --metrics-label names: the %d that most are "+
			"desired of, %s for those besides, %s for controllers without it; reported by the leader.", store.MaxGroups-1, store.OtherGroups, store.NoGroup), "state", "group"),
		orphaned: obs.Gauges(f, "orphaned_records", "Intents and realities of controllers that have neither a record nor placements, and intents without a placement of controllers that have a record; reported by the leader.", "kind", orphanedIntents, orphanedReports, unplacedIntents),
	}
	m.setReplicas(nil)
	return m
}

// setReplicas reports the groups in place of those before.
func (m *fleetMetrics) setReplicas(groups map[string]store.Replicas) {
	m.replicas.Reset()
	if len(groups) == 0 {
		groups = map[string]store.Replicas{store.NoGroup: {}}
	}
	for group, n := range groups {
		m.replicas.WithLabelValues(desiredReplicas, group).Set(float64(n.Desired))
		m.replicas.WithLabelValues(readyReplicas, group).Set(float64(n.Ready))
		m.replicas.WithLabelValues(lostReplicas, group).Set(float64(n.Lost))
	}
}

func (m *fleetMetrics) setNodes(nodes map[string]*node.View) {
	count := map[nodeState]int{}
	for _, v := range nodes {
		count[stateOf(v)]++
	}
	for _, state := range nodeStates {
		m.nodes.WithLabelValues(string(state)).Set(float64(count[state]))
	}
}

func (m *fleetMetrics) setOrphaned(found map[string]store.Orphaned) {
	intents, reports, unplaced := 0, 0, 0
	for _, o := range found {
		intents, reports, unplaced = intents+len(o.Intents), reports+len(o.Reports), unplaced+len(o.Unplaced)
	}
	m.orphaned.WithLabelValues(orphanedIntents).Set(float64(intents))
	m.orphaned.WithLabelValues(orphanedReports).Set(float64(reports))
	m.orphaned.WithLabelValues(unplacedIntents).Set(float64(unplaced))
}

// fleetCount is what was counted of all controllers, and when.
type fleetCount struct {
	mark    store.FleetMark // before the count; zero where it has to be done again
	at      time.Time
	orphans map[string]store.Orphaned
}

// countFleet reports what there is of all controllers and nodes, at once and about once in two sweeps.
func (f *speaker) countFleet(ctx context.Context, as Census) error {
	m := &f.cfg.Metrics.fleet
	defer func() {
		m.setNodes(nil)
		m.setReplicas(nil)
		m.setOrphaned(nil)
		f.unreadable.forget(orphanedKind)
	}()
	var last fleetCount
	for first := true; ; first = false {
		nodes, _ := f.cache.nodesAt()
		m.setNodes(nodes)
		now, looked := f.countAnew(ctx, as, last)
		pause := min(2*f.cfg.SweepEvery, maxFleetPause)
		switch {
		case first:
			pause = f.cfg.SweepEvery / 4 // what others remove at this moment is gone by then
		case looked:
			lasting := lasting(last.orphans, now.orphans)
			m.setOrphaned(lasting)
			f.unreadable.found(orphanedKind, orphanedTexts(lasting))
		}
		last = now
		if err := wait.Pause(ctx, pause); err != nil {
			return err
		}
	}
}

// countAnew counts all controllers where something may have changed since they were counted last. What cannot be read is as it was, and is read
// next time. It reports whether the orphaned records are known to be those of now.
func (f *speaker) countAnew(ctx context.Context, as Census, last fleetCount) (now fleetCount, looked bool) {
	mark, err := as.FleetMark(ctx) // before the rest: what changes meanwhile makes another one
	if err == nil && mark == last.mark && time.Since(last.at) < maxUncounted {
		return last, true
	}
	now = fleetCount{mark: mark, at: time.Now(), orphans: last.orphans}
	groups, err := as.CountReplicas(ctx, f.cfg.MetricsLabel)
	if err == nil {
		f.cfg.Metrics.fleet.setReplicas(groups)
	} else {
		now.mark = store.FleetMark{}
		f.cannotCount(ctx, err, "cannot count the replicas of all controllers")
	}
	found, err := as.OrphanedRecords(ctx)
	if err == nil {
		now.orphans = found
	} else {
		now.mark = store.FleetMark{}
		f.cannotCount(ctx, err, "cannot look for intents and reports without a controller")
	}
	return now, err == nil
}

func (f *speaker) cannotCount(ctx context.Context, err error, what string) {
	if ctx.Err() == nil {
		f.log.WithError(err).Warn(what)
	}
}

const (
	maxFleetPause = time.Minute      // bounds how old the fleet's metrics are
	maxUncounted  = 10 * time.Minute // less than Consul remembers deletions for
)

// lasting returns what was found twice in a row.
func lasting(before, now map[string]store.Orphaned) map[string]store.Orphaned {
	both := map[string]store.Orphaned{}
	for id, o := range now {
		was := before[id]
		o.Intents, o.Reports, o.Unplaced = inBoth(o.Intents, was.Intents), inBoth(o.Reports, was.Reports), inBoth(o.Unplaced, was.Unplaced)
		if !o.None() {
			both[id] = o
		}
	}
	return both
}

func inBoth(keys, others []string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return !slices.Contains(others, key) })
}

const unplacedText = "the controller %s has no placement for %s, such as %s: the nodes do as they were told, and nobody counts those pods; remove such a key, and the owner adopts what runs"

const orphanedText = "the controller %s has neither a record nor placements, but %s and %s, on %s; they are left as they are: write the record back, or have them stopped and removed with rcctl node sweep NODE"

// orphanedTexts says what was found, by key, of the first few controllers.
func orphanedTexts(found map[string]store.Orphaned) map[string]string {
	texts := map[string]string{}
	ids := slices.Sorted(maps.Keys(found))
	for _, id := range ids[:min(len(ids), maxReports)] {
		o, nodes := found[id], map[string]bool{}
		if len(o.Unplaced) > 0 {
			texts["orphaned/"+id] = fmt.Sprintf(unplacedText, id, field.Count(len(o.Unplaced), "intent"), slices.Min(o.Unplaced))
			continue
		}
		for _, key := range slices.Concat(o.Intents, o.Reports) {
			nodes[path.Base(path.Dir(path.Dir(key)))] = true
		}
		const few = 3
		texts["orphaned/"+id] = fmt.Sprintf(orphanedText, id, field.Count(len(o.Intents), "intent"), field.Count(len(o.Reports), "report"),
			field.Few(slices.Sorted(maps.Keys(nodes)), few, ", "))
	}
	return texts
}
