package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/ownerless"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Drops counts, for each node, how many copies of a unit's pods have dropped. See docs/design/minimum.md.
type Drops struct {
	// Index is the modify index of the unit's key, which changes with every drop. Created is its create index. Both
	// zero: there is no key, and nothing is known about drops.
	Index, Created uint64
	Counts         map[string]DropCount // by node; nil if they were not read
}

// DropCount is a node's counter of drops.
type DropCount struct {
	Created uint64 // index
	Drops   int64
}

// Since returns how many copies have dropped since an earlier listing. known is false if the unit's key or a counter is
// missing, was made again, went back, or cannot be read. Then the caller must read the available copies again.
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
		was := before.Counts[node].Drops // zero if the counter did not exist before
		if was < 0 || now.Drops < was {
			return 0, false
		}
		drops = min(drops+now.Drops-was, maxDrops)
	}
	return drops, true
}

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

// maxDrops is more than a node can count. A node makes a higher counter again with the next drop.
const maxDrops = rc.MaxGeneration

func dropCountOf(p consul.Pair) DropCount {
	n, err := strconv.ParseInt(string(p.Value), 10, 64)
	if err != nil || n > maxDrops {
		n = -1
	}
	return DropCount{Created: p.CreateIndex, Drops: n}
}

type counter struct {
	drops int64  // negative: it cannot be read
	index uint64 // zero: there is none
}

// dropOps returns the operations for the drops in a report, and the counters after them. Each drop changes the unit's
// key, and increases the node's counter by cas. Without cas, a report with an unknown outcome could land late and set
// the counter back.
//
// The owner does not count on a copy whose intent is `stopped` or `standby`, so its end is no drop. Then the
// transaction depends on the index of the intent.
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
		// Make the counter again. A reader sees a new create index, and does not compare the values.
		if c.drops < 0 {
			ops = append(ops, consul.DeleteCAS(key, index))
			c.drops, index = 0, 0
		}
		c.drops = min(c.drops+n, maxDrops)
		counters[id] = c
		ops = append(ops, consul.Set(t.keys.Drops.Key(id), []byte(NewID())),
			consul.CAS(key, strconv.AppendInt(nil, c.drops, 10), index))
	}
	return ops, counters, nil
}

// counters reads the node's counters that this program does not know.
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

// counted keeps the counters that a report wrote. After an error, the next report reads them again.
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

// SweepDrops removes the drops of at most `most` units without a controller, and returns how many. A node can write
// them after the unit's last transaction, for example after its machine was off.
func (l *Leader) SweepDrops(ctx context.Context, most int) (int, error) {
	keys, err := l.c.Children(ctx, l.keys.Drops.Key())
	if err != nil {
		return 0, err
	}
	ids, err := l.RCs.IDs(ctx) // after the drops, so that controllers that are created meanwhile are known
	if err != nil {
		return 0, err
	}
	known := ownerless.Known{}
	known.Note(ownerless.Each(ownerless.Controller, rc.UnitsOf(ids))...)
	units := field.Each(keys, l.keys.Drops.first)
	slices.Sort(units)
	stray := ownerless.Scan(ownerless.Controller, known, ownerless.Each(ownerless.Drops, slices.Compact(units)))
	for i, f := range stray[:min(len(stray), most)] {
		_, err := l.fenced(ctx, append(l.forgetDrops(f.About), consul.CheckMissing(l.keys.RCs.Key(f.About))))
		if err != nil {
			return i, err
		}
	}
	return min(len(stray), most), nil
}

func (s *db) forgetDrops(unit string) []consul.Op {
	return []consul.Op{consul.Delete(s.keys.Drops.Key(unit)), consul.DeleteTree(s.keys.Drops.Below(unit))}
}

// DropsOf lists a unit's drops.
func (p *Passes) DropsOf(ctx context.Context, unit string) (Drops, error) {
	found, below, err := p.merged.Read(ctx,
		consul.Reading{
			Keys:     []string{p.keys.Drops.Key(unit)},
			Prefixes: []string{p.keys.Drops.OfUnit(unit)},
		}, consul.Default)
	if err != nil {
		return Drops{}, err
	}
	return p.dropsOf(unit, found, below), nil
}

// MakeDrops makes a missing key of a unit's drops. A caller that read the unit before must read it again.
func (s *db) MakeDrops(ctx context.Context, unit string) error {
	return s.create(ctx, consul.CAS(s.keys.Drops.Key(unit), []byte(NewID()), 0))
}

// drops reports whether an available copy stops being available. Local services have no minimum, so no drops.
func (r *RealityWrite) drops() bool {
	return r.Index != 0 && !r.Reality.Local() && r.Before.Drops(&r.Reality)
}
