package farm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	kube "k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/labels"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// ReplicationController is one controller that a program owns by itself; New returns one. It is an interface so that
// programs can be tested with another one in its place.
type ReplicationController interface {
	// ID returns the controller's id.
	ID() string
	// WatchDesires owns the controller and brings its pods in line with what is desired whenever that changes, until
	// ctx ends. It waits while another one owns it: farms hand it over once the members have been stable for a while.
	// It returns as Farm.Start does; then nothing of it runs any more. Whoever ends it leaves the pods as they are,
	// and the controller to the farms whose selectors match it. It is called once.
	//
	// A look that fails ends nothing: it is made again after a while. failed, which may be nil, is told why. Many such
	// errors are of no harm: store.ErrRefused says that somebody else wrote at the same moment. Its calls come one
	// after the other, from a goroutine of their own that holds no lock: it may call CurrentPods, end ctx, block or
	// panic, and nothing waits for it. Errors that come while 16 others wait for a call to return are left out; the
	// log has them, as it has all. After WatchDesires has returned only a call that is under way goes on.
	WatchDesires(ctx context.Context, failed func(error)) error
	// CurrentPods returns the controller's placements as Consul has them now, those that stop included. Where some
	// cannot be read it returns the others, and an error.
	CurrentPods(ctx context.Context) ([]pod.Placement, error)
}

var _ ReplicationController = (*one)(nil)

// one is a farm with one controller.
type one struct{ farm *Farm }

// New returns the owner of one controller, cfg.RCID, with its unit, for programs that look after it by themselves. It
// is a farm with that unit alone: it has the same watches and fences, writes in no other way, and is a member that all
// farms leave the controller to. Its ID must be none of theirs. Like a Farm it serves one session, which cfg.Store is
// under.
func New(cfg Config) (ReplicationController, error) {
	if cfg.RCID == "" {
		return nil, errors.New("the owner of one controller needs the controller's id")
	}
	cfg.Workers = cmp.Or(cfg.Workers, 1)
	return &one{farm: NewFarm(cfg)}, nil
}

// ID implements ReplicationController.
func (o *one) ID() string { return o.farm.cfg.RCID }

// WatchDesires implements ReplicationController.
func (o *one) WatchDesires(ctx context.Context, failed func(error)) error {
	if failed != nil {
		o.farm.complaints = newComplaints(failed, o.farm.log)
		defer o.farm.complaints.end()
	}
	return o.farm.Start(ctx)
}

// CurrentPods implements ReplicationController.
func (o *one) CurrentPods(ctx context.Context) ([]pod.Placement, error) {
	recs, corrupt, err := o.farm.kit.lists.Placements(ctx, o.farm.cfg.RCID, true)
	return field.Each(recs, func(rec store.Rec[pod.Placement]) pod.Placement { return rec.Value }), errors.Join(append(corrupt, err)...)
}

// CurrentPods returns the placements of a controller that a matcher of pods finds, such as labels.New(store).Pods();
// it reads no others. Where some cannot be read it returns the others, and an error.
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

// maxComplaints is how many errors wait for the function that is told.
const maxComplaints = 16

// complaints tell a function of the program's why looks failed. Whoever complains never waits for it.
type complaints struct {
	tell func(error)
	log  obs.Logger

	mu      sync.Mutex
	waiting []error
	telling bool // there is a goroutine that tells what waits
	ended   bool
}

func newComplaints(tell func(error), log obs.Logger) *complaints {
	return &complaints{tell: tell, log: log}
}

// add has an error told. c may be nil: there is nobody to tell.
func (c *complaints) add(err error) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || len(c.waiting) == maxComplaints {
		return
	}
	c.waiting = append(c.waiting, err)
	if !c.telling {
		c.telling = true
		go c.tellAll()
	}
}

// end has nothing told any more. A call that has begun goes on.
func (c *complaints) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended, c.waiting = true, nil
}

// tellAll tells what waits, in a goroutine of its own. The function may end that: then another one goes on.
func (c *complaints) tellAll() {
	finished := false
	defer func() {
		if !finished {
			go c.tellAll()
		}
	}()
	for err := c.take(); err != nil; err = c.take() {
		panicked := contain.Is(contain.Do(func() error { c.tell(err); return nil }))
		if panicked != nil {
			c.log.WithField(obs.Stack, panicked.Stack).WithError(fmt.Errorf("panic: %v", panicked.Value)).
				Error("the function that is told of failed looks panicked")
		}
	}
	finished = true
}

// take returns what waits longest, nil where nothing does: the goroutine that asks is to end.
func (c *complaints) take() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		c.telling = false
		return nil
	}
	err := c.waiting[0]
	c.waiting = c.waiting[1:]
	return err
}
