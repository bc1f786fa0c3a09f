package preparer

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Metrics is what a preparer counts. Every label value exists from the start, and none names a pod.
type Metrics struct {
	pods                        *prometheus.GaugeVec
	orphans, holding, connected prometheus.Gauge
	nameRefused, reserve, open  prometheus.Gauge
	restarts, written, failures prometheus.Counter
	hookFailures                prometheus.Counter

	artifactBytes                      prometheus.Gauge
	artifactsPruned, artifactsRestored prometheus.Counter
}

// podStates are all states that a node reports.
var podStates = []pod.State{
	pod.StatePending, pod.StateFetching, pod.StateInstalling, pod.StateStarting, pod.StateRunning, pod.StateReady,
	pod.StateUnhealthy, pod.StateStopping, pod.StateStopped, pod.StateEnded, pod.StateFailed, pod.StateCrashLooping, pod.StateOrphaned,
}

// NewMetrics makes and registers the metrics of a preparer.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "rcfarm", Subsystem: "preparer", Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rcfarm", Subsystem: "preparer", Name: name, Help: help})
	}
	m := &Metrics{
		pods: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "rcfarm", Subsystem: "preparer", Name: "pods", Help: "Pods of this node, by state.",
		}, []string{"state"}),
		orphans:     gauge("orphans", "Pods that run without a matching intent."),
		holding:     gauge("holds_node", "1 while the node's lock is held, so that new intents are taken."),
		connected:   gauge("consul_connected", "1 while a session with Consul is held and its intents have been read."),
		nameRefused: gauge("name_refused", "1 while the node's name belongs to another host, so that no intents are taken."),
		open:        gauge("consul_open", "1 while pods can write to Consul without a token what has programs started on this node."),
		reserve:     gauge("reserve_bytes", "What is set aside on the disk for records, should it be full."),
		restarts:    counter("restarts_total", "Processes of pods that were started again after they had ended."),
		written:     counter("realities_written_total", "Reports about pods that were written to Consul."),
		failures:    counter("install_failures_total", "Installations that failed and are tried again."),

		hookFailures: counter("hook_failures_total", "Hooks that failed or took too long."),

		artifactBytes:     gauge("artifact_bytes", "What unpacked artifacts take on the disk, roughly."),
		artifactsPruned:   counter("artifacts_pruned_total", "Artifacts that were removed from the cache."),
		artifactsRestored: counter("artifacts_restored_total", "Artifacts in which the program was missing when a process could not be started, and that were fetched again."),
	}
	for _, state := range podStates {
		m.pods.WithLabelValues(string(state))
	}
	reg.MustRegister(m.pods, m.orphans, m.holding, m.connected, m.nameRefused, m.reserve, m.open, m.restarts, m.written, m.failures, m.hookFailures)
	reg.MustRegister(m.artifactBytes, m.artifactsPruned, m.artifactsRestored)
	return m
}

// stands publishes whether the node's lock is held, and whether the world is known.
func (m *Metrics) stands(holding, known bool) {
	m.holding.Set(flag(holding))
	m.connected.Set(flag(holding && known))
}

// refused publishes whether the node's name is another host's.
func (m *Metrics) refused(yes bool) { m.nameRefused.Set(flag(yes)) }

// opened publishes whether pods may do at Consul what they should not.
func (m *Metrics) opened(yes bool) { m.open.Set(flag(yes)) }

func flag(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// count publishes what the node has. The caller is in pods.do.
func (p *Preparer) count() {
	states, restarts := p.board.Count()
	orphans := 0
	for _, e := range p.pods.all {
		_, is := e.orphan()
		if _, said := p.board.Reality(e.id); is && said {
			orphans++
		}
	}
	m := p.cfg.Metrics
	for _, state := range podStates {
		m.pods.WithLabelValues(string(state)).Set(float64(states[state]))
	}
	m.orphans.Set(float64(orphans))
	m.restarts.Add(float64(restarts))
	m.stands(p.contact.Locked(), p.contact.Informed())
}
