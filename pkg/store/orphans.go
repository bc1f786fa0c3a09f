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
	content := epoch + string(encode(orphans))
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
		more := len(encode(orphans[i])) + 1
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

// NodeOrphans reads a node's record together with its pages of orphans, at one moment, and fills Orphans in. complete is
// false while the pages are not those that the record speaks of: the preparer is writing them, or was killed while it did.
// It returns ErrNotFound when there is no record, and *CorruptError when it or a page cannot be read.
func (s *Views) NodeOrphans(ctx context.Context, name string) (rec Rec[node.Node], complete bool, err error) {
	key := s.keys.Nodes.Key(name)
	found, below, err := s.c.Read(ctx, consul.Reading{Keys: []string{key}, Prefixes: []string{s.keys.OrphanPages.Below(name)}}, consul.Consistent)
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
	said := rec.Value.OrphanPages
	if said == nil {
		return rec, true, nil // of an older preparer
	}
	pairs := make(map[string]consul.Pair, len(below))
	for _, p := range below {
		pairs[p.Key] = p
	}
	rec.Value.Orphans = make([]pod.Orphan, 0, said.Orphans)
	for n := range said.Count {
		pair, ok := pairs[s.keys.OrphanPages.Key(name, strconv.Itoa(n))]
		if !ok {
			return rec, false, nil
		}
		page, err := s.OrphanPages.decode(pair)
		if err != nil {
			return rec, false, err
		}
		if page.Value.Edition != said.Edition {
			return rec, false, nil
		}
		rec.Value.Orphans = append(rec.Value.Orphans, page.Value.Orphans...)
	}
	return rec, true, nil
}
