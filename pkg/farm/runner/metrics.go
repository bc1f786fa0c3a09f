package runner

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Metrics is what a runner counts. It outlives sessions. All its methods do nothing on a nil *Metrics. Every label value exists from
// the start, and none names a service.
type Metrics struct {
	running             *prometheus.GaugeVec
	steps, ended, gates *prometheus.CounterVec
	stage               prometheus.Histogram

	mu     sync.Mutex
	states map[string]rollout.State // by service, of those that this farm carries out
}

var (
	liveStates = []rollout.State{rollout.Progressing, rollout.Paused, rollout.WaitingForPromote, rollout.RollingBack}
	endStates  = []rollout.State{rollout.Done, rollout.Aborted, rollout.Failed}
)

// The outcomes of steps and of gates.
const (
	stepCommitted = "committed"
	stepRefused   = "refused"
	stepUnknown   = "unknown"
	stepError     = "error"
	gateAgreed    = "agreed"
	gateNo        = "failed"
)

// stageBuckets are in seconds.
var stageBuckets = []float64{.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800}

// NewMetrics makes and registers the metrics of a runner.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	vec := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "rcfarm", Subsystem: "rollout", Name: name, Help: help}, []string{label})
		reg.MustRegister(c)
		return c
	}
	m := &Metrics{
		states: map[string]rollout.State{},
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "rcfarm", Subsystem: "rollout", Name: "running", Help: "Rollouts that this farm carries out.",
		}, []string{"state"}),
		steps: vec("steps_total", "Writes of rollouts, by how Consul answered.", "outcome"),
		ended: vec("ended_total", "Rollouts that this farm has ended.", "state"),
		gates: vec("gate_calls_total", "Calls of gates, by what came of them.", "answer"),
		stage: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "rcfarm", Subsystem: "rollout", Name: "stage_duration_seconds", Help: "How long a stage took, gates and delay included.", Buckets: stageBuckets,
		}),
	}
	reg.MustRegister(m.running, m.stage)
	for _, state := range liveStates {
		m.running.WithLabelValues(string(state))
	}
	for _, state := range endStates {
		m.ended.WithLabelValues(string(state))
	}
	for _, outcome := range []string{stepCommitted, stepRefused, stepUnknown, stepError} {
		m.steps.WithLabelValues(outcome)
	}
	for _, answer := range []string{gateAgreed, gateNo} {
		m.gates.WithLabelValues(answer)
	}
	return m
}

// carries notes in which state a rollout is that this farm carries out; "": it does not any more.
func (m *Metrics) carries(service string, state rollout.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states[service] == state {
		return
	}
	m.states[service] = state
	if state == "" {
		delete(m.states, service)
	}
	m.publish()
}

// reset forgets what the runner of an earlier session carried out.
func (m *Metrics) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.states)
	m.publish()
}

// publish counts by state. The caller holds the mutex.
func (m *Metrics) publish() {
	count := map[rollout.State]int{}
	for _, state := range m.states {
		count[state]++
	}
	for _, state := range liveStates {
		m.running.WithLabelValues(string(state)).Set(float64(count[state]))
	}
}

// stepped counts one write and, when it landed, the stage or the rollout that it ended.
func (m *Metrics) stepped(before *rollout.Record, d *rollout.Decision, now time.Time, err error) {
	switch {
	case err == nil:
		m.steps.WithLabelValues(stepCommitted).Inc()
	case errors.Is(err, store.ErrUnknown):
		m.steps.WithLabelValues(stepUnknown).Inc()
	case errors.Is(err, store.ErrRefused):
		m.steps.WithLabelValues(stepRefused).Inc()
	default:
		m.steps.WithLabelValues(stepError).Inc()
	}
	if err != nil {
		return
	}
	if before.Stage > 0 && (d.Record.Stage != before.Stage || d.Ended) {
		m.stage.Observe(now.Sub(before.StageSince).Seconds())
	}
	if d.Ended {
		m.ended.WithLabelValues(string(d.Record.State)).Inc()
	}
}

// asked counts a call of a gate.
func (m *Metrics) asked(err error) {
	answer := gateAgreed
	if err != nil {
		answer = gateNo
	}
	m.gates.WithLabelValues(answer).Inc()
}
