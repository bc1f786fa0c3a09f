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

// ReplicationController is one controller that a program owns by itself. It is an interface so that programs can be
// tested with a fake.
type ReplicationController interface {
	// ID returns the controller's id.
	ID() string
	// WatchDesires owns the controller until ctx ends: it makes the pods match the desired state. While another farm
	// owns the controller, it waits; farms hand the controller over once the members have been stable for a while. It
	// returns the same errors as Farm.Start. After that none of its goroutines uses the store, the pods continue to
	// run, and a farm whose selector matches the controller claims it. Call WatchDesires once.
	//
	// failed, which may be nil, gets the error of each failed look. The look is repeated after a while. Many errors are
	// harmless: store.ErrRefused means that another writer wrote at the same moment. The calls come one after the other
	// from a goroutine that holds no lock, so failed may call CurrentPods, end ctx, block or panic. At most 16 errors
	// wait for failed; further errors are only in the log. A call that is still running when WatchDesires returns
	// continues.
	WatchDesires(ctx context.Context, failed func(error)) error
	// CurrentPods returns the controller's placements as Consul has them now, also those that stop. If some cannot be
	// read, it returns the others and an error.
	CurrentPods(ctx context.Context) ([]pod.Placement, error)
}

var _ ReplicationController = (*one)(nil)

type one struct{ farm *Farm }

// New returns the owner of the controller cfg.RCID, for a program that owns it by itself. The owner is a member with
// one unit, and all farms leave the controller to it. cfg.ID must differ from the ids of all other members. Like a
// Farm, the owner serves one session, the session of cfg.Store.
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
		o.farm.failureQueue = newFailureQueue(failed, o.farm.log)
		defer o.farm.failureQueue.end()
	}
	return o.farm.Start(ctx)
}

// CurrentPods implements ReplicationController.
func (o *one) CurrentPods(ctx context.Context) ([]pod.Placement, error) {
	recs, corrupt, err := o.farm.kit.lists.Placements(ctx, o.farm.cfg.RCID, store.Consistent)
	pods := field.Each(recs, func(rec store.Rec[pod.Placement]) pod.Placement { return rec.Value })
	return pods, errors.Join(append(corrupt, err)...)
}

// CurrentPods returns the placements of a controller that a matcher of pods finds, such as labels.New(store).Pods(). If
// some cannot be read, it returns the others and an error.
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

const maxWaitingFailures = 16

// failureQueue calls a function of the program with the errors of failed looks. The looks do not wait for it.
type failureQueue struct {
	call func(error)
	log  obs.Logger

	mu      sync.Mutex
	waiting []error
	running bool // a goroutine delivers what waits
	ended   bool
}

func newFailureQueue(call func(error), log obs.Logger) *failureQueue {
	return &failureQueue{call: call, log: log}
}

// add does nothing if c is nil.
func (c *failureQueue) add(err error) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || len(c.waiting) == maxWaitingFailures {
		return
	}
	c.waiting = append(c.waiting, err)
	if !c.running {
		c.running = true
		go c.deliverAll()
	}
}

// end drops what waits. A call that has begun continues.
func (c *failureQueue) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended, c.waiting = true, nil
}

// deliverAll runs in its own goroutine. If the function ends this goroutine with runtime.Goexit, deliverAll starts
// another.
func (c *failureQueue) deliverAll() {
	finished := false
	defer func() {
		if !finished {
			go c.deliverAll()
		}
	}()
	for err := c.take(); err != nil; err = c.take() {
		panicked := contain.Is(contain.Do(func() error { c.call(err); return nil }))
		if panicked != nil {
			c.log.WithField(obs.Stack, panicked.Stack).WithError(fmt.Errorf("panic: %v", panicked.Value)).
				Error("the program's function for failed looks panicked")
		}
	}
	finished = true
}

// take returns the error that has waited longest. After nil the goroutine must end.
func (c *failureQueue) take() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		c.running = false
		return nil
	}
	err := c.waiting[0]
	c.waiting = c.waiting[1:]
	return err
}
