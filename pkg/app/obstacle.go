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

// obstacle is a reason why a daemon cannot work until a person mends it. Its value is the label of the metric.
type obstacle string

const (
	noObstacle   obstacle = ""
	tokenRefused obstacle = "token-refused"
	nameTaken    obstacle = "name-taken" // of a farm; a preparer says so in its own words, and goes on with its pods
)

// maxObstacleText bounds what is said of what Consul answered, in bytes.
const maxObstacleText = 300

// obstacles reports why one daemon cannot work. The log says when an obstacle begins and when it is over. A metric and
// /readyz say it while it lasts.
type obstacles struct {
	log    obs.Logger
	client *consul.Client
	role   string // farm or preparer
	gauge  *prometheus.GaugeVec

	mu   sync.Mutex
	kind obstacle
	err  error // what is said of it
}

// ObstacleMetric makes the metric of a daemon's obstacles; part is "farm" or "preparer".
func ObstacleMetric(reg prometheus.Registerer, part string) *prometheus.GaugeVec {
	kinds := []obstacle{tokenRefused}
	if part == "farm" {
		kinds = append(kinds, nameTaken)
	}
	return obs.Gauges(obs.NewMeter(reg, part), "obstacle", "1 while something keeps the daemon from its work that only a person mends; /readyz and the log say what", "kind", kinds...)
}

func (b *base) newObstacles(reg prometheus.Registerer, role string) *obstacles {
	return &obstacles{log: b.log, client: b.client, role: role, gauge: ObstacleMetric(reg, role)}
}

// kindOf returns which obstacle an error stands for.
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

// stuck reports whether an error stands for an obstacle.
func stuck(err error) bool { return err != nil && kindOf(err) != noObstacle }

// met notes the obstacle that an error stands for, and reports whether it stands for one. It logs a new one.
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
	o.kind, o.err = kind, o.said(kind, err)
	o.show()
	o.log.WithField(obs.Condition, string(kind)).WithError(o.err).Error("this daemon does not work until somebody mends what is in its way")
	return true
}

// said returns one line with the cure.
func (o *obstacles) said(kind obstacle, err error) error {
	text := field.Cut(err.Error(), maxObstacleText)
	if kind == nameTaken {
		return errors.New(text)
	}
	from, again := o.client.TokenSource()
	return fmt.Errorf("consul refuses %s; %s. Its rules are those that `rcctl acl policy %s` prints. Consul says: %s", from, again, o.role, text)
}

// over notes that the daemon works, and logs that if there was an obstacle.
func (o *obstacles) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kind == noObstacle {
		return
	}
	o.log.WithField(obs.Condition, string(o.kind)).Info("what kept this daemon from its work is mended")
	o.kind, o.err = noObstacle, nil
	o.show()
}

// show sets the metric. The caller holds the mutex.
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

// or returns the present obstacle, or else what ready says.
func (o *obstacles) or(ready func() error) func() error {
	return func() error {
		if err := o.Err(); err != nil {
			return err
		}
		return ready()
	}
}
