package push

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/obs"
)

// Metrics is what is counted. It outlives sessions: one for the life of the process.
type Metrics struct {
	sent        *prometheus.CounterVec
	unreachable prometheus.Gauge
}

// outcome is what may become of a request.
type outcome string

const (
	taken    outcome = "ok"
	outdated outcome = "outdated"
	failed   outcome = "failed"
	expired  outcome = "expired"
	dropped  outcome = "dropped"
)

// NewMetrics makes and registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := obs.NewMeter(reg, "farm")
	return &Metrics{
		sent: obs.Counters(m, "pushes_total",
			"Requests by which nodes that do not watch are told of their intents: ok, outdated (the node had heard of something later), failed (tried again), expired (no longer), dropped (too many waited).",
			"outcome", taken, outdated, failed, expired, dropped),
		unreachable: m.Gauge("push_unreachable_nodes", "Nodes that do not watch and could not be told of their intents when it was last tried; they read them by themselves."),
	}
}

func (m *Metrics) count(o outcome) { m.sent.WithLabelValues(string(o)).Inc() }

func (m *Metrics) unreached(n int) { m.unreachable.Set(float64(n)) }

func outcomeOf(err error) outcome {
	if err == nil {
		return taken
	}
	return outdated
}
