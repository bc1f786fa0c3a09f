package store

import (
	"bytes"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
)

// memo remembers records as they were decoded: most of what a farm reads is what it has read before. Whether it is, the bytes tell and nothing
// else, because an older store may have other records at the same indices.
type memo struct {
	mu    sync.Mutex
	known map[string]decoded // by key
	size  int                // bytes that have come since it was empty
}

type decoded struct {
	from  []byte
	value any // points to what nobody else has
}

// memoBytes is how many bytes of keys and records come before it is emptied. With what was decoded that is two to three times as much memory.
const memoBytes = 4 << 20

// recall is decode for who reads the same records again and again. Whoever gets a value may change it.
func (r *Records[T]) recall(p consul.Pair) (Rec[T], error) {
	memo := &r.db.memo
	memo.mu.Lock()
	was := memo.known[p.Key]
	memo.mu.Unlock()
	if value, ok := was.value.(*T); ok && bytes.Equal(was.from, p.Value) {
		return Rec[T]{Value: field.Copy(*value), Index: p.ModifyIndex, Session: p.Session}, nil
	}
	rec, err := r.decode(p)
	if err != nil {
		return rec, err
	}
	own, size := field.Copy(rec.Value), len(p.Key)+len(p.Value)
	memo.mu.Lock()
	defer memo.mu.Unlock()
	if memo.size += size; memo.known == nil || memo.size > memoBytes {
		memo.known, memo.size = map[string]decoded{}, size
	}
	memo.known[p.Key] = decoded{p.Value, &own}
	return rec, nil
}
