package app

import (
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
)

// obstacle is why a daemon cannot work until a person acts. Its value is the label of the metric.
type obstacle string

const (
	noObstacle   obstacle = ""
	tokenRefused obstacle = "token-refused"
	nameTaken    obstacle = "name-taken" // of a farm; a preparer logs this itself, and continues with its pods
)

const maxObstacleText = 300

// obstacles reports why one daemon cannot work: the log has begin and end; a metric and /readyz show it while it lasts.
type obstacles struct {
	log    obs.Logger
	client *consul.Client
	role   string // farm or preparer
	gauge  *prometheus.GaugeVec

	mu   sync.Mutex
	kind obstacle
	err  error // describes the obstacle
}

// ObstacleMetric makes the metric of a daemon's obstacles; part is "farm" or "preparer".
func ObstacleMetric(reg prometheus.Registerer, part string) *prometheus.GaugeVec {
	kinds := []obstacle{tokenRefused}
	if part == "farm" {
		kinds = append(kinds, nameTaken)
	}
	return obs.Gauges(obs.NewMeter(reg, part), "obstacle",
		"1 while an obstacle that only a person can remove keeps the daemon from its work; /readyz and the log name it",
		"kind", kinds...)
}

func (b *base) newObstacles(reg prometheus.Registerer, role string) *obstacles {
	return &obstacles{log: b.log, client: b.client, role: role, gauge: ObstacleMetric(reg, role)}
}

func kindOf(err error) obstacle {
	switch {
	case errors.Is(err, farm.ErrNameTaken):
		return nameTaken
	case consul.TokenRefused(err):
		return tokenRefused
	default:
		return noObstacle
	}
}

func stuck(err error) bool { return err != nil && kindOf(err) != noObstacle }

// met records and logs the obstacle that causes an error, and reports whether there is one.
func (o *obstacles) met(err error) bool {
	kind := kindOf(err)
	if err == nil || kind == noObstacle {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kind == kind {
		return true
	}
	o.kind, o.err = kind, o.describe(kind, err)
	o.show()
	o.log.WithField(obs.Condition, string(kind)).WithError(o.err).
		Error("this daemon does not work until somebody removes the obstacle")
	return true
}

// describe is one line about the obstacle, with what removes it.
func (o *obstacles) describe(kind obstacle, err error) error {
	text := field.Cut(err.Error(), maxObstacleText)
	if kind == nameTaken {
		return errors.New(text)
	}
	from, again := o.client.TokenSource()
	return fmt.Errorf("consul refuses %s; %s. `rcctl acl policy %s` prints the rules that it needs. "+
		"Consul's answer: %s", from, again, o.role, text)
}

// over records that the daemon works.
func (o *obstacles) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kind == noObstacle {
		return
	}
	o.log.WithField(obs.Condition, string(o.kind)).Info("the obstacle is removed; this daemon works again")
	o.kind, o.err = noObstacle, nil
	o.show()
}

// show needs the mutex.
func (o *obstacles) show() {
	o.gauge.WithLabelValues(string(tokenRefused)).Set(obs.Flag(o.kind == tokenRefused))
	if o.role == "farm" {
		o.gauge.WithLabelValues(string(nameTaken)).Set(obs.Flag(o.kind == nameTaken))
	}
}

// Err returns the present obstacle, or nil.
func (o *obstacles) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func (o *obstacles) or(ready func() error) func() error {
	return func() error {
		if err := o.Err(); err != nil {
			return err
		}
		return ready()
	}
}
