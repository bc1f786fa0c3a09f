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
	mu         sync.Mutex
	young, old map[string]decoded // by key; what was not asked for while as much as may be young came goes
	size       int                // of the keys and bytes of the young ones
}

type decoded struct {
	from  []byte
	value any // points to what nobody else has
}

// memoBytes is how many bytes of records may be young. With the old ones, and what was decoded, that is four to six times as much memory.
const memoBytes = 2 << 20

// recall is decode for who reads the same records again and again. Whoever gets a value may change it.
func recall[T any](s *Store, p consul.Pair) (Rec[T], error) {
	if known, ok := s.memo.find(p).(*T); ok {
		return Rec[T]{Value: field.Copy(*known), Index: p.ModifyIndex, Session: p.Session}, nil
	}
	rec, err := decode[T](s.keys, p)
	if err == nil {
		known := field.Copy(rec.Value)
		s.memo.keep(p.Key, decoded{p.Value, &known})
	}
	return rec, err
}

// find returns what a pair was decoded to, nil if that is not known.
func (m *memo) find(p consul.Pair) any {
	m.mu.Lock()
	d, young := m.young[p.Key]
	if !young {
		d = m.old[p.Key]
	}
	m.mu.Unlock()
	if !bytes.Equal(d.from, p.Value) {
		return nil
	}
	if !young && d.value != nil {
		m.keep(p.Key, d)
	}
	return d.value
}

func (m *memo) keep(key string, d decoded) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.size += len(key) + len(d.from); m.young == nil || m.size > memoBytes {
		m.young, m.old, m.size = map[string]decoded{}, m.young, len(key)+len(d.from)
	}
	m.young[key] = d
}
