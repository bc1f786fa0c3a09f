package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// orphanList are the pods that a node runs without a matching intent, as read from the pages of one edition.
type orphanList struct {
	edition string
	orphans []pod.Orphan
	refused []string // why others on the pages are left out
	failed  string   // why the pages could not be read, if they were found unreadable since
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
	gap, told := orphansMin, []string(nil)
	for {
		names := w.unread()
		for some := range slices.Chunk(names, orphansBatch) {
			if err := w.readPages(ctx, some); err != nil {
				onError(err)
			} else {
				good()
			}
		}
		told = w.sayRefused(told)
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

// unread returns the living nodes whose records speak of pages that have not been read. Those that were read, and of
// which some orphans are left out, stay as they are until their records lead to others.
func (w *cache) unread() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for name, v := range w.views {
		if v.Alive && v.OrphanPages != nil && v.OrphansUnread && w.listed[name].edition != v.OrphanPages.Edition {
			names = append(names, name)
		}
	}
	return names
}

// readPages reads the pages of some nodes and publishes what they say. Those that are not whole are left as they were.
func (w *cache) readPages(ctx context.Context, names []string) error {
	var mu sync.Mutex
	found, failed := map[string]orphanList{}, map[string]string{}
	var group errgroup.Group
	group.SetLimit(orphansReads)
	for _, name := range names {
		group.Go(func() error {
			rec, complete, err := w.store.NodeOrphans(ctx, name)
			if errors.Is(err, store.ErrNotFound) || err == nil && (!complete || rec.Value.OrphanPages == nil) {
				return nil // the record's watch tells
			}
			mu.Lock()
			defer mu.Unlock()
			if store.IsCorrupt(err) {
				failed[name] = err.Error()
			}
			if err != nil {
				return err
			}
			found[name] = orphanList{edition: rec.Value.OrphanPages.Edition, orphans: rec.Value.Orphans, refused: rec.Value.OrphansRefused}
			return nil
		})
	}
	err := group.Wait()
	w.change(func() {
		for name, l := range found {
			w.listed[name] = l
			delete(w.sources, name) // its view is to be made anew
		}
		for name, why := range failed {
			l := w.listed[name]
			l.failed = why
			w.listed[name] = l
		}
	})
	return err
}

// sayRefused tells which nodes' lists cannot be used, or not as a whole, where that is not as it was told before.
func (w *cache) sayRefused(before []string) (now []string) {
	var found []error
	w.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(w.listed)) {
		l := w.listed[name]
		if why := l.trouble(); why != "" {
			found, now = append(found, &store.CorruptError{Key: "orphans/" + name, Err: errors.New(why)}), append(now, name+why)
		}
	}
	w.mu.Unlock()
	if slices.Equal(before, now) {
		return before
	}
	w.emit(unreadableFound{"orphans", found})
	for _, err := range found {
		w.log.WithError(err).Error("not all is known that a node runs")
	}
	return now
}

// trouble says what of a list cannot be used, and what helps; "" for nothing.
func (l *orphanList) trouble() string {
	const cure = "; farms with new records wait for the node before they add pods: start its preparer again, or remove its pages and do so (the node's record leads to them), or rcctl farm release-hold NODE"
	switch {
	case l.failed != "":
		return l.failed + cure
	case len(l.refused) > 0:
		const few = 3
		return fmt.Sprintf("%s that the node lists are left out, because no farm could take them over: %s%s", field.Count(len(l.refused), "pod"), field.Few(l.refused, few, "; "), cure)
	default:
		return ""
	}
}

// orphansOn returns what a node runs without a matching intent, and whether its record speaks of another list than
// that. A record that does not say, as of a preparer which has just begun, leaves what was said before. The caller holds the mutex.
func (w *cache) orphansOn(record *node.Node) (orphans []pod.Orphan, unread bool) {
	switch said := record.OrphanPages; {
	case said == nil && record.Epoch == "" && len(record.Orphans) == 0:
		return w.listed[record.Name].orphans, false
	case said == nil: // of an older preparer
		orphans, leftOut := node.FitOrphans(record.Orphans)
		return orphans, record.OrphansLeftOut+leftOut > 0
	case said.Count == 0:
		return nil, false
	default:
		l := w.listed[record.Name]
		return l.orphans, l.edition != said.Edition || len(l.refused)+record.OrphansLeftOut > 0
	}
}

// forgetOrphans drops what nodes have listed that list nothing any more, or have no record. The caller holds the mutex.
func (w *cache) forgetOrphans() {
	for name := range w.listed {
		v := w.views[name]
		if v == nil || v.OrphanPages != nil && v.OrphanPages.Count == 0 || !v.OrphansUnread && len(v.Orphans) == 0 {
			delete(w.listed, name)
		}
	}
}
