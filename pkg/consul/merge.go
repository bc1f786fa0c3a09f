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

// How many requests of a Merger are under way at once, because each needs a connection (P8). Transactions that are more
// than half full are not merged.
const (
	mergedReads  = 4
	mergedWrites = 4
	largeWrites  = 8
)

// mergedParts bounds how many callers share a write. Without an answer, each of them must find out the outcome.
const mergedParts = 16

// Kinds of shared requests; see Merger.OnFailure.
const (
	FailedReads  = "read"
	FailedWrites = "write"
)

// aloneFor is how long transactions are not merged after an unknown outcome. One part may be the cause, and must not
// harm others again.
const aloneFor = 10 * time.Second

// quarantineFor is how long a read is not merged after it failed together with others and then also alone.
const quarantineFor = time.Minute

// Merger merges reads and transactions of callers that would otherwise wait. Each caller gets the result that it would
// have got alone. A Merger is for one token.
//   - If a shared read fails, each part is read again alone.
//   - If Consul refuses one part of a transaction, nothing was written. The other parts are sent again.
//   - If the outcome of a transaction is unknown, it is unknown for all parts. Each owner then bumps its fence once. At
//     most mergedWrites transactions of mergedParts parts are then under way, and nothing is merged for aloneFor.
type Merger struct {
	c *Client
	// OnFailure, if set before the first call, is called for each shared request that failed. It gets how many reads
	// are repeated alone, or how many writes have an unknown outcome.
	OnFailure func(kind string, parts int)

	reads  gatherer[*readPart]
	locks  gatherer[*writePart] // acquisitions of locks
	writes gatherer[*writePart]
	large  gatherer[*writePart]

	mu          sync.Mutex
	alone       time.Time            // writes are not merged before this time
	quarantined map[string]time.Time // by the first key of a read; it is not merged before this time
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

type readPart struct {
	ops   []Op
	level Consistency
	got   *answer // to the whole transaction
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
		m.failed(FailedReads, len(group))
		m.readAlone(ctx, group)
	}
}

// readAlone repeats each read alone. Reads that fail while others succeed are quarantined.
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

func (m *Merger) isQuarantined(p *readPart) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Before(m.quarantined[p.ops[0].Key()])
}

func (m *Merger) failed(kind string, parts int) {
	if m.OnFailure != nil {
		m.OnFailure(kind, parts)
	}
}

// Read is Client.Read. A large read uses at most half of mergedReads at once.
func (m *Merger) Read(ctx context.Context, r Reading, level Consistency) (map[string]Pair, []Pair, error) {
	return r.by(ctx, mergedReads/2, func(ctx context.Context, ops []Op) (*answer, error) {
		p := &readPart{ops: ops, level: level}
		if err := m.reads.do(ctx, p); err != nil {
			return nil, fmt.Errorf("read %d keys from %s: %w", len(ops), ops[0].Key(), err)
		}
		return p.got, p.err
	})
}

type writePart struct {
	ops  []Op
	cost int     // bytes
	got  *answer // to the whole transaction
	err  error
}

// joinsWrites refuses a part that uses a key that another part writes, because their outcomes could not be
// distinguished.
func (m *Merger) joinsWrites(group []*writePart, next *writePart) bool {
	m.mu.Lock()
	alone := time.Now().Before(m.alone)
	m.mu.Unlock()
	if alone {
		return false
	}
	ops, cost := len(next.ops), next.cost
	touched := map[string]bool{} // keys that the group uses; true if the group writes the key
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

// write sends a group until each part was carried out or has its own error.
func (m *Merger) write(ctx context.Context, group []*writePart) {
	for len(group) > 0 {
		ops := slices.Clip(group[0].ops)
		for _, p := range group[1:] {
			ops = append(ops, p.ops...)
		}
		// Each part was checked, and joinsWrites made sure that they fit together.
		got, err := m.c.send(ctx, ops)
		refused, is := errors.AsType[*RefusedError](err)
		if !is || len(group) == 1 {
			if err != nil && len(group) > 1 {
				m.sendAlone()
				m.failed(FailedWrites, len(group))
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

// refuse gives each part its own refusals and returns the other parts. If Consul named no refused operation, all parts
// are refused, because nothing was written.
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

// Commit is Client.Commit.
func (m *Merger) Commit(ctx context.Context, ops []Op) (map[string]uint64, error) {
	got, err := m.commit(ctx, m.writer(ops), &writePart{ops: ops})
	if err != nil {
		return nil, err
	}
	return got.indices(ops), nil
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
		// Not sent, but ErrUnknown, as if the context had ended later.
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return p.got, p.err
}

// AcquireReading is Locks.Acquire with a read in the same transaction, as good as a consistent read under the lock. If
// only the read fails, the fence is valid and the error matches ErrFiltered.
func (m *Merger) AcquireReading(ctx context.Context, key, session string, value func() []byte,
	r Reading,
) (Fence, map[string]Pair, []Pair, error) {
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
