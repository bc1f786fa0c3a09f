package farm

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// orphanList are the pods that a node runs without a matching intent, as read from the pages of one edition.
type orphanList struct {
	edition string
	orphans []pod.Orphan
}

// The pace at which pages are read that were not whole, or could not be read, and how many nodes' are read before what they
// say is used.
const (
	orphansMin   = 100 * time.Millisecond
	orphansMax   = 4 * time.Second
	orphansBatch = 64
	orphansReads = 4 // at once
)

// readOrphans keeps what nodes list as orphans in line with their records. Pages are read when a record says that they have
// changed; nothing watches them.
func (w *cache) readOrphans(ctx context.Context) error {
	onError, good := w.reporter(ctx, "orphans")
	gap := orphansMin
	for {
		names := w.unread()
		for some := range slices.Chunk(names, orphansBatch) {
			if err := w.readPages(ctx, some); err != nil {
				onError(err)
			} else {
				good()
			}
		}
		again := gap
		if len(w.unread()) == 0 {
			again, gap = idleLook, orphansMin
		}
		switch woken, err := wait.PauseUnless(ctx, w.orphansMoved, again); {
		case err != nil:
			return err
		case woken:
			gap = orphansMin
		default:
			gap = min(2*gap, orphansMax)
		}
	}
}

// unread returns the living nodes whose records speak of pages that have not been read.
func (w *cache) unread() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for name, v := range w.views {
		if v.Alive && v.OrphanPages != nil && v.OrphansUnread {
			names = append(names, name)
		}
	}
	return names
}

// readPages reads the pages of some nodes and publishes what they say. Those that are not whole are left as they were.
func (w *cache) readPages(ctx context.Context, names []string) error {
	var mu sync.Mutex
	found := map[string]orphanList{}
	var group errgroup.Group
	group.SetLimit(orphansReads)
	for _, name := range names {
		group.Go(func() error {
			rec, complete, err := w.store.NodeOrphans(ctx, name)
			if errors.Is(err, store.ErrNotFound) || err == nil && (!complete || rec.Value.OrphanPages == nil) {
				return nil // the record's watch tells
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			found[name] = orphanList{edition: rec.Value.OrphanPages.Edition, orphans: rec.Value.Orphans}
			return nil
		})
	}
	err := group.Wait()
	w.change(func() {
		for name, l := range found {
			w.listed[name] = l
			delete(w.sources, name) // its view is to be made anew
		}
	})
	return err
}

// orphansOn returns what a node runs without a matching intent, and whether its record speaks of another list than
// that. A record that does not say, as of a preparer which has just begun, leaves what was said before. The caller holds the mutex.
func (w *cache) orphansOn(record *node.Node) (orphans []pod.Orphan, unread bool) {
	switch said := record.OrphanPages; {
	case said == nil && record.Epoch == "" && len(record.Orphans) == 0:
		return w.listed[record.Name].orphans, false
	case said == nil: // of an older preparer
		return record.Orphans, record.OrphansLeftOut > 0
	case said.Count == 0:
		return nil, false
	default:
		l := w.listed[record.Name]
		return l.orphans, l.edition != said.Edition
	}
}

// forgetOrphans drops what nodes have listed that list nothing any more, or have no record. The caller holds the mutex.
func (w *cache) forgetOrphans() {
	for name := range w.listed {
		v := w.views[name]
		if v == nil || !v.OrphansUnread && len(v.Orphans) == 0 {
			delete(w.listed, name)
		}
	}
}
