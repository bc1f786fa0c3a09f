package farm

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/alert"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Metrics is what a farm counts. It outlives sessions: one for the life of the process. All its methods do nothing on a
// nil *Metrics. Every label value exists from the start, and none names a controller or a pod.
type Metrics struct {
	owned, unclaimed, settled, tripped prometheus.Gauge
	corrupt, missing                   prometheus.Gauge
	missingBy, alerts                  *prometheus.GaugeVec
	passes, batches, changes, watches  *prometheus.CounterVec
	scheduler, spoiled                 *prometheus.CounterVec
	bumps, losses                      prometheus.Counter
	passTime                           prometheus.Histogram
	queue                              queueMetrics

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

// The outcomes of passes and batches.
const (
	outcomeOK        = "ok"
	outcomeCommitted = "committed"
	outcomeRefused   = "refused"
	outcomeUnknown   = "unknown"
	outcomeError     = "error"
)

// watchKinds are the farm's standing queries, shards of one prefix together.
var watchKinds = []string{"bells", "nodes", "nodeops", "farms", "schema", "breaker"}

// passBuckets are in seconds: an idle pass takes a millisecond, one that writes 5,000 pods a second.
var passBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// NewMetrics makes and registers the metrics of a farm.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := factory{reg}
	m := &Metrics{
		corruptAt: map[string]int{}, shortOf: map[string]shortage{}, active: map[string][]rc.ConditionType{},
		owned:     f.gauge("owned_rcs", "Controllers that this farm owns."),
		unclaimed: f.gauge("unclaimed_rcs", "Controllers that no farm owned in two sweeps in a row; reported by the living farm with the lowest id."),
		settled:   f.gauge("settled", "1 when every living node has said what it runs in this cluster, so that pods may be added."),
		tripped:   f.gauge("breaker_tripped", "1 while the mass-stop breaker is tripped or cannot be read: nothing is stopped."),
		corrupt:   f.gauge("corrupt_records", "Records seen that cannot be read."),
		missing:   f.gauge("missing_replicas", "Replicas of owned controllers that no node takes."),
		missingBy: f.gauges("missing_replicas_by_reason",
			"Replicas of owned controllers that no node takes, counted once for each reason that keeps some node from taking them.", "reason"),
		alerts:  f.gauges("alerts_active", "Incidents of owned controllers that were raised and are not resolved.", "condition"),
		passes:  f.counters("passes_total", "Looks at a controller, by how they ended.", "outcome"),
		batches: f.counters("batches_total", "Write transactions, by how Consul answered.", "outcome"),
		changes: f.counters("pod_changes_total", "Changes of pods that were written.", "action"),
		watches: f.counters("watch_errors_total", "Failed polls of standing queries.", "watch"),
		scheduler: f.counters("scheduler_errors_total",
			"Failed calls of a scheduler that is not the built-in one, by call; answer counts nodes that it named and must not.", "call"),
		spoiled: f.counters("merged_failures_total",
			"Reads that were done again alone, and writes whose outcome became unknown, because the request that they shared with others failed.", "kind"),
		bumps:    f.counter("fence_bumps_total", "Times that a lock's index was moved, to shut out writes whose outcome is unknown."),
		losses:   f.counter("session_losses_total", "Sessions that ended while they were needed."),
		passTime: f.histogram("pass_duration_seconds", "How long a look at an owned controller took.", passBuckets),
		queue:    newQueueMetrics(f),
	}
	for _, reason := range scheduler.AllReasons {
		m.missingBy.WithLabelValues(string(reason))
	}
	for _, rule := range alert.Rules {
		m.alerts.WithLabelValues(string(rule.Type))
	}
	for _, action := range reconcile.AllActions {
		m.changes.WithLabelValues(string(action))
	}
	for _, kind := range watchKinds {
		m.watches.WithLabelValues(kind)
	}
	for _, call := range schedulerCalls {
		m.scheduler.WithLabelValues(call)
	}
	for _, kind := range []string{store.SpoiledReads, store.SpoiledWrites} {
		m.spoiled.WithLabelValues(kind)
	}
	for _, outcome := range []string{outcomeOK, outcomeRefused, outcomeUnknown, outcomeError} {
		m.passes.WithLabelValues(outcome)
	}
	for _, outcome := range []string{outcomeCommitted, outcomeRefused, outcomeUnknown, outcomeError} {
		m.batches.WithLabelValues(outcome)
	}
	return m
}

// factory makes metrics with the farm's prefix and registers them.
type factory struct{ reg prometheus.Registerer }

const namespace, subsystem = "rcfarm", "farm"

func made[C prometheus.Collector](f factory, c C) C {
	f.reg.MustRegister(c)
	return c
}

func (f factory) gauge(name, help string) prometheus.Gauge {
	return made(f, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}))
}

func (f factory) gauges(name, help, label string) *prometheus.GaugeVec {
	return made(f, prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, []string{label}))
}

func (f factory) counter(name, help string) prometheus.Counter {
	return made(f, prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}))
}

func (f factory) counters(name, help, label string) *prometheus.CounterVec {
	return made(f, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, []string{label}))
}

func (f factory) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return made(f, prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}))
}

// SessionLost counts a session that ended while it was needed.
func (m *Metrics) SessionLost() {
	m.losses.Inc()
}

// reset forgets what the farm of an earlier session knew.
func (m *Metrics) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.corruptAt)
	clear(m.shortOf)
	clear(m.active)
	m.publish()
	for _, g := range []prometheus.Gauge{m.owned, m.unclaimed, m.settled, m.queue.depth} {
		g.Set(0)
	}
}

// owns reports how many controllers the farm has.
func (m *Metrics) owns(n int) {
	m.owned.Set(float64(n))
}

func (m *Metrics) settledNow(yes bool) {
	m.settled.Set(flag(yes))
}

func (m *Metrics) breaker(stopsNothing bool) {
	m.tripped.Set(flag(stopsNothing))
}

func (m *Metrics) unclaimedNow(n int) {
	m.unclaimed.Set(float64(n))
}

func flag(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// passed counts one look at a controller.
func (m *Metrics) passed(took time.Duration, err error) {
	m.passTime.Observe(took.Seconds())
	m.passes.WithLabelValues(outcomeOf(err, outcomeOK)).Inc()
}

// committed counts one write transaction and, when it landed, its changes of pods.
func (m *Metrics) committed(changes []reconcile.Action, err error) {
	m.batches.WithLabelValues(outcomeOf(err, outcomeCommitted)).Inc()
	if err != nil {
		return
	}
	for _, action := range changes {
		m.changes.WithLabelValues(string(action)).Inc()
	}
}

func outcomeOf(err error, good string) string {
	switch {
	case err == nil, errors.Is(err, errGone):
		return good
	case errors.Is(err, store.ErrUnknown):
		return outcomeUnknown
	case errors.Is(err, store.ErrRefused):
		return outcomeRefused
	default:
		return outcomeError
	}
}

func (m *Metrics) bumped() {
	m.bumps.Inc()
}

// mergedFailed counts what shared a request that failed.
func (m *Metrics) mergedFailed(kind string, parts int) {
	m.spoiled.WithLabelValues(kind).Add(float64(parts))
}

// watchFailed counts a failed poll of the query with this name, such as nodes/3.
func (m *Metrics) watchFailed(name string) {
	kind, _, _ := strings.Cut(name, "/")
	m.watches.WithLabelValues(kind).Inc()
}

// schedulerFailed counts a failed call of an outside scheduler, or a part of its answer that is ignored.
func (m *Metrics) schedulerFailed(call string) {
	m.scheduler.WithLabelValues(call).Inc()
}

// unreadable reports how many records cannot be read in one place, such as a watch or a controller.
func (m *Metrics) unreadable(where string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.corruptAt[where] == n {
		return
	}
	m.corruptAt[where] = n
	if n == 0 {
		delete(m.corruptAt, where)
	}
	m.publish()
}

// short reports how many replicas of a controller no node takes, and why nodes do not.
func (m *Metrics) short(rcID string, missing int, reasons scheduler.Reasons) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, was := m.shortOf[rcID]; !was && missing == 0 {
		return
	}
	m.shortOf[rcID] = shortage{missing: missing, reasons: reasons}
	if missing == 0 {
		delete(m.shortOf, rcID)
	}
	m.publish()
}

// alerting reports the incidents of a controller that were raised and are not resolved.
func (m *Metrics) alerting(rcID string, active []rc.ConditionType) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(active) == 0 && len(m.active[rcID]) == 0 {
		return
	}
	m.active[rcID] = active
	if len(active) == 0 {
		delete(m.active, rcID)
	}
	m.publish()
}

// Alerting is alerting for incidents that are about no controller; where names what they are about.
func (m *Metrics) Alerting(where string, active []rc.ConditionType) { m.alerting(where, active) }

// forget drops what was reported about a controller that is not this farm's any more.
func (m *Metrics) forget(rcID string) {
	m.unreadable("rc/"+rcID, 0)
	m.short(rcID, 0, nil)
	m.alerting(rcID, nil)
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
	for _, rule := range alert.Rules {
		m.alerts.WithLabelValues(string(rule.Type)).Set(float64(byType[rule.Type]))
	}
}
