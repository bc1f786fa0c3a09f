package consul_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

type waiting struct {
	done  chan struct{}
	pairs api.KVPairs
	index uint64
	err   error
}

// waitRaw starts a blocking query, which the test's end cancels.
func waitRaw(t *testing.T, raw *api.Client, prefix string, index uint64) *waiting {
	t.Helper()
	w := &waiting{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		opts := new(api.QueryOptions).WithContext(t.Context())
		opts.WaitIndex, opts.WaitTime = index, 5*time.Minute
		var meta *api.QueryMeta
		if w.pairs, meta, w.err = raw.KV().List(prefix, opts); w.err == nil {
			w.index = meta.LastIndex
		}
	}()
	return w
}

func (w *waiting) answeredWithin(d time.Duration) bool {
	select {
	case <-w.done:
		return true
	case <-time.After(d):
		return false
	}
}

func (w *waiting) answered(t *testing.T) {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		t.Fatal("the query still waits")
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
}

func listIndex(t *testing.T, raw *api.Client, prefix string) uint64 {
	t.Helper()
	_, meta, err := raw.KV().List(prefix, nil)
	if err != nil {
		t.Fatal(err)
	}
	return meta.LastIndex
}

// An identical write does not wake a waiting query. If it did, the answer would have the index from before the write.
func TestFactIdenticalValueWakesNoWatch(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	put(t, c, prefix+"w/k", "same")
	w := waitRaw(t, raw, prefix+"w/", listIndex(t, raw, prefix+"w/"))
	for range 20 {
		put(t, c, prefix+"w/k", "same")
	}
	changed := put(t, c, prefix+"w/k", "other")
	w.answered(t)
	if w.index != changed || string(w.pairs[0].Value) != "other" {
		t.Fatalf("woke with index %d, want %d", w.index, changed)
	}
}

// A watched prefix without keys has the index of the whole store, so each write looks like its change. Therefore each
// watched prefix has a marker key.
func TestFactEmptyPrefixMovesWithWritesElsewhere(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	before := listIndex(t, raw, prefix+"empty/")
	elsewhere := put(t, c, prefix+"elsewhere", "1")
	w := waitRaw(t, raw, prefix+"empty/", before)
	w.answered(t)
	if len(w.pairs) != 0 || w.index < elsewhere {
		t.Fatalf("%d keys at %d, want an empty answer at %d or later", len(w.pairs), w.index, elsewhere)
	}
}

func TestFactPrefixWithMarkerDoesNot(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	marker := put(t, c, prefix+"marked/", "marker")
	put(t, c, prefix+"elsewhere", "1")
	if index := listIndex(t, raw, prefix+"marked/"); index != marker {
		t.Fatalf("the prefix is at %d, its only key at %d", index, marker)
	}
	w := waitRaw(t, raw, prefix+"marked/", marker)
	for i := range 20 {
		put(t, c, prefix+"elsewhere", fmt.Sprint("x", i))
	}
	inside := put(t, c, prefix+"marked/k", "v")
	w.answered(t)
	if w.index != inside {
		t.Fatalf("woke with index %d, want %d", w.index, inside)
	}
}

// A missing key that is watched behaves like an empty prefix.
func TestFactMissingKeyMovesWithWritesElsewhere(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	_, meta, err := raw.KV().Get(prefix+"missing", nil)
	if err != nil {
		t.Fatal(err)
	}
	put(t, c, prefix+"elsewhere", "1")
	_, later, err := raw.KV().Get(prefix+"missing", &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: time.Minute})
	if err != nil || later.LastIndex <= meta.LastIndex {
		t.Fatalf("index %d then %d: %v", meta.LastIndex, later.LastIndex, err)
	}
}

// If the last key below a prefix is deleted, or if a session with a lock below it ends, the prefix's index grows.
func TestFactDeletionsMoveTheIndexForwards(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	session := rawSession(t, raw, nil)
	must[consul.Fence](t)(c.Locks.Acquire(t.Context(), prefix+"d/k", session, differ("v")))
	locked := listIndex(t, raw, prefix+"d/")
	if _, err := raw.Session().Destroy(session, nil); err != nil {
		t.Fatal(err)
	}
	freed := listIndex(t, raw, prefix+"d/")
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Delete(prefix + "d/k")}))
	if gone := listIndex(t, raw, prefix+"d/"); locked >= freed || freed >= gone {
		t.Fatalf("indices: locked %d, freed %d, gone %d", locked, freed, gone)
	}
}

// A client has no more connections than its configuration allows, even with very many calls at once (P8).
func TestFactConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	const limit, calls = 4, 64
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	c := clientOf(t, consul.Config{Address: p.Addr, MaxConns: limit})
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			if _, err := c.Keys(t.Context(), "nothing/"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if most := p.MostOpen(); most > limit || p.Seen() != calls {
		t.Fatalf("%d connections at once for %d calls, allowed %d", most, p.Seen(), limit)
	}
}
