package preparer_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
)

func TestMetricsCountPodsAndEvents(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	reg := prometheus.NewPedanticRegistry()
	b.cfg.Metrics = preparer.NewMetrics(reg)
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	b.start()
	b.awaitServing()
	digest := b.upload(b.server("1"))
	b.write(intent(0, digest, pod.Running, 10), intent(1, strings.Repeat("f", 64), pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.awaitMetric(reg, "rcfarm_preparer_pods", string(pod.StateReady), 1, 1)
	b.awaitMetric(reg, "rcfarm_preparer_pods", string(pod.StateFailed), 1, 1)
	b.awaitMetric(reg, "rcfarm_preparer_install_failures_total", "", 1, 1e6)
	b.awaitMetric(reg, "rcfarm_preparer_realities_written_total", "", 2, 1e6)
	b.awaitMetric(reg, "rcfarm_preparer_holds_node", "", 1, 1)
	b.awaitMetric(reg, "rcfarm_preparer_consul_connected", "", 1, 1)
	b.awaitMetric(reg, "rcfarm_preparer_restarts_total", "", 0, 0)
	if err := syscall.Kill(b.pid(0), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.awaitMetric(reg, "rcfarm_preparer_restarts_total", "", 1, 1)
	b.deleteIntent(0)
	b.awaitMetric(reg, "rcfarm_preparer_orphans", "", 1, 1)
}

func (b *bench) awaitMetric(reg *prometheus.Registry, name, label string, least, most float64) {
	b.t.Helper()
	b.eventually(func() error {
		families, err := reg.Gather()
		if err != nil {
			return err
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() != name || label != "" && m.GetLabel()[0].GetValue() != label {
					continue
				}
				value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
				if value >= least && value <= most {
					return nil
				}
				return fmt.Errorf("%s{%s} is %v, want %v to %v", name, label, value, least, most)
			}
		}
		return fmt.Errorf("there is no %s{%s}", name, label)
	})
}
