package farm

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"

	"github.com/rcfarm/rcfarm/pkg/obs"
)

// queueMetrics is what the workqueue reports. One set serves the queues of all sessions, one after the other.
type queueMetrics struct {
	depth   prometheus.Gauge
	delayed prometheus.Counter
	wait    prometheus.Histogram
}

func newQueueMetrics(f obs.Meter) queueMetrics {
	return queueMetrics{
		depth:   f.Gauge("queue_depth", "Controllers that wait for a look."),
		delayed: f.Counter("queue_delayed_total", "Looks that were asked for later, after a failure among others."),
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
func (q queueMetrics) NewAddsMetric(string) workqueue.CounterMetric { return ignored{} }

// NewLatencyMetric reports the wait.
func (q queueMetrics) NewLatencyMetric(string) workqueue.HistogramMetric { return q.wait }

// NewWorkDurationMetric reports nothing: passes are timed by themselves.
func (q queueMetrics) NewWorkDurationMetric(string) workqueue.HistogramMetric { return ignored{} }

// NewUnfinishedWorkSecondsMetric reports nothing.
func (q queueMetrics) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return ignored{}
}

// NewLongestRunningProcessorSecondsMetric reports nothing.
func (q queueMetrics) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return ignored{}
}

// NewRetriesMetric counts what was asked for later.
func (q queueMetrics) NewRetriesMetric(string) workqueue.CounterMetric { return q.delayed }

// ignored takes what nobody asks for.
type ignored struct{}

// Inc implements workqueue.CounterMetric.
func (ignored) Inc() {}

// Set implements workqueue.SettableGaugeMetric.
func (ignored) Set(float64) {}

// Observe implements workqueue.HistogramMetric.
func (ignored) Observe(float64) {}
