package store

import (
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// PartLoad is what a part takes of a transaction: an upper bound of the bytes of each operation that it makes, by key.
type PartLoad map[string]int

// LoadOf returns what a part takes of a batch of a controller. Nothing is encoded for it: that is left to the commits, which
// are carried out side by side.
func (t *FarmTenure) LoadOf(rcID string, p *Part) PartLoad {
	ops := t.operations(rcID, p)
	l := make(PartLoad, len(ops))
	for i := range ops {
		size := 0
		if ops[i].value != nil {
			size = ops[i].value.Bytes()
		}
		l[ops[i].key] = consul.OpBytes(ops[i].key, size)
	}
	return l
}

// Load is what a batch takes of its transaction while parts are added to it. Parts that depend on the same thing, or write
// the same reservation, make one operation of it, so that operations are counted by their keys.
type Load struct {
	keys       PartLoad
	ops, bytes int
}

// HeadLoad returns what a batch takes before it has any part: its conditions and, in the one that reports, an audit record and
// a status.
func (t *FarmTenure) HeadLoad(b *Batch, reports bool) Load {
	head := t.head(b)
	l := Load{keys: PartLoad{}, ops: len(head), bytes: consul.TxnBytes(head)}
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
	for key, bytes := range part {
		known, again := l.keys[key]
		if !again {
			l.ops++
		}
		l.bytes += bytes - known
		l.keys[key] = bytes
	}
}

// Takes reports whether a part fits besides what is there, and as many more like it as make so many altogether.
func (l *Load) Takes(part PartLoad, many int) bool {
	ops, bytes := 0, 0
	for key, size := range part {
		known, again := l.keys[key]
		if !again {
			ops++
		}
		bytes += size - known
	}
	return l.ops+many*ops <= consul.MaxTxnOps && l.bytes+many*bytes <= consul.MaxTxnBytes
}
