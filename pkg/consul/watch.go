package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// WatchOptions tune one standing query. Zero values mean the defaults.
type WatchOptions struct {
	Wait    time.Duration   // longest time the server keeps the query open; DefaultWait
	OnError func(err error) // told about each failed poll, before the retry; ErrFiltered among them
	// Released says that the keys are locks which their sessions leave behind when they end: each counts the sessions that have
	// had it. That tells one of an older store that somebody has taken since.
	Released bool
	// Own says besides that nobody but the watcher makes the keys: one that was made anew, and not under the session that
	// held it before, is of an older store. For who watches the keys of others, somebody may have removed one.
	Own bool
	// Next, if it is not nil, is in place of a standing query: whenever it returns the keys are read, consistently, and delivered also where
	// nothing has changed.
	Next func(ctx context.Context) error
}

// DefaultWait is how long a server keeps a standing query open.
const DefaultWait = 5 * time.Minute

// deletionsKept is for how long after the last good look Consul surely remembers each deletion since then. Its
// tombstones live 15 minutes, which no option changes (TombstoneTTL in Consul's agent/consul/config.go). One minute is
// left for the time between a question and the look at its answer.
const deletionsKept = 14 * time.Minute

// The pause between two polls of one watch. It grows while changes come without end, so that a storm is read in few
// large snapshots; a lone change waits for nothing.
const (
	minGap = 20 * time.Millisecond
	maxGap = 100 * time.Millisecond
	// probeWait is how long the first wait after a change lasts. A store that went back in time between two polls does
	// not wake a wait on the index from before; only its end shows. It keeps that rare case to a few seconds without
	// making idle watches busy.
	probeWait = 3 * time.Second
	// quietAfter is how long nothing may have come for the next change to count as a lone one.
	quietAfter = time.Second
)

// Snapshot is everything below a prefix at one index.
type Snapshot struct {
	Pairs []Pair
	Index uint64
	// WentBack means that the store went back in time since the last snapshot, as after restoring an older one. That may be
	// one which an earlier watch of this client delivered.
	WentBack bool
}

// WatchPrefix delivers the keys below a prefix: at once, and again after each change. Deliveries are whole and in order;
// a slow receiver gets the newest. It returns the context's cause, or the error that deliver returned. The rules for
// Consul's index live here and nowhere else:
//   - a reply whose index did not advance makes the next query start from zero, because after a restore a waiting
//     query answers with the old index and the next wait would block on it;
//   - a store that went back in time is confirmed by a consistent read, because a new leader may be behind, and
//     reported in the snapshot;
//   - the first wait after a change is short, because a store that goes back between two polls wakes nobody;
//   - an index that moved over the same keys and versions is no change: an empty prefix moves with the whole store;
//   - an answer that ACLs filtered is an error, never an empty world;
//   - a watch goes on from what the last one of this client has seen there: a store that goes back takes the session with
//     it whose role was watching, and the next role would find a world that looks like any other.
func (c *Client) WatchPrefix(ctx context.Context, prefix string, o WatchOptions, deliver func(Snapshot) error) error {
	return c.watch(ctx, "below "+prefix, o, func(opts *api.QueryOptions) ([]Pair, uint64, error) { //nolint:contextcheck // the options bear it
		return c.list(prefix, opts)
	}, deliver)
}

// WatchKey is WatchPrefix for one key; the snapshot holds one pair, or none when the key is missing.
func (c *Client) WatchKey(ctx context.Context, key string, o WatchOptions, deliver func(Snapshot) error) error {
	return c.watch(ctx, key, o, func(opts *api.QueryOptions) ([]Pair, uint64, error) {
		pair, meta, err := c.api.KV().Get(key, opts)
		switch {
		case err != nil:
			return nil, 0, fmt.Errorf("read key %s: %w", key, readError(err))
		case pair == nil && c.hidden(meta):
			return nil, 0, fmt.Errorf("read key %s: %w", key, ErrFiltered)
		case pair == nil:
			return nil, meta.LastIndex, nil
		default:
			return []Pair{pairOf(pair)}, meta.LastIndex, nil
		}
	}, deliver)
}

type poll func(opts *api.QueryOptions) ([]Pair, uint64, error)

func (c *Client) watch(ctx context.Context, what string, o WatchOptions, read poll, deliver func(Snapshot) error) error {
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	seen, epoch := c.past.recall(what)
	seen.released, seen.own = o.Released, o.Own
	defer func() { c.past.keep(what, seen, epoch) }()
	level, pulled := Default, o.Next != nil
	if pulled {
		level = Consistent
	}
	var (
		first = true
		index uint64 // to wait on; zero answers at once
		fails int
		gap   gapper
		open  = o.Wait // how long the server keeps the next query open
	)
	for ctx.Err() == nil {
		asked := c.past.now()
		pairs, next, err := c.pollOnce(ctx, read, index, open, level)
		if err == nil && seen.wentBack(pairs, next, c.past.now()) {
			pairs, next, err = c.pollOnce(ctx, read, 0, o.Wait, Consistent)
		}
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			if o.OnError != nil {
				o.OnError(err)
			}
			index = 0
			fails++
			if err := wait.Pause(ctx, retryPause(fails)); err != nil {
				return err
			}
			continue
		}
		// The present is known and the next query waits. Nothing may pass unseen in between: see probeWait.
		idle := time.Duration(0)
		if index > 0 {
			idle = minGap
		}
		if moved := first || next != seen.index; moved || fails > 0 || pulled {
			snap := Snapshot{Pairs: pairs, Index: next, WentBack: seen.wentBack(pairs, next, c.past.now())}
			// After failures the receiver's world may be another one: deliver even what looks the same.
			changed := first || fails > 0 || pulled || !seen.same(pairs)
			first = false
			var err error
			if changed {
				err = deliver(snap)
			}
			if errors.Is(err, ErrUnanswered) {
				return err // seen is from before
			}
			if snap.WentBack {
				seen, epoch = history{released: o.Released, own: o.Own}, c.past.forget() // what was seen before is of another history
			}
			seen = seen.remember(pairs, next)
			seen.at = asked
			if err != nil {
				return err
			}
			idle, open = gap.next(), min(o.Wait, probeWait)
		} else if index > 0 {
			open = o.Wait
		}
		seen.at = asked
		fails = 0
		if pulled {
			if err := o.Next(ctx); err != nil {
				return err
			}
			continue
		}
		if next > index {
			index = next
		} else {
			index = 0
		}
		if err := wait.Pause(ctx, idle); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// pollOnce runs one query. The client gives up a while after the server should have answered.
func (c *Client) pollOnce(ctx context.Context, read poll, index uint64, wait time.Duration, level Consistency) ([]Pair, uint64, error) {
	// Consul adds up to a sixteenth of the wait as jitter: https://developer.hashicorp.com/consul/api-docs/features/blocking
	limit := c.timeout
	if index > 0 {
		limit += wait + wait/16
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	opts := level.options(ctx)
	opts.WaitIndex, opts.WaitTime = index, wait
	pairs, next, err := read(opts)
	if err == nil && next == 0 {
		// Nothing could be waited on. Consul's answers have one; those of something in between may not.
		err = errors.New("the answer bears no index")
	}
	return pairs, next, err
}

// past is what the watches of a client have seen, by what they watch.
type past struct {
	clock func() time.Duration // time since the machine's start, time asleep included; nil: sinceStart

	mu    sync.Mutex
	epoch int // of the store: another one since it went back
	seen  map[string]history
}

// now reads the clock by which looks are timed.
func (p *past) now() time.Duration {
	if p.clock != nil {
		return p.clock()
	}
	return sinceStart()
}

// recall returns what was seen last, and the epoch.
func (p *past) recall(what string) (history, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.seen[what]
	h.locks = maps.Clone(h.locks) // several may watch the same
	return h, p.epoch
}

// keep remembers what a watch has seen that began, or saw the store go back, in an epoch.
func (p *past) keep(what string, h history, epoch int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !h.valid || epoch != p.epoch {
		return
	}
	if p.seen == nil {
		p.seen = map[string]history{}
	}
	p.seen[what] = h
}

// forget begins another epoch, so that one return in time is reported once. What is watched still is not kept.
func (p *past) forget() (epoch int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch++
	clear(p.seen)
	return p.epoch
}

// history is what the last delivered snapshot looked like.
type history struct {
	valid    bool
	index    uint64
	at       time.Duration     // when the last good look was asked for, by past.clock; the store was like this then or later
	keys     map[string]uint64 // modify index by key
	released bool              // see WatchOptions.Released
	own      bool              // see WatchOptions.Own
	locks    map[string]taken  // of released ones, also of keys that have vanished
}

// taken is who took a lock last, how many had by then, and when the key was made.
type taken struct {
	session string
	count   uint64
	made    uint64
}

// remember returns the history after one more snapshot.
func (h history) remember(pairs []Pair, index uint64) history {
	next := history{valid: true, index: index, keys: make(map[string]uint64, len(pairs)), released: h.released, own: h.own, locks: h.locks}
	if next.released && next.locks == nil {
		next.locks = map[string]taken{}
	}
	for _, p := range pairs {
		next.keys[p.Key] = p.ModifyIndex
		if next.released && (p.Session != "" || next.locks[p.Key].made != p.CreateIndex) {
			next.locks[p.Key] = taken{p.Session, p.LockIndex, p.CreateIndex}
		}
	}
	return next
}

// same reports whether the snapshot holds the keys and versions remembered.
func (h history) same(pairs []Pair) bool {
	if !h.valid || len(pairs) != len(h.keys) {
		return false
	}
	for _, p := range pairs {
		if h.keys[p.Key] != p.ModifyIndex {
			return false
		}
	}
	return true
}

// wentBack reports whether the snapshot is of an earlier time than the one remembered. The index alone cannot tell:
// it also goes back when Consul forgets a deletion (tombstones live 15 minutes), and after a restore the next write
// carries it ahead again. What cannot happen in one history is a version that was not there before and yet is not newer
// than the index then, or a deletion together with a lower index, or a lock that another session has taken without being
// one more to have it. A lock that was removed and made again since counts from the beginning; whose it is knows better
// whether that can be.
//
// A deletion together with a lower index proves nothing after a long time without a look: Consul forgets the deletion,
// and the index falls to that of the newest key that is left. So this sign counts only for deletionsKept after the last
// look.
func (h history) wentBack(pairs []Pair, index uint64, now time.Duration) bool {
	if !h.valid {
		return false
	}
	for _, p := range pairs {
		if p.ModifyIndex != h.keys[p.Key] && p.ModifyIndex <= h.index {
			return true
		}
		last, known := h.locks[p.Key]
		madeAnew := p.CreateIndex != last.made && p.CreateIndex > h.index
		if known && p.Session != "" && p.Session != last.session && p.LockIndex <= last.count && (h.own || !madeAnew) {
			return true
		}
	}
	return index < h.index && len(pairs) != len(h.keys) && now-h.at < deletionsKept
}

// gapper paces deliveries.
type gapper struct {
	gap  time.Duration
	last time.Time
}

// next returns how long to wait after a delivery.
func (g *gapper) next() time.Duration {
	now := time.Now()
	if now.Sub(g.last) > quietAfter {
		g.gap = minGap
	} else {
		g.gap = min(2*g.gap, maxGap)
	}
	g.last = now
	return g.gap
}

// retryPause grows to about five seconds and is spread by half, so that many watches do not come back together.
func retryPause(fails int) time.Duration {
	base := min(100*time.Millisecond<<min(fails-1, 6), 5*time.Second)
	return base/2 + rand.N(base)
}
