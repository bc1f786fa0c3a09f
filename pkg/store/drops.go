package store

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Drops tells how many copies of a unit's pods have stopped counting as available, as its nodes say (ADR 11).
type Drops struct {
	// Index is that of the unit's key, which every drop moves, and Created that of its creation. Zero: there is none, and
	// nothing is known.
	Index, Created uint64
	Counts         map[string]DropCount // by node; nil when they were not read
}

// DropCount is how many copies on one node have dropped since the counter was made; negative when it cannot be read.
type DropCount struct {
	Created uint64 // index
	Drops   int64
}

// Since returns how many copies have dropped since an earlier listing. It is not known where the unit's key is missing or was
// made anew, or where a counter went back, vanished, was made anew or cannot be read: then what counts must be read again.
func (d Drops) Since(before Drops) (drops int64, known bool) {
	switch {
	case d.Index == 0 || d.Created != before.Created:
		return 0, false
	case d.Index == before.Index:
		return 0, true
	case before.Counts == nil || d.Counts == nil:
		return 0, false
	}
	for node, was := range before.Counts {
		if now, there := d.Counts[node]; !there || now.Created != was.Created {
			return 0, false
		}
	}
	for node, now := range d.Counts {
		was := before.Counts[node].Drops // zero for one that was made by a drop
		if was < 0 || now.Drops < was {
			return 0, false
		}
		drops = min(drops+now.Drops-was, maxDrops)
	}
	return drops, true
}

// dropsOf picks a unit's drops out of what was read.
func (s *db) dropsOf(unit string, found map[string]consul.Pair, below []consul.Pair) Drops {
	own := found[s.keys.Drops.Key(unit)]
	d := Drops{Index: own.ModifyIndex, Created: own.CreateIndex, Counts: map[string]DropCount{}}
	for _, p := range below {
		if node, ours := strings.CutPrefix(p.Key, s.keys.Drops.Below(unit)); ours {
			d.Counts[node] = dropCountOf(p)
		}
	}
	return d
}

// maxDrops is more than a node can have counted: a counter beyond it cannot be read, and its node makes it anew with
// the next drop.
const maxDrops = rc.MaxGeneration

func dropCountOf(p consul.Pair) DropCount {
	n, err := strconv.ParseInt(string(p.Value), 10, 64)
	if err != nil || n > maxDrops {
		n = -1
	}
	return DropCount{Created: p.CreateIndex, Drops: n}
}

// counter is a drop counter as this node knows it.
type counter struct {
	drops int64  // negative: it cannot be read
	index uint64 // zero: there is none
}

// dropOps returns what a report transaction says about drops, besides the realities, and the counters as they are after it.
// Each drop moves the unit's key and raises the node's counter, by cas: a report of unknown outcome that lands late
// must not set it back. The exception is a copy that the node was told to stop, or to have stand by: its owner does not count it any more, which
// the transaction proves by the index of the intent.
func (t *NodeSession) dropOps(ctx context.Context, writes []RealityWrite) ([]consul.Op, map[string]counter, error) {
	var ops []consul.Op
	dropped := map[string]int64{} // by unit
	for i := range writes {
		w := &writes[i]
		switch {
		case !w.drops():
		case w.StopIndex != 0:
			ops = append(ops, consul.CheckIndex(t.keys.Intents.Key(t.name, w.Reality.Identity.String()), w.StopIndex))
		default:
			dropped[rc.UnitOf(w.Reality.RCID)]++
		}
	}
	counters, err := t.counters(ctx, dropped)
	if err != nil {
		return nil, nil, err
	}
	for id, n := range dropped {
		c, key := counters[id], t.keys.Drops.Key(id, t.name)
		index := c.index
		if c.drops < 0 { // made anew, so that nobody compares it with what it was
			ops = append(ops, consul.DeleteCAS(key, index))
			c.drops, index = 0, 0
		}
		c.drops = min(c.drops+n, maxDrops)
		counters[id] = c
		ops = append(ops, consul.Set(t.keys.Drops.Key(id), []byte(NewID())), consul.CAS(key, strconv.AppendInt(nil, c.drops, 10), index))
	}
	return ops, counters, nil
}

// counters returns the node's counters of some units, and reads those that it does not know.
func (t *NodeSession) counters(ctx context.Context, of map[string]int64) (map[string]counter, error) {
	known := make(map[string]counter, len(of))
	var keys []string
	t.mu.Lock()
	for id := range of {
		if c, ok := t.drops[id]; ok {
			known[id] = c
		} else {
			keys = append(keys, t.keys.Drops.Key(id, t.name))
		}
	}
	t.mu.Unlock()
	if len(keys) == 0 {
		return known, nil
	}
	found, err := t.c.GetMany(ctx, keys, consul.Consistent)
	if err != nil {
		return nil, fmt.Errorf("read drop counters: %w", err)
	}
	for id := range of {
		if _, ok := known[id]; ok {
			continue
		}
		known[id] = counter{}
		if p, there := found[t.keys.Drops.Key(id, t.name)]; there {
			known[id] = counter{drops: dropCountOf(p).Drops, index: p.ModifyIndex}
		}
	}
	return known, nil
}

// counted notes what became of the counters of a report: their new indices, or that they must be read again.
func (t *NodeSession) counted(counters map[string]counter, written map[string]uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, c := range counters {
		if c.index = written[t.keys.Drops.Key(id, t.name)]; err != nil || c.index == 0 {
			delete(t.drops, id)
			continue
		}
		t.drops[id] = c
	}
}

// SweepDrops removes the drops of units that have no controller any more, at most so many units', and returns of how many. A node whose
// machine was away for long reports after the unit's last transaction. Where a revision is made meanwhile its owner makes them anew.
func (s *Leader) SweepDrops(ctx context.Context, most int) (int, error) {
	stray := map[string]bool{}
	keys, err := s.c.Children(ctx, s.keys.Drops.Key())
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		stray[strings.TrimSuffix(strings.TrimPrefix(key, s.keys.Drops.Key()), "/")] = true
	}
	ids, err := s.RCs.IDs(ctx) // later: whatever is created meanwhile is among them
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		delete(stray, rc.UnitOf(id))
	}
	removed := 0
	for id := range maps.Keys(stray) {
		if removed == most {
			break
		}
		_, err := s.fenced(ctx, append(s.forgetDrops(id), consul.CheckMissing(s.keys.RCs.Key(id))))
		if err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

func (s *db) forgetDrops(unit string) []consul.Op {
	return []consul.Op{consul.Delete(s.keys.Drops.Key(unit)), consul.DeleteTree(s.keys.Drops.Below(unit))}
}

// DropsOf lists a unit's drops.
func (t *Passes) DropsOf(ctx context.Context, unit string) (Drops, error) {
	found, below, err := t.merged.Read(ctx, consul.Reading{Keys: []string{t.keys.Drops.Key(unit)}, Prefixes: []string{t.keys.Drops.OfUnit(unit)}}, consul.Default)
	if err != nil {
		return Drops{}, err
	}
	return t.dropsOf(unit, found, below), nil
}

// MakeDrops makes the key of a unit's drops where it is missing. Whoever has looked before must look again.
func (s *db) MakeDrops(ctx context.Context, unit string) error {
	return s.create(ctx, consul.CAS(s.keys.Drops.Key(unit), []byte(NewID()), 0))
}

// drops reports whether the write makes a copy that counted as available, as it was reported at Index, one that does not.
// Those of local services count for nobody.
func (w *RealityWrite) drops() bool {
	return w.Index != 0 && !w.Reality.Local() && w.Before.Drops(&w.Reality)
}
