package place

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Reads is what a Search reads from the store.
type Reads interface {
	ReadDetails(ctx context.Context, w store.Wanted, level store.Level) (store.Details, error)
	Placements(ctx context.Context, rcID string, level store.Level) ([]store.Rec[pod.Placement], []error, error)
}

// Metrics counts for the farm.
type Metrics interface {
	SchedulerFailed(call string)                                    // one of Calls
	SetMissing(rcID string, missing int, reasons scheduler.Reasons) // how many pods have no node, and why
}

// Config is what a Finder needs.
type Config struct {
	Farm      string              // id
	Scheduler scheduler.Scheduler // nil: the built-in one
	Reads     Reads
	Log       obs.Logger
	Metrics   Metrics
	Between   func(from, to uint64) ([]scheduler.NodeChange, bool) // see scheduler.ByLabel
	Orphans   func(rcID string) []reconcile.Orphan                 // of a controller, as the watches saw them last
	// OnReservation gets each reservation that was read. on may be nil.
	OnReservation func(on *node.View, res node.Reservation)
}

// Finder finds nodes for the pods of all controllers of a farm. It is safe for concurrent use by all passes.
type Finder struct {
	cfg      Config
	byLabel  scheduler.ByLabel
	outside  *outside // outside scheduler, which is asked instead of byLabel; nil: none
	books    *books   // nil: the scheduler keeps none
	ledger   scheduler.Ledger
	scarcity scarcity
	usage    usage
}

// New returns a Finder that has read no reservation.
func New(cfg Config) *Finder {
	f := &Finder{cfg: cfg}
	f.byLabel.Between = cfg.Between
	f.outside, f.books = outsideOf(&f.cfg)
	return f
}

// Nodes are all nodes as a look has read them.
type Nodes struct {
	Views   map[string]*node.View
	Version uint64 // of the views; zero: not known
	Mark    uint64 // from Finder.Mark, before the nodes were read: the look does not see later changes
}

// Begin begins the search of one pass over one controller.
func (f *Finder) Begin(owner scheduler.Owner, nodes Nodes, known Memory, log obs.Logger) *Search {
	return &Search{
		account:  account{finder: f, owner: owner, nodes: nodes, log: log, Memory: known},
		reserved: map[string]store.Rec[node.Reservation]{},
	}
}

// KeepsBooks reports whether the scheduler may keep books, which may have shares of pods without a placement.
func (f *Finder) KeepsBooks() bool { return f.books != nil }

// Prefer sets which nodes this farm tries first. Farms that prefer different nodes rarely write to the same one.
func (f *Finder) Prefer(first func(nodeName string) bool) { f.byLabel.Prefer(first) }

// Mark must be called before the nodes of a look are read; see Nodes.Mark.
func (f *Finder) Mark() (at uint64) {
	f.scarcity.with(func(s *placement.Scarcity) { at = s.Mark() })
	return at
}

// Changed notes nodes that may have capacity now.
func (f *Finder) Changed(nodes []string) {
	if len(nodes) > 0 {
		f.scarcity.with(func(s *placement.Scarcity) { s.Changed(nodes) })
	}
}

// Reset forgets which pods found no node.
func (f *Finder) Reset() { f.scarcity.with((*placement.Scarcity).Reset) }

// Wrote notes a batch's reservations, and whether it was written.
func (f *Finder) Wrote(writes []store.ReservationWrite, landed bool, now time.Time) {
	f.usage.wrote(writes, landed, now)
}
