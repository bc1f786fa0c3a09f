package push

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/obs"
)

// Metrics are the metrics of pushers. They outlive sessions, so a process makes them only once.
type Metrics struct {
	sent        *prometheus.CounterVec
	unreachable prometheus.Gauge
}

type outcome string

const (
	accepted outcome = "ok"
	outdated outcome = "outdated"
	failed   outcome = "failed"
	expired  outcome = "expired"
	dropped  outcome = "dropped"
)

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := obs.NewMeter(reg, "farm")
	return &Metrics{
		sent: obs.Counters(m, "pushes_total",
			"Pushes to nodes that do not watch: ok, outdated (the node had a later one), failed (tried again), "+
				"expired (tried for too long), dropped (too many waited).",
			"outcome", accepted, outdated, failed, expired, dropped),
		unreachable: m.Gauge("push_unreachable_nodes",
			"Nodes that do not watch and to which the last push failed; they read their intents by themselves."),
	}
}

func (m *Metrics) count(o outcome) { m.sent.WithLabelValues(string(o)).Inc() }

func (m *Metrics) unreached(n int) { m.unreachable.Set(float64(n)) }

func outcomeOf(err error) outcome {
	if err == nil {
		return accepted
	}
	return outdated
}
