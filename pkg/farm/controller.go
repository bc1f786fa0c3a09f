package farm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	kube "k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/farm/looks"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/labels"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// RCIDLabel is the label that every pod of a controller carries with the controller's id.
const RCIDLabel = pod.RCIDLabel

// ReplicationController is one controller that this farm owns. One goroutine at a time works on it. Or it is one that New returned, which a
// farm of its own owns while WatchDesires runs.
type ReplicationController struct {
	ID     string
	kit    *kit
	log    obs.Logger
	unit   *unit  // nil: one that New returned
	memory memory // of whoever works on it
	shared shared
	watch  func(context.Context) error // of one that New returned: its farm
}

// look makes one pass over the controller.
func (c *ReplicationController) look(ctx context.Context, v *view) (made passed, err error) {
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
func (c *ReplicationController) suffers(ctx context.Context, ps *pass, panicked *contain.Panic) {
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

func (c *ReplicationController) newPass(v *view) *pass {
	r := &reading{kit: c.kit, id: c.ID, log: c.log, mem: c.memory, unit: c.unit, shared: &c.shared, view: v, head: *v.Heads[c.ID]}
	room := &finder{reading: r, version: v.version, mark: v.mark, reserved: map[string]store.Rec[node.Reservation]{}}
	books := &booking{reading: r, room: room}
	return &pass{
		reading: r, room: room, books: books,
		reader: reader{reading: r, room: room}, placing: placing{reading: r, room: room, books: books}, writer: writer{reading: r, room: room},
	}
}

// New returns the owner of one controller, cfg.RCID, with its unit, for programs that look after it by themselves. It is a farm with that unit alone:
// it has the same watches and fences, writes in no other way, and is a member that all farms leave the controller to. Its ID must be
// none of theirs. Like a Farm it serves one session, which cfg.Store is under.
func New(cfg Config) (*ReplicationController, error) {
	if cfg.RCID == "" {
		return nil, errors.New("the owner of one controller needs the controller's id")
	}
	cfg.Workers = cmp.Or(cfg.Workers, 1)
	f := NewFarm(cfg)
	return &ReplicationController{ID: cfg.RCID, kit: f.kit, log: f.log.WithField(obs.RCID, cfg.RCID), watch: f.Start}, nil
}

// WatchDesires owns the controller and brings its pods in line with what is desired whenever that changes, until ctx ends. It waits while another one owns it:
// farms hand it over once the members have been stable for a while. It returns as Farm.Start does; then nothing of it runs any more.
// Whoever ends it leaves the pods as they are, and the controller to the farms whose selectors match it.
func (c *ReplicationController) WatchDesires(ctx context.Context) error { return c.watch(ctx) }

// CurrentPods returns the controller's placements as Consul has them now, those that stop included. Where some cannot be read it returns
// the others, and an error.
func (c *ReplicationController) CurrentPods(ctx context.Context) ([]pod.Placement, error) {
	recs, corrupt, err := c.kit.lists.Placements(ctx, c.ID, true)
	return field.Each(recs, func(rec store.Rec[pod.Placement]) pod.Placement { return rec.Value }), errors.Join(append(corrupt, err)...)
}

// CurrentPods returns the placements of a controller that a matcher of pods finds, such as labels.New(store).Pods(); it reads no others. Where some cannot be
// read it returns the others, and an error.
func CurrentPods(ctx context.Context, rcID string, m labels.LabelMatcher) ([]pod.Placement, error) {
	selector, err := kube.ValidatedSelectorFromSet(kube.Set{pod.RCIDLabel: rcID})
	if err != nil {
		return nil, fmt.Errorf("controller %q: %w", rcID, err)
	}
	matches, err := m.GetMatches(ctx, selector)
	var pods []pod.Placement
	for i := range matches {
		if matches[i].Pod != nil {
			pods = append(pods, *matches[i].Pod)
		}
	}
	return pods, err
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
