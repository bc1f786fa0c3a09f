package store

import (
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// PartLoad is what a part takes of a transaction. It is an upper bound of its bytes.
type PartLoad struct {
	ops, bytes int        // of operations that no other part has
	shared     []keyBytes // of those that another part may have, too
}

// keyBytes is what an operation on a key takes.
type keyBytes struct {
	key   string
	bytes int
}

// LoadOf returns what a part takes of a batch of a controller. Nothing is encoded for it: that is left to the commits, which
// are carried out side by side.
func (t *FarmTenure) LoadOf(rcID string, p *Part) PartLoad {
	l := PartLoad{}
	for _, o := range t.operations(rcID, p) {
		size := 0
		if o.value != nil {
			size = o.value.Bytes()
		}
		bytes := consul.OpBytes(o.key, size)
		if o.own {
			l.ops, l.bytes = l.ops+1, l.bytes+bytes
		} else {
			l.shared = append(l.shared, keyBytes{o.key, bytes})
		}
	}
	return l
}

// Ops returns how many operations the part takes by itself.
func (l PartLoad) Ops() int { return l.ops + len(l.shared) }

// Load is what a batch takes of its transaction while parts are added to it. Parts that depend on the same thing, or write
// the same reservation, make one operation of it, so that those operations are counted by their keys.
type Load struct {
	shared     map[string]int // bytes by key
	ops, bytes int
}

// HeadLoad returns what a batch takes before it has any part: its conditions and, in the one that reports, an audit record and
// a status.
func (t *FarmTenure) HeadLoad(b *Batch, reports bool) Load {
	head := t.head(b)
	l := Load{shared: map[string]int{}, ops: len(head), bytes: consul.TxnBytes(head)}
	if reports {
		l.ops += 2
		if b.Rollout != "" {
			l.ops++
			l.bytes += consul.OpBytes(t.keys.RolloutBell(b.Rollout), ulidBytes)
		}
		l.bytes += consul.OpBytes(t.keys.Audit(NewID()), MaxAuditBytes) + consul.OpBytes(t.keys.Status(b.RCID), rc.MaxStatusBytes)
	}
	return l
}

// Add counts a part.
func (l *Load) Add(part PartLoad) {
	ops, bytes := l.with(part)
	l.ops, l.bytes = l.ops+ops, l.bytes+bytes
	for _, s := range part.shared {
		l.shared[s.key] = s.bytes
	}
}

// Takes reports whether a part fits besides what is there, and as many more like it as make so many altogether.
func (l *Load) Takes(part PartLoad, many int) bool {
	ops, bytes := l.with(part)
	return l.ops+many*ops <= consul.MaxTxnOps && l.bytes+many*bytes <= consul.MaxTxnBytes
}

// with returns what a part adds.
func (l *Load) with(part PartLoad) (ops, bytes int) {
	ops, bytes = part.ops, part.bytes
	for _, s := range part.shared {
		known, again := l.shared[s.key]
		if !again {
			ops++
		}
		bytes += s.bytes - known
	}
	return ops, bytes
}
