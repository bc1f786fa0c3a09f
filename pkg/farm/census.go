package farm

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/ownerless"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Census has the methods by which the leader counts all controllers.
type Census interface {
	ReplicasMark(ctx context.Context) (store.ReplicasMark, error)
	CountReplicas(ctx context.Context, label string) (map[string]store.Replicas, error)
	OrphanedRecords(ctx context.Context) ([]ownerless.Finding, error)
}

type nodeState string

const (
	nodeOpen      nodeState = "open" // it lives, and takes pods
	nodeCordoned  nodeState = "cordoned"
	nodeDrained   nodeState = "drained"
	nodeUnmanaged nodeState = "unmanaged" // its preparer is dead
	nodeLost      nodeState = "lost"      // its machine is lost
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

// clusterMetrics count all controllers and nodes. Those of farms that do not lead are zero, so the sum over the farms
// is right.
type clusterMetrics struct {
	nodes, replicas, orphaned *prometheus.GaugeVec
}

const (
	desiredReplicas = "desired"
	readyReplicas   = "ready"
	lostReplicas    = "lost"
)

func newClusterMetrics(f obs.Meter) clusterMetrics {
	m := clusterMetrics{
		nodes: obs.Gauges(f, "nodes",
			"All nodes, by whether they take pods; reported by the leader.", "state", nodeStates...),
		replicas: f.Gauges("replicas",
			fmt.Sprintf("Replicas of all controllers, by what their owners report, and by the value of the label that "+
				"--metrics-label names: the %d values with the most desired replicas, %s for all other values, "+
				"%s for controllers without the label; reported by the leader.",
				store.MaxGroups-1, store.OtherGroups, store.NoGroup), "state", "group"),
		orphaned: obs.Gauges(f, "orphaned_records",
			"Intents and realities of controllers that have neither a record nor placements, and intents without a "+
				"placement of controllers that have a record; reported by the leader.", "kind", ownerless.Labels...),
	}
	m.setReplicas(nil)
	return m
}

func (m *clusterMetrics) setReplicas(groups map[string]store.Replicas) {
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

func (m *clusterMetrics) setNodes(nodes map[string]*node.View) {
	count := map[nodeState]int{}
	for _, v := range nodes {
		count[stateOf(v)]++
	}
	for _, state := range nodeStates {
		m.nodes.WithLabelValues(string(state)).Set(float64(count[state]))
	}
}

func (m *clusterMetrics) setOrphaned(found []ownerless.Finding) {
	count := map[string]int{}
	for _, f := range found {
		count[f.Kind.Label]++
	}
	for _, label := range ownerless.Labels {
		m.orphaned.WithLabelValues(label).Set(float64(count[label]))
	}
}

type clusterCount struct {
	mark    store.ReplicasMark // read before the count; zero: the count failed and must be repeated
	at      time.Time
	orphans []ownerless.Finding
}

// countCluster counts at once, again after a quarter of SweepEvery, and then after each pause of twice SweepEvery, but
// at least once a minute.
func (s *leaderReporter) countCluster(ctx context.Context, as Census) error {
	m := &s.cfg.Metrics.cluster
	defer func() {
		m.setNodes(nil)
		m.setReplicas(nil)
		m.setOrphaned(nil)
		s.unreadable.forget(orphanedKind)
	}()
	var last clusterCount
	for first := true; ; first = false {
		nodes, _ := s.cache.nodesAt()
		m.setNodes(nodes)
		now, counted := s.recount(ctx, as, last)
		pause := min(2*s.cfg.SweepEvery, maxCountPause)
		switch {
		case first:
			pause = s.cfg.SweepEvery / 4 // by then, others have removed what they are removing now
		case counted:
			lasting := lasting(last.orphans, now.orphans)
			m.setOrphaned(lasting)
			s.unreadable.setSearched(orphanedKind, ownerless.Alerts(lasting, maxReports))
		}
		last = now
		if err := wait.Pause(ctx, pause); err != nil {
			return err
		}
	}
}

// recount counts all controllers if something may have changed. If a read fails, the old values stay, and the next
// count reads again. counted means that the returned orphaned records are up to date.
func (s *leaderReporter) recount(ctx context.Context, as Census, last clusterCount) (now clusterCount, counted bool) {
	mark, err := as.ReplicasMark(ctx) // before the count: a change during the count changes the mark
	if err == nil && mark == last.mark && time.Since(last.at) < maxUncounted {
		return last, true
	}
	now = clusterCount{mark: mark, at: time.Now(), orphans: last.orphans}
	groups, err := as.CountReplicas(ctx, s.cfg.MetricsLabel)
	if err == nil {
		s.cfg.Metrics.cluster.setReplicas(groups)
	} else {
		now.mark = store.ReplicasMark{}
		s.cannotCount(ctx, err, "cannot count the replicas of all controllers")
	}
	found, err := as.OrphanedRecords(ctx)
	if err == nil {
		now.orphans = found
	} else {
		now.mark = store.ReplicasMark{}
		s.cannotCount(ctx, err, "cannot look for intents and reports without a controller")
	}
	return now, err == nil
}

func (s *leaderReporter) cannotCount(ctx context.Context, err error, what string) {
	if ctx.Err() == nil {
		s.log.WithError(err).Warn(what)
	}
}

const (
	maxCountPause = time.Minute      // bounds the age of the cluster's metrics
	maxUncounted  = 10 * time.Minute // must be shorter than the time for which Consul remembers the index of a deletion
)

func lasting(before, now []ownerless.Finding) []ownerless.Finding {
	type record struct {
		kind ownerless.Name
		key  string
	}
	was := field.Set(field.Each(before, func(f ownerless.Finding) record { return record{f.Kind.Name, f.Key} }))
	return slices.DeleteFunc(slices.Clone(now), func(f ownerless.Finding) bool {
		return !was[record{f.Kind.Name, f.Key}]
	})
}
