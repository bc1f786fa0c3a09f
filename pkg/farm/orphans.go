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

// orphanList has the orphans of a node, as read from the pages of one edition.
type orphanList struct {
	edition string
	orphans []pod.Orphan
	refused []string // why other orphans on the pages are left out
	failed  string   // why a later read of the pages failed; empty: it did not
}

const (
	orphansMin   = 100 * time.Millisecond // pause before incomplete or unreadable pages are read again
	orphansMax   = 4 * time.Second        // the longest such pause, after many tries
	orphansBatch = 64                     // nodes whose pages are read before the views are updated
	orphansReads = 4                      // concurrent reads
)

// readOrphans reads the pages of orphans when a node's record refers to another edition. No watch covers the pages.
func (n *nodeViews) readOrphans(ctx context.Context, onError func(error), good func()) error {
	gap, reported := orphansMin, []string(nil)
	for {
		names := n.unread()
		for some := range slices.Chunk(names, orphansBatch) {
			if err := n.readPages(ctx, some); err != nil {
				onError(err)
			} else {
				good()
			}
		}
		reported = n.reportRefused(reported)
		again := gap
		if len(n.unread()) == 0 {
			again, gap = idleLook, orphansMin
		}
		switch woken, err := wait.PauseUnless(ctx, n.orphansMoved, again); {
		case err != nil:
			return err
		case woken:
			gap = orphansMin
		default:
			gap = min(2*gap, orphansMax)
		}
	}
}

// unread returns the living nodes whose records refer to another edition than the farm has read.
func (n *nodeViews) unread() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for name, v := range n.views {
		if v.Alive && v.OrphanPages != nil && v.OrphansUnread && n.listed[name].edition != v.OrphanPages.Edition {
			names = append(names, name)
		}
	}
	return names
}

// readPages reads the pages of some nodes and publishes the orphans on them. It skips incomplete pages.
func (n *nodeViews) readPages(ctx context.Context, names []string) error {
	var mu sync.Mutex
	found, failed := map[string]orphanList{}, map[string]string{}
	var group errgroup.Group
	group.SetLimit(orphansReads)
	for _, name := range names {
		group.Go(func() error {
			rec, complete, err := n.store.NodeOrphans(ctx, name)
			if errors.Is(err, store.ErrNotFound) || err == nil && (!complete || rec.Value.OrphanPages == nil) {
				return nil // the watch of the record will show other pages
			}
			mu.Lock()
			defer mu.Unlock()
			if store.IsCorrupt(err) {
				failed[name] = err.Error()
			}
			if err != nil {
				return err
			}
			found[name] = orphanList{
				edition: rec.Value.OrphanPages.Edition, orphans: rec.Value.Orphans, refused: rec.Value.OrphansRefused,
			}
			return nil
		})
	}
	err := group.Wait()
	n.change(func() {
		for name, l := range found {
			n.listed[name] = l
			delete(n.sources, name) // so that its view is made again
		}
		for name, why := range failed {
			l := n.listed[name]
			l.failed = why
			n.listed[name] = l
		}
	})
	return err
}

// reportRefused reports the nodes whose lists the farm cannot use, or can use only in part, if they have changed.
func (n *nodeViews) reportRefused(before []string) (now []string) {
	var found []error
	n.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(n.listed)) {
		l := n.listed[name]
		if why := l.trouble(); why != "" {
			found = append(found, &store.CorruptError{Key: "orphans/" + name, Err: errors.New(why)})
			now = append(now, name+why)
		}
	}
	n.mu.Unlock()
	if slices.Equal(before, now) {
		return before
	}
	n.emit(unreadableFound{"orphans", found})
	for _, err := range found {
		n.log.WithError(err).Error("the farm does not know all pods that a node runs")
	}
	return now
}

// trouble returns which part of a list cannot be used, and what helps; "": the whole list can be used.
func (o *orphanList) trouble() string {
	const cure = "; farms with new records wait for the node before they add pods: start its preparer again; " +
		"if that does not help, remove its pages (the node's record refers to them) and start its preparer again, " +
		"or run rcctl farm release-hold NODE"
	switch {
	case o.failed != "":
		return o.failed + cure
	case len(o.refused) > 0:
		const few = 3
		return fmt.Sprintf("%s that the node lists are left out, because no farm could adopt them: %s%s",
			field.Count(len(o.refused), "pod"), field.Few(o.refused, few, "; "), cure)
	default:
		return ""
	}
}

// orphansOn returns the orphans of a node that the farm has read. unread means that the node may have others, too. A
// preparer that has just started has no list in its record: the last list stays valid. The caller holds the mutex.
func (n *nodeViews) orphansOn(record *node.Node) (orphans []pod.Orphan, unread bool) {
	switch pages := record.OrphanPages; {
	case pages == nil && record.Epoch == "" && len(record.Orphans) == 0:
		return n.listed[record.Name].orphans, false
	case pages == nil: // the record is of an older preparer
		orphans, leftOut := node.FitOrphans(record.Orphans)
		return orphans, record.OrphansLeftOut+leftOut > 0
	case pages.Count == 0:
		return nil, false
	default:
		l := n.listed[record.Name]
		return l.orphans, l.edition != pages.Edition || len(l.refused)+record.OrphansLeftOut > 0
	}
}

// forgetOrphans drops lists that are not needed any more. The caller holds the mutex.
func (n *nodeViews) forgetOrphans() {
	for name := range n.listed {
		v := n.views[name]
		if v == nil || v.OrphanPages != nil && v.OrphanPages.Count == 0 || !v.OrphansUnread && len(v.Orphans) == 0 {
			delete(n.listed, name)
		}
	}
}
