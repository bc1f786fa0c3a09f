package roll

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Metrics are a farm's metrics of rollouts. They outlive sessions. Every label value exists from the start, and none
// contains the name of a service.
type Metrics struct {
	running             *prometheus.GaugeVec
	steps, ended, gates *prometheus.CounterVec
	stage               prometheus.Histogram
	panics              prometheus.Counter

	mu     sync.Mutex
	states map[string]rollout.State // by unit, for the rollouts that this farm owns
}

var (
	liveStates = []rollout.State{rollout.Progressing, rollout.Paused, rollout.WaitingForPromote, rollout.RollingBack}
	endStates  = []rollout.State{rollout.Done, rollout.Aborted, rollout.Failed}
)

const (
	gateAgreed = "agreed"
	gateNo     = "failed"
)

// stageBuckets are in seconds.
var stageBuckets = []float64{.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := obs.NewMeter(reg, "rollout")
	return &Metrics{
		states:  map[string]rollout.State{},
		running: obs.Gauges(m, "running", "Rollouts that this farm carries out.", "state", liveStates...),
		steps: obs.Counters(m, "steps_total",
			"Writes of rollouts, by result: committed, refused (read and decided again), "+
				"unknown (the fence is bumped first), error.",
			"outcome", append(store.Failures, "committed")...),
		ended: obs.Counters(m, "ended_total", "Rollouts that this farm has ended.", "state", endStates...),
		gates: obs.Counters(m, "gate_calls_total", "Calls of gates, by result.", "answer", gateAgreed, gateNo),
		panics: m.Counter("panics_total",
			"Looks at a rollout that panicked, which is a defect: the rollout cannot be worked on, others go on."),
		stage: m.Histogram("stage_duration_seconds", "How long a stage took, including gates and delay.", stageBuckets),
	}
}

// SetState notes the state of a unit's rollout; "": it has none, or this farm does not own it any more.
func (m *Metrics) SetState(unit string, state rollout.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states[unit] == state {
		return
	}
	m.states[unit] = state
	if state == "" {
		delete(m.states, unit)
	}
	m.publish()
}

// Reset forgets the rollouts of an earlier session.
func (m *Metrics) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.states)
	m.publish()
}

// publish needs the mutex.
func (m *Metrics) publish() {
	count := map[rollout.State]int{}
	for _, state := range m.states {
		count[state]++
	}
	for _, state := range liveStates {
		m.running.WithLabelValues(string(state)).Set(float64(count[state]))
	}
}

// Stepped counts one write and, if it succeeded, the stage or rollout that it ended.
func (m *Metrics) Stepped(before *rollout.Record, d *rollout.Decision, now time.Time, err error) {
	m.steps.WithLabelValues(store.Outcome(err, "committed")).Inc()
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

// Asked counts a call of a gate.
func (m *Metrics) Asked(err error) {
	answer := gateAgreed
	if err != nil {
		answer = gateNo
	}
	m.gates.WithLabelValues(answer).Inc()
}

// Panicked counts a look at a rollout that panicked.
func (m *Metrics) Panicked() { m.panics.Inc() }
