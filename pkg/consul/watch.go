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

// WatchOptions configures one watch.
type WatchOptions struct {
	Wait    time.Duration   // longest time that the server keeps a query open; zero: DefaultWait
	OnError func(err error) // called after each failed poll, also for ErrFiltered, before the retry
	// Released: the keys are locks that are kept when their session ends. Consul counts how often a session has taken a
	// key. By this count the watch sees that a lock is from an older store, even if another session has taken it since.
	Released bool
	// Own: also, only the watching daemon makes these keys. If a key was made again, but not under its former session,
	// it is from an older store.
	Own bool
	// Next, if set, replaces the blocking query. Each time it returns, the watch reads consistently, and delivers even
	// if nothing has changed.
	Next func(ctx context.Context) error
}

// DefaultWait is how long a server keeps a blocking query open.
const DefaultWait = 5 * time.Minute

// deletionsKept is how long Consul certainly remembers a deletion. Its tombstones live for 15 minutes, which no option
// changes (TombstoneTTL in Consul's agent/consul/config.go). One minute is for the time from query to evaluation.
const deletionsKept = 14 * time.Minute

// The pause between two polls of one watch. It grows while changes keep coming, so that few large snapshots contain
// many changes.
const (
	minGap = 20 * time.Millisecond
	maxGap = 100 * time.Millisecond
	// probeWait is the first wait after a change. If the store goes back between two polls, a query that waits on the
	// former index does not end, and the watch notices the return only after the wait.
	probeWait = 3 * time.Second
	// quietAfter is the time without a change after which the pauses begin again at minGap.
	quietAfter = time.Second
)

// Snapshot is everything below a prefix at one index.
type Snapshot struct {
	Pairs []Pair
	Index uint64
	// WentBack: the store went back in time since the last snapshot, perhaps of an earlier watch of this client.
	WentBack bool
}

// WatchPrefix delivers the keys below a prefix at once and after each change, all keys each time, in order. A slow
// receiver misses deliveries, but gets the newest. WatchPrefix returns the context's cause, or the error of deliver.
// All rules for Consul's index are here:
//   - If the index of a reply did not advance, the next query starts from zero. After a restore, a waiting query
//     returns an old index, and the next query would wait on it too long.
//   - If the store seems to have gone back in time, a consistent read checks it, because a new leader of Consul may be
//     behind for a moment.
//   - The first wait after a change is short: see probeWait.
//   - A higher index with the same keys and versions is no change, because the index of an empty prefix moves with the
//     whole store.
//   - An answer that ACLs filtered is an error, never an empty list.
//   - A watch starts with what the last watch of this client has seen below the same prefix. When the store goes back,
//     the session of the role that watched may vanish too, and the next role would not notice the restore.
func (c *Client) WatchPrefix(ctx context.Context, prefix string, o WatchOptions, deliver func(Snapshot) error) error {
	//nolint:contextcheck // the options have it
	read := func(opts *api.QueryOptions) ([]Pair, uint64, error) { return c.list(prefix, opts) }
	return c.watch(ctx, "below "+prefix, o, read, deliver)
}

// WatchKey is WatchPrefix for one key. A missing key is no pair.
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

func (c *Client) watch(ctx context.Context, what string, o WatchOptions, read poll,
	deliver func(Snapshot) error,
) error {
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
		index uint64 // the query waits until the index is higher; zero: it does not wait
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
		// The next query waits for changes after this state. For changes that it misses see probeWait.
		idle := time.Duration(0)
		if index > 0 {
			idle = minGap
		}
		if moved := first || next != seen.index; moved || fails > 0 || pulled {
			snap := Snapshot{Pairs: pairs, Index: next, WentBack: seen.wentBack(pairs, next, c.past.now())}
			// After failures the receiver may have lost its state, so deliver the same pairs, too.
			changed := first || fails > 0 || pulled || !seen.same(pairs)
			first = false
			var err error
			if changed {
				err = deliver(snap)
			}
			if errors.Is(err, ErrUnanswered) {
				return err // seen is unchanged, so the next watch reports WentBack again
			}
			if snap.WentBack {
				// The watches have seen another history.
				seen, epoch = history{released: o.Released, own: o.Own}, c.past.forget()
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

// pollOnce runs one query. The client gives up some time after the server should have answered.
func (c *Client) pollOnce(ctx context.Context, read poll, index uint64, wait time.Duration,
	level Consistency,
) ([]Pair, uint64, error) {
	// Consul adds up to a sixteenth of the wait as jitter:
	// https://developer.hashicorp.com/consul/api-docs/features/blocking
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
		// The next query could not wait on index zero. The answer of a proxy may have none.
		err = errors.New("the answer bears no index")
	}
	return pairs, next, err
}

type past struct {
	clock func() time.Duration // time since the machine's boot, including time asleep; nil: sinceStart

	mu    sync.Mutex
	epoch int // number of the store's history; grows when the store went back in time
	seen  map[string]history
}

func (p *past) now() time.Duration {
	if p.clock != nil {
		return p.clock()
	}
	return sinceStart()
}

// recall returns what the last watch of a prefix or key has seen, and the epoch.
func (p *past) recall(what string) (history, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.seen[what]
	h.locks = maps.Clone(h.locks) // several watches may watch the same prefix
	return h, p.epoch
}

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

// forget begins another epoch, so that later watches do not report the same restore again.
func (p *past) forget() (epoch int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch++
	clear(p.seen)
	return p.epoch
}

// history is what a watch keeps of its last delivered snapshot.
type history struct {
	valid bool
	index uint64
	// at is when the last successful poll was sent, by past.clock. The store had this state then or later.
	at       time.Duration
	keys     map[string]uint64 // modify index by key
	released bool              // see WatchOptions.Released
	own      bool              // see WatchOptions.Own
	locks    map[string]taken  // by key, if released is set; also of keys that have vanished
}

// taken has the session that took a lock last, the lock's count of sessions then, and the key's creation index.
type taken struct {
	session string
	count   uint64
	made    uint64
}

func (h history) remember(pairs []Pair, index uint64) history {
	next := history{
		valid: true, index: index, keys: make(map[string]uint64, len(pairs)), released: h.released,
		own: h.own, locks: h.locks,
	}
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

// same reports whether the snapshot has exactly the remembered keys and versions.
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

// wentBack reports whether the store went back in time since h. The index alone does not show it: it also falls when
// Consul forgets a deletion, and after a restore the next writes raise it again. But only a return explains these:
//   - a key has a new modify index that is not above the index of the earlier snapshot;
//   - the number of keys differs and the index is lower, within deletionsKept of the last poll. (Later, Consul may have
//     forgotten a deletion, and the index falls to the index of the newest remaining key);
//   - another session has taken a lock, but the lock's count of sessions is not higher. (If the lock was removed and
//     made again, its count begins again: see WatchOptions.Own.)
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

type gapper struct {
	gap  time.Duration
	last time.Time
}

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

// retryPause returns a random pause. Its average doubles with each failure, from 100 ms to 5 s. The pause is between
// half and one and a half times the average, so that many watches do not poll at the same time.
func retryPause(fails int) time.Duration {
	base := min(100*time.Millisecond<<min(fails-1, 6), 5*time.Second)
	return base/2 + rand.N(base)
}
