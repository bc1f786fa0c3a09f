package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

const (
	// orphanPageBytes bounds the orphans of one page, in bytes of JSON.
	orphanPageBytes = 64 << 10
	// pagesAtOnce is how many pages share a transaction: with base64 and conditions well below what it takes.
	pagesAtOnce = 4
)

// orphanPages is what a tenure knows of its node's pages.
type orphanPages struct {
	mu      sync.Mutex
	index   map[string]uint64 // of each page, by key; nil: not known
	content string            // that was written, with the epoch
	said    node.OrphanPages  // of the content
}

// WriteOrphans writes what the node runs without a matching intent, under the node's lock, in pages that bear the epoch. It
// returns what the record has to say to lead there: only a record that is written after the pages speaks for them. What is
// there already is not written again; again says to ask Consul whether it is, because pages may have vanished.
// It returns ErrLost when the lock is not held, and after ErrConflict or ErrUnknown some pages are of one edition and some of
// another, which no reader takes for the list; the next call mends that.
func (t *NodeSession) WriteOrphans(ctx context.Context, epoch string, orphans []pod.Orphan, again bool) (node.OrphanPages, error) {
	orphans = *allowed(t.guard, &orphans)
	p := &t.orphans
	p.mu.Lock()
	defer p.mu.Unlock()
	listed, err := encode(orphans)
	if err != nil {
		return node.OrphanPages{}, fmt.Errorf("list orphans: %w", err)
	}
	content := epoch + string(listed)
	if p.index != nil && p.content == content && !(again && len(p.index) > 0) {
		return p.said, nil
	}
	if p.index == nil || again {
		pairs, err := t.c.List(ctx, t.keys.OrphanPages.Below(t.name), consul.Consistent)
		if err != nil {
			return node.OrphanPages{}, fmt.Errorf("list the pages of orphans: %w", err)
		}
		index := make(map[string]uint64, len(pairs))
		for _, pair := range pairs {
			index[pair.Key] = pair.ModifyIndex
		}
		if p.content == content && maps.Equal(p.index, index) && len(index) > 0 {
			return p.said, nil
		}
		p.index = index
	}
	said, err := t.writePages(ctx, pagesOf(t.name, epoch, orphans))
	if err != nil {
		p.index = nil
		return node.OrphanPages{}, fmt.Errorf("write the pages of orphans: %w", err)
	}
	p.content, p.said = content, said
	return said, nil
}

// pagesOf splits orphans into pages of a new edition.
func pagesOf(name, epoch string, orphans []pod.Orphan) []node.OrphanPage {
	edition, size := NewID(), 0
	var pages []node.OrphanPage
	for i := range orphans {
		more := orphans[i].Bytes() + 1
		if len(pages) == 0 || size+more > orphanPageBytes {
			pages, size = append(pages, node.OrphanPage{Node: name, Page: len(pages), Edition: edition, Epoch: epoch}), 0
		}
		last := &pages[len(pages)-1]
		last.Orphans, size = append(last.Orphans, orphans[i]), size+more
	}
	return pages
}

// writePages replaces the pages that are there. Each write names the index that the page has, so that one which lingers
// somewhere cannot land over a later one. The caller holds the mutex.
func (t *NodeSession) writePages(ctx context.Context, pages []node.OrphanPage) (node.OrphanPages, error) {
	var said node.OrphanPages
	gone, next := maps.Clone(t.orphans.index), make(map[string]uint64, len(pages))
	var ops []consul.Op
	for i := range pages {
		key := t.keys.OrphanPages.Key(t.name, strconv.Itoa(pages[i].Page))
		ops = append(ops, cas(key, pages[i], gone[key]))
		said = node.OrphanPages{Edition: pages[i].Edition, Count: len(pages), Orphans: said.Orphans + len(pages[i].Orphans)}
		delete(gone, key)
	}
	for some := range slices.Chunk(ops, pagesAtOnce) {
		written, err := t.commit(ctx, some...)
		if err != nil {
			return said, err
		}
		maps.Copy(next, written)
	}
	ops = nil
	for key, at := range gone {
		ops = append(ops, consul.DeleteCAS(key, at))
	}
	for some := range slices.Chunk(ops, consul.MaxTxnOps/2) {
		if _, err := t.commit(ctx, some...); err != nil {
			return said, err
		}
	}
	delete(next, t.keys.Nodes.Key(t.name)) // of the fence
	t.orphans.index = next
	return said, nil
}

// NodeOrphans reads a node's record and then the pages of orphans that it leads to, and fills Orphans in. complete is
// false while the pages are not those that the record speaks of: the preparer is writing them, or was killed while it did.
// Orphans that nobody could take over are left out: OrphansLeftOut counts them, and OrphansRefused says why.
// It returns ErrNotFound when there is no record, and *CorruptError when it or a page cannot be read. It reads no more
// than what a node's own programs write, whatever the record says, and whatever is on pages that it does not lead to.
func (s *Views) NodeOrphans(ctx context.Context, name string) (rec Rec[node.Node], complete bool, err error) {
	key, first := s.keys.Nodes.Key(name), s.keys.OrphanPages.Key(name, "0")
	found, err := s.c.GetMany(ctx, []string{key, first}, consul.Consistent)
	if err != nil {
		return rec, false, err
	}
	pair, ok := found[key]
	if !ok {
		return rec, false, fmt.Errorf("read key %s: %w", key, ErrNotFound)
	}
	if rec, err = s.Nodes.decode(pair); err != nil {
		return rec, false, err
	}
	said, left := rec.Value.OrphanPages, 0
	if said == nil {
		rec.Value.Orphans, left = node.FitOrphans(rec.Value.Orphans) // of an older preparer
		rec.Value.OrphansLeftOut += left
		return rec, true, nil
	}
	rec.Value.Orphans = nil
	for n := range said.Count {
		if n%pagesAtOnce == 1 {
			if found, err = s.c.GetMany(ctx, s.pageKeys(name, n, min(n+pagesAtOnce, said.Count)), consul.Consistent); err != nil {
				return rec, false, err
			}
		}
		if ok, err := s.addPage(&rec.Value, found, n); err != nil || !ok {
			return rec, false, err
		}
	}
	return rec, true, nil
}

func (s *Views) pageKeys(name string, from, to int) (keys []string) {
	for n := from; n < to; n++ {
		keys = append(keys, s.keys.OrphanPages.Key(name, strconv.Itoa(n)))
	}
	return keys
}

// maxPageBytes is more than a page takes that we have written.
const maxPageBytes = 2 * orphanPageBytes

// addPage adds what is on a page to a record; ok is false where the page is not of the list that the record speaks of.
func (s *Views) addPage(record *node.Node, found map[string]consul.Pair, n int) (ok bool, err error) {
	key := s.keys.OrphanPages.Key(record.Name, strconv.Itoa(n))
	pair, there := found[key]
	if !there {
		return false, nil
	}
	if len(pair.Value) > maxPageBytes {
		return false, &CorruptError{Key: key, Err: fmt.Errorf("it has %d bytes; allowed: %d", len(pair.Value), maxPageBytes)}
	}
	page, err := s.OrphanPages.decode(pair)
	if err != nil {
		return false, err
	}
	if page.Value.Edition != record.OrphanPages.Edition {
		return false, nil
	}
	record.Orphans = append(record.Orphans, page.Value.Orphans...)
	record.OrphansLeftOut += len(page.Value.Refused)
	for _, why := range page.Value.Refused {
		record.OrphansRefused = append(record.OrphansRefused, key+": "+why)
	}
	if all := len(record.Orphans) + record.OrphansLeftOut; all > node.MaxOrphans {
		return false, &CorruptError{Key: key, Err: fmt.Errorf("with it the node lists %d orphans; allowed: %d", all, node.MaxOrphans)}
	}
	return true, nil
}
