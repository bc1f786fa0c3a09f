package farm

import (
	"context"
	"fmt"
	"sync"
	"time"

	kube "k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/farm/place"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// RCIDLabel is the label of all pods of a controller. Its value is the controller's id.
const RCIDLabel = pod.RCIDLabel

// One goroutine at a time works on a controller.
type controller struct {
	ID     string
	kit    *kit
	log    obs.Logger
	unit   *unit
	memory memory // used only by the goroutine that works on it
	shared shared
}

// makePass makes one pass over the controller. It does not change the view: the look adds left to it.
func (c *controller) makePass(ctx context.Context, v *view) (made passed, left traces, err error) {
	c.memory.found = unknown // replaced if the pass reaches its end
	ps := c.newPass(v)
	err = contain.Do(func() (err error) {
		made, err = ps.run(ctx)
		return err
	})
	if panicked := contain.Is(err); panicked != nil {
		c.unit.unsure, ps.traces.stale = true, true // a write of the pass may still land
		c.reportPanic(ctx, ps, panicked)
	}
	c.memory = ps.mem
	return made, ps.traces, err
}

// reportPanic logs the stack once, moves the fence, and writes into the status that the farm cannot work on the
// controller.
func (c *controller) reportPanic(ctx context.Context, ps *pass, panicked *contain.Panic) {
	c.kit.metrics.panics.Inc()
	if ps.mem.panicked != panicked.Error() {
		ps.mem.panicked = panicked.Error()
		c.log.WithError(panicked).WithField(obs.Stack, panicked.Stack).Error("a look at a controller panicked")
	}
	err := contain.Do(func() error {
		if err := c.unit.bump(ctx); err != nil {
			return err
		}
		now, err := c.kit.reads.ReadUnit(ctx, c.unit.id, store.Consistent)
		if err != nil {
			return err
		}
		h := now.Heads[c.ID]
		if h == nil {
			return store.ErrNotFound
		}
		return ps.reportUnreadable(ctx, *h, fmt.Errorf(rc.CannotWork+"%w", panicked))
	})
	if err != nil && ctx.Err() == nil {
		c.unit.unsure = true
		c.log.WithError(err).Warn("cannot write into the status that a controller cannot be worked on")
	}
}

func (c *controller) newPass(v *view) *pass {
	owner := scheduler.Owner{RCID: c.ID, Term: scale.Term(v.schema.Value.Epoch, c.unit.fence.Index)}
	nodes := place.Nodes{Views: v.nodes, Version: v.version, Mark: v.mark}
	return &pass{
		kit: c.kit, id: c.ID, log: c.log, unit: c.unit, shared: &c.shared, mem: c.memory,
		view: *v, traces: traces{reports: v.reports}, head: *v.Heads[c.ID],
		reader: reader{
			kit: c.kit, id: c.ID, view: *v, recordless: c.memory.recordless, confirmed: c.memory.confirmed,
			resync: c.shared.now().resync,
		},
		search: c.kit.places.Begin(owner, nodes, c.memory.places, c.log),
	}
}

// shared has what other goroutines of the farm read and write, also while a pass is running.
type shared struct {
	looks *looks.Looks // of its unit

	mu sync.Mutex
	is known
}

type known struct {
	resync     bool            // the next pass is a resync
	lastResync time.Time       // the last complete resync by this farm; zero: none
	nodes      map[string]bool // nodes where the controller has pods; nil while a pass is running
	wantsNodes bool            // it could use more nodes
	follows    kube.Selector   // each-node mode: selects the nodes that get a pod each; nil: another mode
}

// concernedBy reports whether a change of these nodes may matter to the controller. views is after the change.
func (k known) concernedBy(changed map[string]bool, views map[string]*node.View) bool {
	if k.wantsNodes || k.nodes == nil {
		return true
	}
	for name := range k.nodes {
		if changed[name] {
			return true
		}
	}
	if k.follows == nil {
		return false
	}
	for name := range changed {
		if v := views[name]; v != nil && v.Alive && v.Eligible() && v.Matches(k.follows) {
			return true
		}
	}
	return false
}

func (s *shared) now() known {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.is
}

// begin is called when a pass begins. Until it ends, each changed node concerns the controller.
func (s *shared) begin() {
	s.mu.Lock()
	s.is.nodes = nil
	s.mu.Unlock()
}

func (s *shared) ended(nodes map[string]bool, wantsNodes bool, follows kube.Selector) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is.nodes, s.is.wantsNodes, s.is.follows = nodes, wantsNodes, follows
}

// resynced is called after a complete resync: it found nothing to do, and no hold or breaker kept it from finding
// something. It is also called for a controller that needs none.
func (s *shared) resynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is.lastResync, s.is.resync = time.Now(), false
}

// wantResync makes the next pass a resync.
func (s *shared) wantResync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is.resync = true
}

func (s *shared) askResync() {
	s.wantResync()
	s.looks.Ask()
}
