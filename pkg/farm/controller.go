package farm

import (
	"context"
	"fmt"
	"sync"
	"time"

	kube "k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// RCIDLabel is the label that every pod of a controller carries with the controller's id.
const RCIDLabel = pod.RCIDLabel

// controller is one controller that this farm owns. One goroutine at a time works on it.
type controller struct {
	ID     string
	kit    *kit
	log    obs.Logger
	unit   *unit
	memory memory // of whoever works on it
	shared shared
}

// look makes one pass over the controller.
func (c *controller) look(ctx context.Context, v *view) (made passed, err error) {
	c.memory.found = unknown // unless the pass comes to its end
	ps := c.newPass(v)
	err = contain.Do(func() (err error) {
		made, err = ps.run(ctx)
		return err
	})
	if panicked := contain.Is(err); panicked != nil {
		ps.mem.unsure = true // what it was about to write may land
		c.suffers(ctx, ps, panicked)
	}
	c.memory = ps.mem
	return made, err
}

// suffers tells of a look that panicked: its stack in the log, once, and in the status that the controller cannot be
// worked on. Before that the fence moves.
func (c *controller) suffers(ctx context.Context, ps *pass, panicked *contain.Panic) {
	c.kit.metrics.panics.Inc()
	if ps.mem.panicked != panicked.Error() {
		ps.mem.panicked = panicked.Error()
		c.log.WithError(panicked).WithField(obs.Stack, panicked.Stack).Error("a look at a controller panicked")
	}
	err := contain.Do(func() error {
		if err := c.unit.bump(ctx); err != nil {
			return err
		}
		now, err := c.kit.reads.ReadUnit(ctx, c.unit.id, true)
		if err != nil {
			return err
		}
		h := now.Heads[c.ID]
		if h == nil {
			return store.ErrNotFound
		}
		return ps.writer.sayUnreadable(ctx, *h, fmt.Errorf("it cannot be worked on: %w", panicked))
	})
	if err != nil && ctx.Err() == nil {
		ps.mem.unsure = true
		c.log.WithError(err).Warn("cannot say that a controller cannot be worked on")
	}
}

func (c *controller) newPass(v *view) *pass {
	r := &reading{kit: c.kit, id: c.ID, log: c.log, mem: c.memory, unit: c.unit, shared: &c.shared, view: v, head: *v.Heads[c.ID]}
	room := &finder{reading: r, version: v.version, mark: v.mark, reserved: map[string]store.Rec[node.Reservation]{}}
	books := &booking{reading: r, room: room}
	return &pass{
		reading: r, room: room, books: books,
		reader: reader{reading: r, room: room}, placing: placing{reading: r, room: room, books: books}, writer: writer{reading: r, room: room},
	}
}

// shared is what a farm knows of a controller that it owns, and asks of it, while a pass over it may be under way.
type shared struct {
	looks *looks.Looks // of its unit

	mu sync.Mutex
	is known
}

// known is what shared has at one moment.
type known struct {
	resync     bool            // the next pass compares intents too
	lastResync time.Time       // when that was done last; zero: not by this farm
	nodes      map[string]bool // where it has pods; nil while it is looked at
	wantsNodes bool            // more nodes would help it
	follows    kube.Selector   // it has a pod on each node that this selects; nil: it has not
}

// concernedBy reports whether nodes that have changed, to what some views show, may matter to the controller.
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

// begin is for the beginning of a pass: until that has ended every changed node concerns the controller.
func (s *shared) begin() {
	s.mu.Lock()
	s.is.nodes = nil
	s.mu.Unlock()
}

// ended takes in what a pass has found. A resync is done when it found nothing to do, and nothing kept it from doing it.
func (s *shared) ended(nodes map[string]bool, wantsNodes bool, follows kube.Selector, checked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is.nodes, s.is.wantsNodes, s.is.follows = nodes, wantsNodes, follows
	if checked {
		s.is.lastResync, s.is.resync = time.Now(), false
	}
}

// askResync asks for a resync in the next pass.
func (s *shared) askResync() {
	s.mu.Lock()
	s.is.resync = true
	s.mu.Unlock()
	s.looks.Ask()
}
