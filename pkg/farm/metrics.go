package farm

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/farm/place"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Metrics has the metrics of a farm, for all its sessions. The label values exist from the start, except the groups of
// --metrics-label. No label value is the id of a controller or a pod.
type Metrics struct {
	owned, unclaimed, synced, tripped prometheus.Gauge
	gateWaiting, gateBehind           prometheus.Gauge
	leads                             prometheus.Gauge
	election                          *prometheus.GaugeVec
	corrupt, missing, ignored         prometheus.Gauge
	missingBy, alerts                 *prometheus.GaugeVec
	passes, batches, changes, watches *prometheus.CounterVec
	scheduler, spoiled                *prometheus.CounterVec
	bumps, losses, panics             prometheus.Counter
	passTime                          prometheus.Histogram
	queue                             queueMetrics
	cluster                           clusterMetrics

	mu        sync.Mutex
	corruptAt map[string]int      // how many records cannot be read, by watch or controller
	shortOf   map[string]shortage // by controller; only controllers with missing replicas
	active    map[string][]rc.ConditionType
}

type shortage struct {
	missing int
	reasons scheduler.Reasons
}

// watchKinds are the watches of a farm. Pages of orphans have no watch, but errors of their reads are counted here.
var watchKinds = []string{"bells", "nodes", "nodeops", "farms", "schema", "breaker", "orphans"}

// passBuckets are in seconds: an idle look takes a millisecond, and a look that writes 5,000 pods takes a second.
var passBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// NewMetrics makes and registers the metrics of a farm.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := obs.NewMeter(reg, "farm")
	var kinds []rc.ConditionType
	for _, rule := range rc.Alerts {
		kinds = append(kinds, rule.Type)
	}
	return &Metrics{
		corruptAt: map[string]int{}, shortOf: map[string]shortage{}, active: map[string][]rc.ConditionType{},
		owned: f.Gauge("owned_rcs", "Controllers that this farm owns."),
		unclaimed: f.Gauge("unclaimed_rcs",
			"Controllers that no farm owned in two sweeps in a row; reported by the leader."),
		gateWaiting: f.Gauge("gate_waiting_features",
			"Features of the leader's program that may not be written yet, because a living farm or node is older "+
				"(ADR 28)."),
		gateBehind: f.Gauge("gate_behind",
			"Farms and nodes that emulate an older version than the newest among the leader's program, "+
				"farms and nodes."),
		leads: f.Gauge("leads", "1 while this farm leads: it does what belongs to no controller."),
		synced: f.Gauge("settled",
			"1 when all living nodes have reported what they run in this cluster, so that pods may be added."),
		tripped: f.Gauge("breaker_tripped",
			"1 while the mass-stop breaker is tripped or cannot be read: nothing is stopped."),
		corrupt: f.Gauge("corrupt_records", "Records seen that cannot be read."),
		ignored: f.Gauge("ignored_witnesses",
			"Nodes whose report that the store went back in time is impossible, and is ignored."),
		missing: f.Gauge("missing_replicas", "Replicas of owned controllers that no node takes."),
		missingBy: obs.Gauges(f, "missing_replicas_by_reason",
			"Replicas of owned controllers that no node takes, counted once for each reason that keeps some node from "+
				"taking them; so the sum may be larger.", "reason", scheduler.AllReasons...),
		alerts: obs.Gauges(f, "alerts_active",
			"Incidents of owned controllers that were raised and are not resolved; the leader adds those that belong "+
				"to no controller.", "condition", kinds...),
		passes: obs.Counters(f, "passes_total",
			"Looks at a unit, by how they ended: ok, refused (computed again), unknown (the fence is bumped "+
				"first), error.", "outcome", append(store.Failures, "ok")...),
		batches: obs.Counters(f, "batches_total",
			"Write transactions, by how Consul answered.", "outcome", append(store.Failures, "committed")...),
		changes: obs.Counters(f, "pod_changes_total", "Changes of pods that were written.", "action",
			field.Each(reconcile.AllActions, reconcile.Action.Label)...),
		watches: obs.Counters(f, "watch_errors_total", "Failed polls of watches.", "watch", watchKinds...),
		scheduler: obs.Counters(f, "scheduler_errors_total",
			"Failed calls of an outside scheduler, by call; answer counts nodes that it named and that the farm "+
				"ignores, because they are unknown, repeated or not eligible.", "call", place.Calls...),
		spoiled: obs.Counters(f, "merged_failures_total",
			"Reads that were repeated alone, and writes whose outcome became unknown, because the request that they "+
				"shared with others failed.", "kind", store.FailedReads, store.FailedWrites),
		bumps: f.Counter("fence_bumps_total",
			"Times that a lock's index was moved, to shut out writes whose outcome is unknown."),
		panics: f.Counter("panics_total",
			"Claims and passes that panicked, which is a defect: the controller cannot be worked on, others go "+
				"on."),
		losses:   f.Counter("session_losses_total", "Sessions that ended while they were needed."),
		passTime: f.Histogram("pass_duration_seconds", "How long a look at an owned unit took.", passBuckets),
		queue:    newQueueMetrics(f),
		cluster:  newClusterMetrics(f),
		election: obs.Gauges(f, "election_conditions",
			"1 while a condition of the election of the leader holds, as this farm sees it.", "condition",
			ballot.ConditionTypes...),
	}
}

// SessionLost counts a session that ended while it was needed.
func (m *Metrics) SessionLost() {
	m.losses.Inc()
}

// gate sets how many features wait for the version gate, and for how many farms and nodes.
func (m *Metrics) gate(waiting, behind int) {
	m.gateWaiting.Set(float64(waiting))
	m.gateBehind.Set(float64(behind))
}

func (m *Metrics) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.corruptAt)
	clear(m.shortOf)
	clear(m.active)
	m.publish()
	for _, g := range []prometheus.Gauge{m.owned, m.unclaimed, m.synced, m.tripped, m.ignored, m.queue.depth} {
		g.Set(0)
	}
	m.setElection(nil)
}

func (m *Metrics) setElection(are map[ballot.ConditionType]bool) {
	for _, t := range ballot.ConditionTypes {
		m.election.WithLabelValues(string(t)).Set(obs.Flag(are[t]))
	}
}

func (m *Metrics) passed(took time.Duration, err error) {
	if errors.Is(err, errRecordGone) {
		err = nil
	}
	m.passTime.Observe(took.Seconds())
	m.passes.WithLabelValues(store.Outcome(err, "ok")).Inc()
}

// committed counts one write transaction and, if it landed, its changes of pods.
func (m *Metrics) committed(changes []reconcile.Action, err error) {
	m.batches.WithLabelValues(store.Outcome(err, "committed")).Inc()
	if err != nil {
		return
	}
	for _, action := range changes {
		m.changes.WithLabelValues(action.Label()).Inc()
	}
}

func keep[V any](m *Metrics, of map[string]V, what string, now V, wrong bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, was := of[what]; !was && !wrong {
		return
	}
	of[what] = now
	if !wrong {
		delete(of, what)
	}
	m.publish()
}

// unreadable reports how many records one watch, or the pass over one controller, cannot read.
func (m *Metrics) unreadable(where string, n int) { keep(m, m.corruptAt, where, n, n > 0) }

// SchedulerFailed counts a failed call of an outside scheduler, or an ignored part of its answer.
func (m *Metrics) SchedulerFailed(call string) { m.scheduler.WithLabelValues(call).Inc() }

// SetMissing reports how many replicas of a controller no node takes, and why.
func (m *Metrics) SetMissing(rcID string, missing int, reasons scheduler.Reasons) {
	keep(m, m.shortOf, rcID, shortage{missing: missing, reasons: reasons}, missing > 0)
}

// Alerting reports the incidents that were raised and are not resolved. where is a controller or recordsName.
func (m *Metrics) Alerting(where string, active []rc.ConditionType) {
	keep(m, m.active, where, active, len(active) > 0)
}

func (m *Metrics) forget(rcID string) {
	m.unreadable("rc/"+rcID, 0)
	m.SetMissing(rcID, 0, nil)
	m.Alerting(rcID, nil)
}

// publish sums up the values. Only troubles are kept, so a farm without troubles sums up nothing. The caller holds the
// mutex.
func (m *Metrics) publish() {
	corrupt, missing := 0, 0
	for _, n := range m.corruptAt {
		corrupt += n
	}
	byReason := map[scheduler.Reason]int{}
	for _, s := range m.shortOf {
		missing += s.missing
		for reason := range s.reasons {
			byReason[reason] += s.missing
		}
	}
	byType := map[rc.ConditionType]int{}
	for _, types := range m.active {
		for _, t := range types {
			byType[t]++
		}
	}
	m.corrupt.Set(float64(corrupt))
	m.missing.Set(float64(missing))
	for _, reason := range scheduler.AllReasons {
		m.missingBy.WithLabelValues(string(reason)).Set(float64(byReason[reason]))
	}
	for _, rule := range rc.Alerts {
		m.alerts.WithLabelValues(string(rule.Type)).Set(float64(byType[rule.Type]))
	}
}

// queueMetrics are the metrics of the workqueue, for the queues of all sessions.
type queueMetrics struct {
	depth   prometheus.Gauge
	delayed prometheus.Counter
	wait    prometheus.Histogram
	ignored prometheus.Gauge // stands for metrics that are not exported
}

func newQueueMetrics(f obs.Meter) queueMetrics {
	return queueMetrics{
		depth:   f.Gauge("queue_depth", "Controllers that wait for a look."),
		delayed: f.Counter("queue_delayed_total", "Looks that were delayed, for example after a failure."),
		ignored: prometheus.NewGauge(prometheus.GaugeOpts{}),
		wait:    f.Histogram("queue_wait_seconds", "How long a controller waited for a look.", passBuckets),
	}
}

func newQueue(m *Metrics) workqueue.TypedRateLimitingInterface[string] {
	// Without a name the queue reports nothing.
	conf := workqueue.TypedRateLimitingQueueConfig[string]{Name: "rcs", MetricsProvider: m.queue}
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax), conf)
}

// NewDepthMetric and the methods below implement workqueue.MetricsProvider.
func (q queueMetrics) NewDepthMetric(string) workqueue.GaugeMetric { return q.depth }

// NewAddsMetric reports nothing.
func (q queueMetrics) NewAddsMetric(string) workqueue.CounterMetric { return q.ignored }

// NewLatencyMetric reports how long units wait.
func (q queueMetrics) NewLatencyMetric(string) workqueue.HistogramMetric { return q.wait }

// NewWorkDurationMetric reports nothing, because looks are timed elsewhere.
func (q queueMetrics) NewWorkDurationMetric(string) workqueue.HistogramMetric {
	return prometheus.NewHistogram(prometheus.HistogramOpts{})
}

// NewUnfinishedWorkSecondsMetric reports nothing.
func (q queueMetrics) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return q.ignored
}

// NewLongestRunningProcessorSecondsMetric reports nothing.
func (q queueMetrics) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return q.ignored
}

// NewRetriesMetric counts delayed looks.
func (q queueMetrics) NewRetriesMetric(string) workqueue.CounterMetric { return q.delayed }
