package consul_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// past is a Consul of its own for tests that take the store back in time.
type past struct {
	all    *testing.T // the clients are closed when this test ends
	server *consultest.Server
	c      *consul.Client
	raw    *api.Client
}

// attempt runs an experiment again with another server if the server hangs in a restore.
func (p *past) attempt(t *testing.T, experiment func()) {
	t.Helper()
	consultest.DespiteHangs(t, func() {
		if p.server == nil {
			p.start(t)
		}
		experiment()
	})
}

func (p *past) start(t *testing.T) {
	t.Helper()
	var err error
	if p.server, err = consultest.Start(""); err != nil {
		t.Fatal(err)
	}
	p.raw, p.c = rawAPI(p.all, p.server.Addr, ""), clientOf(p.all, consul.Config{Address: p.server.Addr})
}

func (p *past) stop() {
	if p.server != nil {
		p.server.Stop()
	}
}

func (p *past) save(t *testing.T) []byte {
	t.Helper()
	return must[[]byte](t)(consultest.Snapshot(t.Context(), p.server.Addr))
}

// restore panics if the server hangs; see attempt.
func (p *past) restore(t *testing.T, snapshot []byte) {
	t.Helper()
	err := consultest.Restore(t.Context(), p.server.Addr, snapshot)
	if errors.Is(err, consultest.ErrHung) {
		p.server.Stop()
		p.server = nil
		panic(consultest.ErrHung)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	p := &past{all: t}
	t.Cleanup(p.stop)
	part := func(name string, run func(*testing.T, *past)) {
		t.Helper()
		t.Run(name, func(t *testing.T) { p.attempt(t, func() { run(t, p) }) })
	}
	part("fact: the index goes back", testFactRestore)
	part("fact: a destroyed session comes back", testFactSessionReturns)
	t.Run("watch reports it", func(t *testing.T) { testWatchWentBack(t, p) })
	part("a farm gets its lock back", testSessionAfterRestore)
}

func testFactRestore(t *testing.T, p *past) {
	t.Helper()
	c, raw := p.c, p.raw
	var (
		w          *waiting
		old, newer uint64
	)
	// Nothing shows when a query has begun to wait. One that came after the restore does not return, which is another
	// fact. The experiment is then repeated.
	for try := 1; ; try++ {
		old = put(t, c, "f/k", fmt.Sprint("old", try))
		snapshot := p.save(t)
		newer = put(t, c, "f/k", "new")
		w = waitRaw(t, raw, "f/", newer)
		p.restore(t, snapshot)
		// The answer may have the state before the restore.
		if w.answeredWithin(3 * time.Second) {
			w.answered(t)
			break
		}
		if try == 10 {
			t.Fatal("no query that waited through a restore was answered")
		}
	}
	t.Logf("waited on %d, answer: index %d, value %q", newer, w.index, w.pairs[0].Value)
	if w.index > newer {
		t.Errorf("the answer's index went on to %d", w.index)
	}
	if got := get(t, c, "f/k"); !strings.HasPrefix(string(got.Value), "old") || got.ModifyIndex != old ||
		listIndex(t, raw, "f/") != old {
		t.Errorf("after the restore: %+v, list index %d, want %d", got, listIndex(t, raw, "f/"), old)
	}
	if next := put(t, c, "f/k", "next"); next <= newer {
		t.Errorf("the next write got %d after %d", next, newer)
	}
}

func testFactSessionReturns(t *testing.T, p *past) {
	t.Helper()
	c, raw := p.c, p.raw
	past := rawSession(t, raw, nil)
	must[consul.Fence](t)(c.Locks.Acquire(t.Context(), "s/lock", past, differ("v")))
	snapshot := p.save(t)
	if _, err := raw.Session().Destroy(past, nil); err != nil {
		t.Fatal(err)
	}
	present := rawSession(t, raw, nil)
	must[consul.Fence](t)(c.Locks.Acquire(t.Context(), "s/lock", present, differ("w")))
	p.restore(t, snapshot)
	sessionAlive(t, raw, past)
	sessionGone(t, raw, present)
	if got := get(t, c, "s/lock"); got.Session != past {
		t.Errorf("the lock is held by %q, want the session of the past", got.Session)
	}
}

// No write follows the restore, so only the restore can wake the watches.
func testWatchWentBack(t *testing.T, p *past) {
	t.Helper()
	all := func() []string { return must[[]string](t)(p.c.Keys(t.Context(), "w/")) }
	write := func(key, value string) func() { return func() { put(t, p.c, key, value) } }
	dropAll := func() {
		for _, key := range all() {
			drop(t, p.c, key)
		}
	}
	for _, tc := range []struct {
		name          string
		before, after func()
	}{
		{"a key changed", write("w/k", "1"), write("w/k", "2")},
		{"a key was added", func() {}, write("w/added", "1")},
		{"a key was deleted", write("w/gone", "1"), func() { drop(t, p.c, "w/gone") }},
		{"all keys were deleted", write("w/k", "3"), dropAll},
		{"all keys are newer", dropAll, write("w/fresh", "1")},
	} {
		for _, waiting := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, waiting=%v", tc.name, waiting), func(t *testing.T) {
				p.attempt(t, func() {
					tc.before()
					snapshot := p.save(t)
					tc.after()
					p.mustReport(t, snapshot, waiting)
				})
			})
		}
	}
}

// mustReport restores a snapshot while a watch runs, which must report it exactly once. If waiting is set, the watch
// waits in a query, which the restore can wake. Otherwise it may be between two polls.
func (p *past) mustReport(t *testing.T, snapshot []byte, waiting bool) {
	t.Helper()
	proxy := consultest.StartProxy(t, p.server.Addr)
	w := startWatch(t, clientOf(t, consul.Config{Address: proxy.Addr}), "w/", consul.WatchOptions{})
	w.next(t)
	if waiting {
		consultest.Eventually(t, patience, func() error {
			if proxy.Seen() < 2 {
				return errors.New("the watch does not wait yet")
			}
			return nil
		})
	}
	restored := time.Now()
	p.restore(t, snapshot)
	w.until(t, func(s consul.Snapshot) bool { return s.WentBack })
	// Without probeWait, the watch would wait for DefaultWait, much longer than patience.
	t.Logf("reported after %s", time.Since(restored).Round(time.Millisecond))
	put(t, p.c, "w/after", t.Name())
	if s := w.next(t); s.WentBack {
		t.Error("reported again")
	}
	w.stop()
}

func drop(t *testing.T, c *consul.Client, key string) {
	t.Helper()
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Delete(key)}))
}

// After a restore, a dead incarnation's session holds the lock again, and the living one's has vanished. The role
// returns ErrWentBack. Soon after, the daemon holds the lock again (R5).
func testSessionAfterRestore(t *testing.T, p *past) {
	t.Helper()
	c, raw := p.c, p.raw
	const lock = "r/lock"
	ctx, cancel := context.WithCancelCause(t.Context())
	done := errors.New("test done")
	held := make(chan consul.Fence, 10)
	cfg := consul.SessionConfig{Kind: "farm", Name: "regress", TTL: 2 * busyTTL, Journal: &memJournal{}}
	role := func(ctx context.Context, s *consul.Session) error {
		f, err := c.Locks.Acquire(ctx, lock, s.Releasing, differ(s.Incarnation))
		if err != nil {
			return err
		}
		held <- f
		err = c.WatchPrefix(ctx, "r/", consul.WatchOptions{}, func(s consul.Snapshot) error {
			if s.WentBack {
				return consul.ErrWentBack
			}
			return nil
		})
		return err
	}
	run := func(ctx context.Context) error { return c.RunSession(ctx, cfg, role) }

	first, stopFirst := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	all.Go(func() { _ = run(first) })
	past := receive(t, held)
	snapshot := p.save(t)
	stopFirst(done)
	all.Wait()
	all.Go(func() {
		if err := run(ctx); !errors.Is(err, done) {
			t.Errorf("RunSession: %v", err)
		}
	})
	defer all.Wait()
	defer cancel(done)
	present := receive(t, held)

	restored := time.Now()
	p.restore(t, snapshot)
	if got := get(t, c, lock); got.Session != past.Session && got.Session == present.Session {
		t.Errorf("the restore gave the lock to %q", got.Session)
	}
	again := receive(t, held)
	t.Logf("lock held again %s after the restore", time.Since(restored).Round(time.Millisecond))
	if again.Session == past.Session || again.Session == present.Session {
		t.Errorf("session %s was used again", again.Session)
	}
	consultest.Eventually(t, patience, func() error {
		if got := get(t, c, lock); got.Session != again.Session {
			return fmt.Errorf("lock held by %q", got.Session)
		}
		return nil
	})
	sessionGone(t, raw, past.Session)
	sessionGone(t, raw, present.Session)
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}
