package consul_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// save returns a snapshot of the whole store; restore goes back to one.
func save(t *testing.T, raw *api.Client) []byte {
	t.Helper()
	r, _, err := raw.Snapshot().Save(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return must[[]byte](t)(io.ReadAll(r))
}

func restore(t *testing.T, raw *api.Client, snapshot []byte) {
	t.Helper()
	if err := raw.Snapshot().Restore(nil, bytes.NewReader(snapshot)); err != nil {
		t.Fatal(err)
	}
}

// TestRestore shares one server among everything that needs to go back in time. Its parts run one after the other.
func TestRestore(t *testing.T) {
	t.Parallel()
	server, err := consultest.Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	raw, c := rawAPI(t, server.Addr, ""), clientOf(t, consul.Config{Address: server.Addr})
	t.Run("fact: the index goes back", func(t *testing.T) { testFactRestore(t, c, raw) })
	t.Run("fact: a destroyed session comes back", func(t *testing.T) { testFactSessionReturns(t, c, raw) })
	t.Run("watch reports it", func(t *testing.T) { testWatchRegressed(t, c, raw, server.Addr) })
	t.Run("a farm gets its lock back", func(t *testing.T) { testSessionAfterRestore(t, c, raw) })
}

func testFactRestore(t *testing.T, c *consul.Client, raw *api.Client) {
	var (
		w          *waiting
		old, newer uint64
	)
	// Nothing tells when a query has begun to wait. One that came after the restore waits on, which is another fact; then
	// the experiment is made again.
	for try := 1; ; try++ {
		old = put(t, c, "f/k", fmt.Sprint("old", try))
		snapshot := save(t, raw)
		newer = put(t, c, "f/k", "new")
		w = waitRaw(t, raw, "f/", newer)
		restore(t, raw, snapshot)
		// The waiting query returns, and what it says may be the world before the restore.
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
	if got := get(t, c, "f/k"); !strings.HasPrefix(string(got.Value), "old") || got.ModifyIndex != old || listIndex(t, raw, "f/") != old {
		t.Errorf("after the restore: %+v, list index %d, want %d", got, listIndex(t, raw, "f/"), old)
	}
	// On a living cluster indices go on, so that the next write is ahead of everything again.
	if next := put(t, c, "f/k", "next"); next <= newer {
		t.Errorf("the next write got %d after %d", next, newer)
	}
}

func testFactSessionReturns(t *testing.T, c *consul.Client, raw *api.Client) {
	past := rawSession(t, raw, nil)
	must[consul.Fence](t)(c.Acquire(t.Context(), "s/lock", past, differ("v")))
	snapshot := save(t, raw)
	if _, err := raw.Session().Destroy(past, nil); err != nil {
		t.Fatal(err)
	}
	present := rawSession(t, raw, nil)
	must[consul.Fence](t)(c.Acquire(t.Context(), "s/lock", present, differ("w")))
	restore(t, raw, snapshot)
	sessionAlive(t, raw, past)
	sessionGone(t, raw, present)
	if got := get(t, c, "s/lock"); got.Session != past {
		t.Errorf("the lock is held by %q, want the session of the past", got.Session)
	}
}

// Nothing but the restore happens, so that no later write can wake the watches.
func testWatchRegressed(t *testing.T, c *consul.Client, raw *api.Client, addr string) {
	for _, tc := range []struct {
		name          string
		before, after func()
	}{
		{"a key changed", func() { put(t, c, "w/k", "1") }, func() { put(t, c, "w/k", "2") }},
		{"a key was added", func() {}, func() { put(t, c, "w/added", "1") }},
		{"a key was deleted", func() { put(t, c, "w/gone", "1") }, func() { drop(t, c, "w/gone") }},
		{"all keys were deleted", func() { put(t, c, "w/k", "3") }, func() {
			for _, key := range must[[]string](t)(c.Keys(t.Context(), "w/")) {
				drop(t, c, key)
			}
		}},
		{"all keys are newer", func() {
			for _, key := range must[[]string](t)(c.Keys(t.Context(), "w/")) {
				drop(t, c, key)
			}
		}, func() { put(t, c, "w/fresh", "1") }},
	} {
		for _, waiting := range []bool{true, false} {
			name := fmt.Sprintf("%s, waiting=%v", tc.name, waiting)
			tc.before()
			snapshot := save(t, raw)
			tc.after()
			p := startProxy(t, addr)
			w := startWatch(t, clientOf(t, consul.Config{Address: p.Addr}), "w/", consul.WatchOptions{})
			w.next(t)
			// Either the watch waits, and the restore wakes it, or it is between two polls, and nothing will.
			if waiting {
				consultest.Eventually(t, patience, func() error {
					if p.seen() < 2 {
						return errors.New("the watch does not wait yet")
					}
					return nil
				})
			}
			restored := time.Now()
			restore(t, raw, snapshot)
			w.until(t, func(s consul.Snapshot) bool { return s.Regressed })
			// A watch that does not look out for this waits for DefaultWait, far beyond the test's patience.
			t.Logf("%s: reported after %s", name, time.Since(restored).Round(time.Millisecond))
			// It is told once; what follows is ordinary.
			put(t, c, "w/after", name)
			if s := w.next(t); s.Regressed {
				t.Errorf("%s: reported again", name)
			}
			w.stop()
		}
	}
}

func drop(t *testing.T, c *consul.Client, key string) {
	t.Helper()
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Delete(key)}))
}

// R5: the session of a dead incarnation comes back with the lock, the live one vanishes. The role that learns of it
// returns ErrRegressed and holds the lock again soon after.
func testSessionAfterRestore(t *testing.T, c *consul.Client, raw *api.Client) {
	const lock = "r/lock"
	ctx, cancel := context.WithCancelCause(t.Context())
	done := errors.New("test done")
	held := make(chan consul.Fence, 10)
	cfg := consul.SessionConfig{Kind: "farm", Name: "regress", TTL: 2 * busyTTL, Journal: &memJournal{}}
	role := func(ctx context.Context, s *consul.Session) error {
		f, err := c.Acquire(ctx, lock, s.Releasing, differ(s.Incarnation))
		if err != nil {
			return err
		}
		held <- f
		err = c.WatchPrefix(ctx, "r/", consul.WatchOptions{}, func(s consul.Snapshot) error {
			if s.Regressed {
				return consul.ErrRegressed
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
	snapshot := save(t, raw)
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
	restore(t, raw, snapshot)
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

// receive waits for a value.
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
