package preparer

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Metrics has the metrics of a preparer. Every label value exists from the start. None names a pod.
type Metrics struct {
	pods                        *prometheus.GaugeVec
	orphans, locked, connected  prometheus.Gauge
	nameRefused, unsecured      prometheus.Gauge
	restarts, written, failures prometheus.Counter
	starved, hung               prometheus.Counter
	hookFailures                prometheus.Counter
	cut, answers                prometheus.Gauge
	cutRealities                prometheus.Counter

	artifactBytes, imageBytes          prometheus.Gauge
	imagesPruned                       prometheus.Counter
	artifactsPruned, artifactsRestored prometheus.Counter
}

// podStates has all states that a node reports.
var podStates = []pod.State{
	pod.StatePending, pod.StateFetching, pod.StateInstalling, pod.StateStarting, pod.StateRunning, pod.StateReady,
	pod.StateUnhealthy, pod.StateStopping, pod.StateStopped, pod.StateEnded, pod.StateFailed, pod.StateCrashLooping,
	pod.StateOrphaned,
}

// NewMetrics makes and registers the metrics of a preparer.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := obs.NewMeter(reg, "preparer")
	return &Metrics{
		pods:    obs.Gauges(m, "pods", "Pods of this node, by state.", "state", podStates...),
		orphans: m.Gauge("orphans", "Pods that run without a matching intent."),
		cut: m.Gauge("cut_fields", "Fields of the node's record, and orphans, that the node cuts or omits now "+
			"because farms would refuse them; the log names them."),
		cutRealities: m.Counter("cut_realities_total", "Reports of pods that the node has cut "+
			"because farms would have refused a part; the log names the part."),
		answers: m.Gauge("supervisor_answers", "1 while the node's supervisor answers; "+
			"at 0 nothing is started or stopped on this node."),
		locked:    m.Gauge("holds_node", "1 while the node's lock is held, so that new intents are accepted."),
		connected: m.Gauge("consul_connected", "1 while a session with Consul is held and its intents have been read."),
		nameRefused: m.Gauge("name_refused", "1 while the node's name belongs to another host, "+
			"so that no intents are accepted."),
		unsecured: m.Gauge("consul_open", "1 while pods, without a token, can write to Consul what starts programs "+
			"on this node or hinders its preparer."),
		restarts: m.Counter("restarts_total", "Processes of pods that were started again after they had ended."),
		starved: m.Counter("out_of_memory_total", "Processes of pods that the preparer has seen killed by the kernel "+
			"for want of memory."),
		hung: m.Counter("hung_total", "Processes of pods that the preparer has seen stopped "+
			"because their health check had failed for restart_after."),
		written:  m.Counter("realities_written_total", "Reports about pods that were written to Consul."),
		failures: m.Counter("install_failures_total", "Installations that failed and are tried again."),

		hookFailures: m.Counter("hook_failures_total", "Hooks that failed or took too long."),

		artifactBytes:   m.Gauge("artifact_bytes", "Approximate size of unpacked artifacts on the disk."),
		artifactsPruned: m.Counter("artifacts_pruned_total", "Artifacts that were removed from the cache."),
		imageBytes:      m.Gauge("image_bytes", "Approximate size of unpacked layers of images on the disk."),
		imagesPruned:    m.Counter("images_pruned_total", "Images that were removed from the node."),
		artifactsRestored: m.Counter("artifacts_restored_total", "Artifacts that were fetched again "+
			"because a program was missing and its process could not be started."),
	}
}

// lockChanged is called when the lock was taken or lost: the intents that were read before are forgotten.
func (m *Metrics) lockChanged(locked bool) { m.known(locked, false) }

func (m *Metrics) lockLost() { m.known(false, false) }

func (m *Metrics) known(locked, known bool) {
	m.locked.Set(obs.Flag(locked))
	m.connected.Set(obs.Flag(locked && known))
}

func (m *Metrics) refused(yes bool) { m.nameRefused.Set(obs.Flag(yes)) }

func (m *Metrics) unsecure(yes bool) { m.unsecured.Set(obs.Flag(yes)) }

func (m *Metrics) cutFields(n int) { m.cut.Set(float64(n)) }
