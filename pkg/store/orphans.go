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
	// pagesAtOnce is how many pages share a transaction. With base64 they stay well below Consul's limit.
	pagesAtOnce = 4
)

type orphanPages struct {
	mu      sync.Mutex
	index   map[string]uint64 // of each page, by key; nil: the pages must be listed
	content string            // the epoch and the orphans that were written last
	written node.OrphanPages  // what the node's record must refer to
}

// WriteOrphans writes the pods that run without a matching intent, in pages with the epoch. It returns the part of the
// node's record that refers to the pages. They become valid when that record is written after them. Unchanged pages are
// not written again. again makes WriteOrphans list the pages in Consul, because pages may have vanished. It returns
// ErrLost without the node's lock. After ErrConflict or ErrUnknown, old and new pages may be mixed. No reader accepts
// the mixture, and the next call writes all pages.
func (t *NodeSession) WriteOrphans(ctx context.Context, epoch string, orphans []pod.Orphan,
	again bool,
) (node.OrphanPages, error) {
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
		return p.written, nil
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
			return p.written, nil
		}
		p.index = index
	}
	pages, err := pagesOf(t.name, epoch, orphans)
	if err != nil {
		return node.OrphanPages{}, fmt.Errorf("list orphans: %w", err)
	}
	refs, err := t.writePages(ctx, pages)
	if err != nil {
		p.index = nil
		return node.OrphanPages{}, fmt.Errorf("write the pages of orphans: %w", err)
	}
	p.content, p.written = content, refs
	return refs, nil
}

func pagesOf(name, epoch string, orphans []pod.Orphan) ([]node.OrphanPage, error) {
	edition, size := NewID(), 0
	var pages []node.OrphanPage
	for i := range orphans {
		data, err := encode(orphans[i])
		if err != nil {
			return nil, err
		}
		more := len(data) + 1
		if len(pages) == 0 || size+more > orphanPageBytes {
			pages, size = append(pages,
				node.OrphanPage{Node: name, Page: len(pages), Edition: edition, Epoch: epoch}), 0
		}
		last := &pages[len(pages)-1]
		last.Orphans, size = append(last.Orphans, orphans[i]), size+more
	}
	return pages, nil
}

// writePages replaces the node's pages by cas, so that a delayed write cannot replace a later one. p.mu must be held.
func (t *NodeSession) writePages(ctx context.Context, pages []node.OrphanPage) (node.OrphanPages, error) {
	var refs node.OrphanPages
	gone, next := maps.Clone(t.orphans.index), make(map[string]uint64, len(pages))
	var ops []consul.Op
	for i := range pages {
		key := t.keys.OrphanPages.Key(t.name, strconv.Itoa(pages[i].Page))
		ops = append(ops, cas(key, pages[i], gone[key]))
		refs = node.OrphanPages{
			Edition: pages[i].Edition, Count: len(pages),
			Orphans: refs.Orphans + len(pages[i].Orphans),
		}
		delete(gone, key)
	}
	for some := range slices.Chunk(ops, pagesAtOnce) {
		written, err := t.commit(ctx, some...)
		if err != nil {
			return refs, err
		}
		maps.Copy(next, written)
	}
	ops = nil
	for key, at := range gone {
		ops = append(ops, consul.DeleteCAS(key, at))
	}
	for some := range slices.Chunk(ops, consul.MaxTxnOps/2) {
		if _, err := t.commit(ctx, some...); err != nil {
			return refs, err
		}
	}
	delete(next, t.keys.Nodes.Key(t.name)) // the fence is not a page
	t.orphans.index = next
	return refs, nil
}

// NodeOrphans reads a node's record and the pages to which it refers, and sets Orphans. complete is false if they do
// not match, because the preparer is writing pages, or was killed meanwhile. OrphansLeftOut counts orphans that no farm
// could adopt, and OrphansRefused has the reasons. It returns ErrNotFound without a record, and *CorruptError for an
// unreadable record or page. It reads at most what a preparer writes, even if the record or a page has higher numbers.
func (v *Views) NodeOrphans(ctx context.Context, name string) (rec Rec[node.Node], complete bool, err error) {
	key, first := v.keys.Nodes.Key(name), v.keys.OrphanPages.Key(name, "0")
	found, err := v.c.GetMany(ctx, []string{key, first}, consul.Consistent)
	if err != nil {
		return rec, false, err
	}
	pair, ok := found[key]
	if !ok {
		return rec, false, fmt.Errorf("read key %s: %w", key, ErrNotFound)
	}
	if rec, err = v.Nodes.decode(pair); err != nil {
		return rec, false, err
	}
	refs, left := rec.Value.OrphanPages, 0
	if refs == nil {
		// A preparer of an earlier version has the orphans in its node's record.
		rec.Value.Orphans, left = node.FitOrphans(rec.Value.Orphans)
		rec.Value.OrphansLeftOut += left
		return rec, true, nil
	}
	rec.Value.Orphans = nil
	for n := range refs.Count {
		if n%pagesAtOnce == 1 {
			if found, err = v.c.GetMany(ctx, v.pageKeys(name, n, min(n+pagesAtOnce, refs.Count)),
				consul.Consistent); err != nil {
				return rec, false, err
			}
		}
		if ok, err := v.addPage(&rec.Value, found, n); err != nil || !ok {
			return rec, false, err
		}
	}
	return rec, true, nil
}

func (v *Views) pageKeys(name string, from, to int) (keys []string) {
	for n := from; n < to; n++ {
		keys = append(keys, v.keys.OrphanPages.Key(name, strconv.Itoa(n)))
	}
	return keys
}

// maxPageBytes is more than WriteOrphans writes.
const maxPageBytes = 2 * orphanPageBytes

// addPage adds a page's orphans to a record; ok is false if the page does not match it.
func (v *Views) addPage(record *node.Node, found map[string]consul.Pair, n int) (ok bool, err error) {
	key := v.keys.OrphanPages.Key(record.Name, strconv.Itoa(n))
	pair, there := found[key]
	if !there {
		return false, nil
	}
	if len(pair.Value) > maxPageBytes {
		return false, &CorruptError{
			Key: key,
			Err: fmt.Errorf("it has %d bytes; allowed: %d", len(pair.Value), maxPageBytes),
		}
	}
	page, err := v.OrphanPages.decode(pair)
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
		return false, &CorruptError{
			Key: key,
			Err: fmt.Errorf("with it the node lists %d orphans; allowed: %d", all, node.MaxOrphans),
		}
	}
	return true, nil
}
