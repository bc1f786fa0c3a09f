package obs

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Meter registers the metrics of one part of the program.
type Meter struct {
	auto   promauto.Factory
	prefix string
}

// NewMeter returns the meter of a part such as "farm".
func NewMeter(reg prometheus.Registerer, part string) Meter {
	return Meter{auto: promauto.With(reg), prefix: "rcfarm_" + part + "_"}
}

// Gauge makes one gauge.
func (m Meter) Gauge(name, help string) prometheus.Gauge {
	return m.auto.NewGauge(prometheus.GaugeOpts{Name: m.prefix + name, Help: help})
}

// Counter makes one counter.
func (m Meter) Counter(name, help string) prometheus.Counter {
	return m.auto.NewCounter(prometheus.CounterOpts{Name: m.prefix + name, Help: help})
}

// Histogram makes one histogram.
func (m Meter) Histogram(name, help string, buckets []float64) prometheus.Histogram {
	return m.auto.NewHistogram(prometheus.HistogramOpts{Name: m.prefix + name, Help: help, Buckets: buckets})
}

// Gauges makes a vector without a gauge at the start.
func (m Meter) Gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return m.auto.NewGaugeVec(prometheus.GaugeOpts{Name: m.prefix + name, Help: help}, labels)
}

// Gauges makes a gauge for each value of a label.
func Gauges[V ~string](m Meter, name, help, label string, values ...V) *prometheus.GaugeVec {
	vec := m.auto.NewGaugeVec(prometheus.GaugeOpts{Name: m.prefix + name, Help: help}, []string{label})
	for _, value := range values {
		vec.WithLabelValues(string(value))
	}
	return vec
}

// Counters makes a counter for each value of a label.
func Counters[V ~string](m Meter, name, help, label string, values ...V) *prometheus.CounterVec {
	vec := m.auto.NewCounterVec(prometheus.CounterOpts{Name: m.prefix + name, Help: help}, []string{label})
	for _, value := range values {
		vec.WithLabelValues(string(value))
	}
	return vec
}

// Flag returns 1 for yes and 0 for no.
func Flag(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
