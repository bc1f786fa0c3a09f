package farm

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/farm/breaker"
	"github.com/rcfarm/rcfarm/pkg/farm/place"
	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// ReplicationControllerStore has the methods by which looks and passes read and write.
type ReplicationControllerStore interface {
	Reads
	Lists
	Writes
	Ownership
	TripBreaker(ctx context.Context, index uint64, b store.Breaker, a store.Audit) error
}

// Reads has the reads of a look: first the unit, then all else together.
type Reads interface {
	ReadUnit(ctx context.Context, unit string, level store.Level) (store.Unit, error)
	DropsOf(ctx context.Context, unit string) (store.Drops, error)
	ReadDetails(ctx context.Context, w store.Wanted, level store.Level) (store.Details, error)
}

// Lists has reads for decisions for which the view and the watches are not certain enough.
type Lists interface {
	Placements(ctx context.Context, rcID string, level store.Level) ([]store.Rec[pod.Placement], []error, error)
	NodeOrphans(ctx context.Context, name string) (rec store.Rec[node.Node], complete bool, err error)
	NodeLocks(ctx context.Context, names []string) (map[string]store.NodeLock, error)
	HaveIntents(ctx context.Context, copies []store.At) (map[store.At]bool, error)
}

// Writes has the methods by which a pass changes the records.
type Writes interface {
	Commit(ctx context.Context, b *store.Batch) error
	CommitRollout(ctx context.Context, s *store.RolloutStep) (index uint64, err error)
	GateVersion() string
	HeadLoad(b *store.Batch, reports bool) store.Load
	LoadOf(rcID string, p *store.Part) store.PartLoad
	Ring(ctx context.Context, rcID string) error
	MakeDrops(ctx context.Context, unit string) error
}

// Ownership has the writes of an owner that are about its whole unit.
type Ownership interface {
	Bump(ctx context.Context, f store.Fence) (store.Fence, error)
	Release(ctx context.Context, unit string, f store.Fence) error
	Abandon(ctx context.Context, f store.Fence, gone []string, empty *store.Unit) error
	Finish(ctx context.Context, f store.Fence, rec store.Rec[rc.RC], bell, schemaIndex uint64, a store.Audit) error
}

// peers is what a look needs to know of other farms and of the other units of this farm.
type peers interface {
	// preferred returns the farm that should own a unit, "" for none, and whether this farm may own it at all.
	preferred(ctx context.Context, unit string) (owner string, mine bool, err error)
	// claimsMore reports whether this farm has yet to claim a unit that it should own.
	claimsMore(ctx context.Context) (bool, error)
	// capacityFreed asks for looks after a controller has freed capacity.
	capacityFreed(rcID string)
	// enqueue asks for a look at a unit although its bell has not rung.
	enqueue(unit string)
	// waiting returns how many units wait for a look.
	waiting() int
}

// kit has what all passes of a farm share. Nothing in it refers to the farm: each part is a small type with its own
// lock, or an interface.
type kit struct {
	farm     string // id
	log      obs.Logger
	selector labels.Selector
	ask      roll.Ask                         // asks the gates of rollouts
	push     func(push.Target, scale.Request) // nil: the farm pushes to no node
	slack    time.Duration                    // see reconcile.Snapshot

	reads  Reads
	lists  Lists
	writes Writes
	lock   Ownership
	trip   interface {
		TripBreaker(ctx context.Context, index uint64, b store.Breaker, a store.Audit) error
	}

	cache      *cache
	peers      peers
	nodeSync   *nodeSync
	stops      *breaker.Stops
	manifests  *manifestCache
	places     *place.Finder
	mismatched *nodeSet // nodes whose reservations do not match their records
	fresh      *nodeSet // nodes whose first reservation this farm has written; an earlier one may have been lost

	resyncsLeft atomic.Int64 // how many more claimed controllers are resynced in their first pass

	notifier alert.Notifier
	metrics  *Metrics
	rollouts *roll.Metrics
}

func newKit(cfg *Config, log obs.Logger, cache *cache, peers peers) *kit {
	k := &kit{
		farm: cfg.ID, log: log, selector: cfg.RCSelector, ask: cfg.Ask, push: cfg.Push,
		slack: field.ClockError + endGrace,
		reads: cfg.Store, lists: cfg.Store, writes: cfg.Store, lock: cfg.Store, trip: cfg.Store,
		cache: cache, peers: peers, nodeSync: &nodeSync{}, stops: breaker.NewStops(), manifests: newManifestCache(),
		mismatched: &nodeSet{}, fresh: &nodeSet{},
		notifier: alert.Notifier{Farm: cfg.ID, To: cfg.Alerter}, metrics: cfg.Metrics, rollouts: cfg.Rollouts,
	}
	k.resyncsLeft.Store(resyncsAtOnce)
	k.places = place.New(place.Config{
		Farm: cfg.ID, Scheduler: cfg.Scheduler, Reads: cfg.Store, Log: log, Metrics: cfg.Metrics,
		Between: cache.between, Orphans: cache.orphansOf, OnReservation: k.noteMismatched,
	})
	return k
}

func (k *kit) noteMismatched(on *node.View, res node.Reservation) {
	if disagrees(on, res) {
		k.mismatched.add(on.Name)
	}
}

// forget is called for a controller that is gone or has another owner.
func (k *kit) forget(rcID string) {
	k.metrics.forget(rcID)
	k.stops.Forget(rcID)
}

type nodeSet struct {
	mu    sync.Mutex
	names map[string]bool
}

func (n *nodeSet) add(names ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.names == nil {
		n.names = map[string]bool{}
	}
	for _, name := range names {
		n.names[name] = true
	}
}

func (n *nodeSet) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	names := slices.Sorted(maps.Keys(n.names))
	n.names = nil
	return names
}

// disagrees reports whether a reservation has another drain or other label versions than the watches have seen last.
func disagrees(v *node.View, res node.Reservation) bool {
	return v != nil && v.OpsUnread == "" && !res.Agrees(v.Ops.Drain != nil, v.LabelVersions)
}
