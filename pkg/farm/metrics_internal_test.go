package farm

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// When a farm ends, it clears its metrics about the breaker and the election. Its election may end later than the farm.
func TestAnEndedFarmReportsNoConditions(t *testing.T) {
	t.Parallel()
	metrics := NewMetrics(prometheus.NewRegistry())
	f := NewFarm(Config{ID: "f1", Log: obs.Discard(), Metrics: metrics})
	defer f.queue.ShutDown()
	silent := []ballot.Condition{{Type: ballot.AllSilent, Message: "none of 3 candidates has answered"}}
	f.cache.as.breaker = store.Rec[store.Breaker]{Index: 7, Value: store.Breaker{Tripped: true}}
	reports := func(want float64) {
		t.Helper()
		tripped, held := metrics.tripped, metrics.election.WithLabelValues(string(ballot.AllSilent))
		if a, b := testutil.ToFloat64(tripped), testutil.ToFloat64(held); a != want || b != want {
			t.Errorf("tripped %v, silent %v, want %v", a, b, want)
		}
	}
	f.observe()
	f.SetElection(silent, "")
	reports(1)
	f.reset()
	reports(0)
	f.SetElection(silent, "")
	reports(0)
}
