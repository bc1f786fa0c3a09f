package place

import (
	"fmt"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

type scarcity struct {
	mu sync.Mutex
	s  placement.Scarcity
}

func (s *scarcity) with(do func(*placement.Scarcity)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(&s.s)
}

func (s *scarcity) known(shape placement.Shape, now time.Time) (look placement.Look) {
	s.with(func(s *placement.Scarcity) { look = s.Known(shape, now) })
	return look
}

// shapeOf returns the shape of the pods that a plan adds. It has the controller's id if other controllers could use
// nodes that this one cannot: because of max_per_node, a required skew, or a moving pod that avoids nodes.
func shapeOf(s *reconcile.Facts, lot *reconcile.Lot, adds []pod.Identity) placement.Shape {
	shape := placement.ShapeOf(s.RC.NodeSelector, lot.Rule.Ask, len(lot.Rule.Dynamic))
	if s.RC.MaxPerNode > 0 {
		shape.RCID = s.RC.ID
	}
	if preferences := lot.Preferences; preferences.Spread.Held() > 0 {
		// The usable nodes depend on where the lot's pods are.
		perGroup := map[string]int{}
		for i := range s.Pods {
			if p := &s.Pods[i]; preferences.Count(p.Role) {
				perGroup[scheduler.GroupOf(s.Nodes[p.Node], preferences.Spread.Label)]++
			}
		}
		shape.RCID, shape.Avoid = s.RC.ID, fmt.Sprint(preferences.Alone, preferences.Spread, perGroup)
	}
	if len(s.Pods) == 0 {
		return shape
	}
	added := field.Set(adds)
	for i := range s.Pods {
		if p := &s.Pods[i]; added[p.Identity] {
			shape.RCID = s.RC.ID
			for _, a := range s.RC.Avoided(&p.Placement, s.Now) {
				shape.Avoid += a.Node + " "
			}
		}
	}
	return shape
}
