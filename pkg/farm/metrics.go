package farm

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Metrics is what a farm counts. It outlives sessions: one for the life of the process. Every label value exists from the start, and none
// names a controller or a pod.
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
	fleet                             fleetMetrics

	mu        sync.Mutex
	corruptAt map[string]int      // records that cannot be read, by where
	shortOf   map[string]shortage // by controller, those that lack nodes only
	active    map[string][]rc.ConditionType
}

// shortage is what one controller lacks.
type shortage struct {
	missing int
	reasons scheduler.Reasons
}

// watchKinds are the farm's standing queries, shards of one prefix together.
var watchKinds = []string{"bells", "nodes", "nodeops", "farms", "schema", "breaker"}

// passBuckets are in seconds: an idle pass takes a millisecond, one that writes 5,000 pods a second.
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
		owned:       f.Gauge("owned_rcs", "Controllers that this farm owns."),
		unclaimed:   f.Gauge("unclaimed_rcs", "Controllers that no farm owned in two sweeps in a row; reported by the leader."),
		gateWaiting: f.Gauge("gate_waiting_features", "Features of the leader's program that may not be written yet, because somebody who lives is older (ADR 28)."),
		gateBehind:  f.Gauge("gate_behind", "Farms and nodes that emulate less than the leader's program, a farm or a node does that is the newest."),
		leads:       f.Gauge("leads", "1 while this farm leads: it does what belongs to no controller."),
		synced:      f.Gauge("settled", "1 when every living node has said what it runs in this cluster, so that pods may be added."),
		tripped:     f.Gauge("breaker_tripped", "1 while the mass-stop breaker is tripped or cannot be read: nothing is stopped."),
		corrupt:     f.Gauge("corrupt_records", "Records seen that cannot be read."),
		ignored:     f.Gauge("ignored_witnesses", "Nodes whose word that the store went back in time cannot be so, and is ignored."),
		missing:     f.Gauge("missing_replicas", "Replicas of owned controllers that no node takes."),
		missingBy: obs.Gauges(f, "missing_replicas_by_reason",
			"Replicas of owned controllers that no node takes, counted once for each reason that keeps some node from taking them: their sum may be larger.", "reason", scheduler.AllReasons...),
		alerts:  obs.Gauges(f, "alerts_active", "Incidents of owned controllers that were raised and are not resolved; of the leader also those that belong to no controller.", "condition", kinds...),
		passes:  obs.Counters(f, "passes_total", "Looks at a controller, by how they ended: ok, refused (computed again), unknown (the fence is bumped first), error.", "outcome", append(store.Failures, "ok")...),
		batches: obs.Counters(f, "batches_total", "Write transactions, by how Consul answered.", "outcome", append(store.Failures, "committed")...),
		changes: obs.Counters(f, "pod_changes_total", "Changes of pods that were written.", "action", field.Each(reconcile.AllActions, reconcile.Action.Label)...),
		watches: obs.Counters(f, "watch_errors_total", "Failed polls of standing queries.", "watch", watchKinds...),
		scheduler: obs.Counters(f, "scheduler_errors_total",
			"Failed calls of a scheduler that is not the built-in one, by call; answer counts nodes that it named and that are ignored, because they are unknown, repeated or not eligible.", "call", schedulerCalls...),
		spoiled: obs.Counters(f, "merged_failures_total",
			"Reads that were done again alone, and writes whose outcome became unknown, because the request that they shared with others failed.", "kind",
			store.SpoiledReads, store.SpoiledWrites),
		bumps:    f.Counter("fence_bumps_total", "Times that a lock's index was moved, to shut out writes whose outcome is unknown."),
		panics:   f.Counter("panics_total", "Looks at a controller that panicked, which is a defect: the controller cannot be worked on, others go on."),
		losses:   f.Counter("session_losses_total", "Sessions that ended while they were needed."),
		passTime: f.Histogram("pass_duration_seconds", "How long a look at an owned controller took.", passBuckets),
		queue:    newQueueMetrics(f),
		fleet:    newFleetMetrics(f),
		election: obs.Gauges(f, "election_conditions", "1 while a condition of the election of the leader holds, as this farm sees it.", "condition", ballot.ConditionTypes...),
	}
}

// SessionLost counts a session that ended while it was needed.
func (m *Metrics) SessionLost() {
	m.losses.Inc()
}

// gate says how many features wait for the version gate, and for how many farms and nodes.
func (m *Metrics) gate(waiting, behind int) {
	m.gateWaiting.Set(float64(waiting))
	m.gateBehind.Set(float64(behind))
}

// reset forgets what the farm of an earlier session knew.
func (m *Metrics) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.corruptAt)
	clear(m.shortOf)
	clear(m.active)
	m.publish()
	for _, g := range []prometheus.Gauge{m.owned, m.unclaimed, m.synced, m.ignored, m.queue.depth} {
		g.Set(0)
	}
}

// passed counts one look at a controller.
func (m *Metrics) passed(took time.Duration, err error) {
	if errors.Is(err, errRecordGone) {
		err = nil
	}
	m.passTime.Observe(took.Seconds())
	m.passes.WithLabelValues(store.Outcome(err, "ok")).Inc()
}

// committed counts one write transaction and, when it landed, its changes of pods.
func (m *Metrics) committed(changes []reconcile.Action, err error) {
	m.batches.WithLabelValues(store.Outcome(err, "committed")).Inc()
	if err != nil {
		return
	}
	for _, action := range changes {
		m.changes.WithLabelValues(action.Label()).Inc()
	}
}

// keep keeps what is wrong with something, or forgets it where nothing is any more.
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

// unreadable reports how many records cannot be read in one place, such as a watch or a controller.
func (m *Metrics) unreadable(where string, n int) { keep(m, m.corruptAt, where, n, n > 0) }

// short reports how many replicas of a controller no node takes, and why nodes do not.
func (m *Metrics) short(rcID string, missing int, reasons scheduler.Reasons) {
	keep(m, m.shortOf, rcID, shortage{missing: missing, reasons: reasons}, missing > 0)
}

// Alerting reports the incidents that were raised and are not resolved, of a controller or of what else a name stands for.
func (m *Metrics) Alerting(where string, active []rc.ConditionType) {
	keep(m, m.active, where, active, len(active) > 0)
}

// forget drops what was reported about a controller that is not this farm's any more.
func (m *Metrics) forget(rcID string) {
	m.unreadable("rc/"+rcID, 0)
	m.short(rcID, 0, nil)
	m.Alerting(rcID, nil)
}

// publish sums up what is kept by controller. The caller holds the mutex. What is kept is what is wrong, so that a farm
// whose controllers are well adds up nothing.
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

// queueMetrics is what the workqueue reports. One set serves the queues of all sessions, one after the other.
type queueMetrics struct {
	depth   prometheus.Gauge
	delayed prometheus.Counter
	wait    prometheus.Histogram
	ignored prometheus.Gauge // of what nobody asks for
}

func newQueueMetrics(f obs.Meter) queueMetrics {
	return queueMetrics{
		depth:   f.Gauge("queue_depth", "Controllers that wait for a look."),
		delayed: f.Counter("queue_delayed_total", "Looks that were asked for later, after a failure among others."),
		ignored: prometheus.NewGauge(prometheus.GaugeOpts{}),
		wait:    f.Histogram("queue_wait_seconds", "How long a controller waited for a look.", passBuckets),
	}
}

// newQueue returns the queue of one session.
func newQueue(m *Metrics) workqueue.TypedRateLimitingInterface[string] {
	conf := workqueue.TypedRateLimitingQueueConfig[string]{Name: "rcs", MetricsProvider: m.queue} // without a name it reports nothing
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax), conf)
}

// NewDepthMetric is part of workqueue.MetricsProvider, as are the others below.
func (q queueMetrics) NewDepthMetric(string) workqueue.GaugeMetric { return q.depth }

// NewAddsMetric reports nothing.
func (q queueMetrics) NewAddsMetric(string) workqueue.CounterMetric { return q.ignored }

// NewLatencyMetric reports the wait.
func (q queueMetrics) NewLatencyMetric(string) workqueue.HistogramMetric { return q.wait }

// NewWorkDurationMetric reports nothing: passes are timed by themselves.
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

// NewRetriesMetric counts what was asked for later.
func (q queueMetrics) NewRetriesMetric(string) workqueue.CounterMetric { return q.delayed }
