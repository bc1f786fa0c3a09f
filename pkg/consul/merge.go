package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// How many requests of a Merger are under way at once. Few are enough, and bound its connections (P8): what does not find
// one free is sent with others. Transactions that are more than half full go alone, as many as Consul can make use of.
const (
	mergedReads  = 4
	mergedWrites = 4
	largeWrites  = 8
)

// mergedParts is how many callers share a write: what became of it without an answer, each of them has to find out.
const mergedParts = 16

// Kinds of requests that callers share; see Merger.Spoiled.
const (
	SpoiledReads  = "read"
	SpoiledWrites = "write"
)

// aloneFor is how long transactions are not merged after one with several parts had an unknown outcome: if a part is to
// blame, the others must not suffer again.
const aloneFor = 10 * time.Second

// quarantineFor is how long a read that failed alone too shares no request.
const quarantineFor = time.Minute

// Merger sends reads and transactions of many callers together where they would have to wait for each other. Each caller
// sees what it would have seen alone: a read that fails is done again alone by each of those that shared it; a refusal of one part
// does not concern the others, which are sent again, because nothing was written; an unknown outcome concerns them all, because all
// may have been written. Each owner of such a part bumps its fence, once: at the most mergedWrites transactions of mergedParts
// parts are under way when the first of them has no answer, and then nothing is merged for aloneFor. It serves one token.
type Merger struct {
	c *Client
	// Spoiled, if set before the first call, is told of each request that failed and was shared: how many reads are done again
	// alone, or of how many writes the outcome is unknown.
	Spoiled func(kind string, parts int)

	reads  gatherer[*readPart]
	locks  gatherer[*writePart] // acquisitions
	writes gatherer[*writePart]
	large  gatherer[*writePart]

	mu          sync.Mutex
	alone       time.Time            // until then writes are
	quarantined map[string]time.Time // reads that are until then, by their first key
}

// NewMerger returns a merger.
func (c *Client) NewMerger() *Merger {
	m := &Merger{c: c}
	m.reads = gatherer[*readPart]{most: mergedReads, joins: m.joinsReads, run: m.read}
	m.locks = gatherer[*writePart]{most: mergedWrites, joins: m.joinsWrites, run: m.write}
	m.writes = gatherer[*writePart]{most: mergedWrites, joins: m.joinsWrites, run: m.write}
	m.large = gatherer[*writePart]{most: largeWrites, run: m.write}
	return m
}

// readPart is what one caller reads.
type readPart struct {
	ops   []Op
	level Consistency
	got   *answer // of the whole transaction
	err   error
}

func (m *Merger) joinsReads(group []*readPart, next *readPart) bool {
	if m.isQuarantined(group[0]) || m.isQuarantined(next) {
		return false
	}
	ops := len(next.ops)
	for _, p := range group {
		ops += len(p.ops)
	}
	return ops <= MaxTxnOps && group[0].level == next.level
}

func (m *Merger) read(ctx context.Context, group []*readPart) {
	var ops []Op
	for _, p := range group {
		ops = append(ops, p.ops...)
	}
	got, err := m.c.readTxn(ctx, ops, group[0].level)
	for _, p := range group {
		p.got, p.err = got, err
	}
	if err != nil && len(group) > 1 && ctx.Err() == nil {
		m.spoiled(SpoiledReads, len(group))
		m.readAlone(ctx, group)
	}
}

// readAlone does the reads of a group again, each alone. Those that fail again, while others do not, share no request for a while.
func (m *Merger) readAlone(ctx context.Context, group []*readPart) {
	var all errgroup.Group
	all.SetLimit(readsAtOnce)
	for _, p := range group {
		all.Go(func() error {
			p.got, p.err = m.c.readTxn(ctx, p.ops, p.level)
			return nil
		})
	}
	_ = all.Wait() // the errors are in the parts
	works := slices.ContainsFunc(group, func(p *readPart) bool { return p.err == nil })
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(m.quarantined, func(_ string, until time.Time) bool { return now.After(until) })
	for _, p := range group {
		if works && p.err != nil {
			if m.quarantined == nil {
				m.quarantined = map[string]time.Time{}
			}
			m.quarantined[p.ops[0].Key()] = now.Add(quarantineFor)
		}
	}
}

// isQuarantined reports whether a read is to share no request.
func (m *Merger) isQuarantined(p *readPart) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Before(m.quarantined[p.ops[0].Key()])
}

func (m *Merger) spoiled(kind string, parts int) {
	if m.Spoiled != nil {
		m.Spoiled(kind, parts)
	}
}

// Read is like Client.Read. One that needs many transactions leaves half of the requests to others.
func (m *Merger) Read(ctx context.Context, r Reading, level Consistency) (map[string]Pair, []Pair, error) {
	return r.by(ctx, mergedReads/2, func(ctx context.Context, ops []Op) (*answer, error) {
		p := &readPart{ops: ops, level: level}
		if err := m.reads.do(ctx, p); err != nil {
			return nil, fmt.Errorf("read %d keys from %s: %w", len(ops), ops[0].Key(), err)
		}
		return p.got, p.err
	})
}

// writePart is what one caller writes.
type writePart struct {
	ops   []Op
	cost  int     // bytes
	blind bool    // only whether it was carried out counts
	got   *answer // of the whole transaction; of no use if all of its parts are blind
	err   error
}

// joinsWrites keeps apart what could not be told from each other: parts that touch a key that another one writes.
func (m *Merger) joinsWrites(group []*writePart, next *writePart) bool {
	m.mu.Lock()
	alone := time.Now().Before(m.alone)
	m.mu.Unlock()
	if alone {
		return false
	}
	ops, cost := len(next.ops), next.cost
	touched := map[string]bool{} // and whether it is written
	for _, p := range group {
		ops, cost = ops+len(p.ops), cost+p.cost
		for i := range p.ops {
			touched[p.ops[i].Key()] = touched[p.ops[i].Key()] || p.ops[i].writes()
		}
	}
	if ops > MaxTxnOps || cost > MaxTxnBytes || len(group) >= mergedParts {
		return false
	}
	for i := range next.ops {
		if written, known := touched[next.ops[i].Key()]; known && (written || next.ops[i].writes()) {
			return false
		}
	}
	return true
}

// write sends a group until each part was carried out or has an error of its own.
func (m *Merger) write(ctx context.Context, group []*writePart) {
	for len(group) > 0 {
		ops := slices.Clip(group[0].ops)
		for _, p := range group[1:] {
			ops = append(ops, p.ops...)
		}
		wanted := slices.ContainsFunc(group, func(p *writePart) bool { return !p.blind })
		got, err := m.c.send(ctx, ops, !wanted) // each part was checked, and joinsWrites has seen to it that they fit together
		refused, is := errors.AsType[*RefusedError](err)
		if !is || len(group) == 1 {
			if err != nil && len(group) > 1 {
				m.sendAlone()
				m.spoiled(SpoiledWrites, len(group))
			}
			for _, p := range group {
				p.got, p.err = got, err
			}
			return
		}
		group = refuse(group, refused)
	}
}

func (m *Merger) sendAlone() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alone = time.Now().Add(aloneFor)
}

// refuse gives each part its own refusals and returns those parts that have none. If no part has any, as when Consul names
// no operation, all are refused: nothing was written.
func refuse(group []*writePart, refused *RefusedError) (rest []*writePart) {
	first := 0
	for _, p := range group {
		var own []Failure
		for _, f := range refused.Failures {
			if f.Op >= first && f.Op < first+len(p.ops) {
				own = append(own, Failure{Op: f.Op - first, Key: f.Key, What: f.What})
			}
		}
		first += len(p.ops)
		if len(own) > 0 {
			p.err = &RefusedError{Failures: own}
		} else {
			rest = append(rest, p)
		}
	}
	if len(rest) == len(group) {
		for _, p := range rest {
			p.err = refused
		}
		return nil
	}
	return rest
}

// Commit is like Client.Commit.
func (m *Merger) Commit(ctx context.Context, ops []Op) (map[string]uint64, error) {
	got, err := m.commit(ctx, m.writer(ops), &writePart{ops: ops})
	if err != nil {
		return nil, err
	}
	return got.indices(ops), nil
}

// CommitBlind is Commit for who does not want to know the indices: the answer is not read.
func (m *Merger) CommitBlind(ctx context.Context, ops []Op) error {
	_, err := m.commit(ctx, m.writer(ops), &writePart{ops: ops, blind: true})
	return err
}

func (m *Merger) writer(ops []Op) *gatherer[*writePart] {
	if len(ops) > MaxTxnOps/2 {
		return &m.large
	}
	return &m.writes
}

func (m *Merger) commit(ctx context.Context, by *gatherer[*writePart], p *writePart) (*answer, error) {
	var err error
	if p.cost, err = check(p.ops); err != nil {
		return nil, err
	}
	if err := by.do(ctx, p); err != nil {
		// It was not sent. But a caller that left is told the same whenever it leaves.
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return p.got, p.err
}

// AcquireReading is Client.Acquire, and reads at the moment of the acquisition. What it read is as good as a consistent read
// under the lock. When only the reading fails, the fence is valid and the error matches ErrFiltered.
func (m *Merger) AcquireReading(ctx context.Context, key, session string, value func() []byte, r Reading) (Fence, map[string]Pair, []Pair, error) {
	send := func(ctx context.Context, ops []Op) (*answer, error) {
		return m.commit(ctx, &m.locks, &writePart{ops: ops})
	}
	f, got, err := m.c.Locks.acquire(ctx, send, key, session, value, r.ops())
	if err != nil {
		return f, nil, nil, err
	}
	found, below, err := r.found(got)
	return f, found, below, err
}
