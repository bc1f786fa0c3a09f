package farm

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// ReplicationControllerStore is what a pass reads and writes.
type ReplicationControllerStore interface {
	Reads
	Lists
	Writes
	Ownership
	TripBreaker(ctx context.Context, index uint64, b store.Breaker, a store.Audit) error
}

// Reads are what a look reads: the unit, and then everything else together.
type Reads interface {
	ReadUnit(ctx context.Context, unit string, consistent bool) (store.Unit, error)
	DropsOf(ctx context.Context, unit string) (store.Drops, error)
	ReadDetails(ctx context.Context, w store.Wanted, consistent bool) (store.Details, error)
}

// Lists are what a pass looks at once more, where it must be sure.
type Lists interface {
	Placements(ctx context.Context, rcID string, consistent bool) ([]store.Rec[pod.Placement], []error, error)
	NodeOrphans(ctx context.Context, name string) (rec store.Rec[node.Node], complete bool, err error)
	NodeLocks(ctx context.Context, names []string) (map[string]store.NodeLock, error)
	Told(ctx context.Context, copies []store.At) (map[store.At]bool, error)
}

// Writes are how a pass changes the records.
type Writes interface {
	Commit(ctx context.Context, b *store.Batch) error
	CommitRollout(ctx context.Context, s *store.RolloutStep) (index uint64, err error)
	GateVersion() string
	HeadLoad(b *store.Batch, reports bool) store.Load
	LoadOf(rcID string, p *store.Part) store.PartLoad
	Ring(ctx context.Context, rcID string) error
	MakeDrops(ctx context.Context, unit string) error
}

// Ownership is what an owner does with its unit as a whole: it moves the fence, gives the lock up, and removes what a
// deleted controller leaves.
type Ownership interface {
	Bump(ctx context.Context, f store.Fence) (store.Fence, error)
	Release(ctx context.Context, unit string, f store.Fence) error
	Abandon(ctx context.Context, f store.Fence, gone []string, left *store.Unit) error
	Finish(ctx context.Context, f store.Fence, rec store.Rec[rc.RC], last, schemaIndex uint64, a store.Audit) error
}

// fleet is what a look needs of the farms and their other units.
type fleet interface {
	// preferred returns the farm that should own a unit, "" for none, and whether this farm may own it at all.
	preferred(ctx context.Context, unit string) (owner string, mine bool, err error)
	// claimsMore reports whether this farm is still to claim a unit that it should own.
	claimsMore(ctx context.Context) (bool, error)
	// roomFreed is told that a controller's batches gave room back.
	roomFreed(rcID string)
	// enqueue asks for a look at a unit, for another reason than its bell.
	enqueue(unit string)
}

// kit is what all passes of a farm work with. Nothing in it knows the farm: each part is a small type with its own lock, or an interface.
type kit struct {
	farm     string // id
	log      obs.Logger
	selector labels.Selector
	ask      roll.Ask                         // how gates of rollouts are asked
	tell     func(push.Target, scale.Request) // nil: no node is told
	slack    time.Duration                    // see reconcile.Snapshot

	reads  Reads
	lists  Lists
	writes Writes
	lock   Ownership
	trip   interface {
		TripBreaker(ctx context.Context, index uint64, b store.Breaker, a store.Audit) error
	}

	cache      *cache
	fleet      fleet
	nodeSync   *nodeSync
	stops      *stopCounter
	manifests  *manifestCache
	ledger     *scheduler.Ledger
	scarcity   *scarcity
	usage      *usageView
	mismatched *nodeSet // their reservations say something else than what is known of them
	fresh      *nodeSet // this farm has written their first reservation, as far as it knows

	byLabel *scheduler.ByLabel
	outside *outside // a scheduler that is asked in place of byLabel; nil: none
	books   *books   // nil: the scheduler keeps none

	resyncsLeft atomic.Int64 // resyncs of controllers that are claimed before the next sweep

	teller   alert.Teller
	metrics  *Metrics
	rollouts *roll.Metrics
}

// newKit makes the kit of a farm, in whose place it has what tells of the cluster and of the other controllers.
func newKit(cfg *Config, log obs.Logger, cache *cache, fleet fleet, byLabel *scheduler.ByLabel) *kit {
	k := &kit{
		farm: cfg.ID, log: log, selector: cfg.RCSelector, ask: cfg.Ask, tell: cfg.Tell,
		slack: field.ClockError + endGrace,
		reads: cfg.Store, lists: cfg.Store, writes: cfg.Store, lock: cfg.Store, trip: cfg.Store,
		cache: cache, fleet: fleet, nodeSync: &nodeSync{}, stops: newStopCounter(), manifests: newManifestCache(),
		ledger: &scheduler.Ledger{}, scarcity: &scarcity{}, usage: &usageView{}, mismatched: &nodeSet{}, fresh: &nodeSet{}, byLabel: byLabel,
		teller: alert.Teller{Farm: cfg.ID, To: cfg.Alerter}, metrics: cfg.Metrics, rollouts: cfg.Rollouts,
	}
	k.resyncsLeft.Store(resyncsAtOnce)
	k.outside, k.books = outsideOf(cfg)
	return k
}

// forget is for a controller that is gone, or not this farm's any more.
func (k *kit) forget(rcID string) {
	k.metrics.forget(rcID)
	k.stops.forget(rcID)
}
