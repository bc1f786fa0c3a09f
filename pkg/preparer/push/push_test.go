package push

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func request(epoch, rcID string, lock uint64, revision int64) scale.Request {
	r := scale.New("web", 1)
	r.Epoch, r.Revision = &scale.Epoch{Cluster: epoch, RCID: rcID, Term: scale.Term(epoch, lock)}, revision
	return r
}

func open(t *testing.T, dir string, change func(*Config)) *Inbox {
	t.Helper()
	cfg := Config{Dir: dir, Pull: true, Every: time.Hour}
	if change != nil {
		change(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A request is refused if its controller had one of a higher term or revision, even before a restart. Terms of another
// epoch are ignored.
func TestOlderRequestsAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct {
		epoch, rc string
		lock      uint64
		revision  int64
		refused   bool
	}{
		{"a", "r1", 10, 20, false},
		{"a", "r1", 10, 20, false},
		{"a", "r1", 10, 19, true},
		{"a", "r1", 10, 21, false},
		{"a", "r1", 9, 30, true},
		{"a", "r2", 9, 19, false},
		{"a", "r1", 22, 23, false},
		{"a", "r1", 10, 24, true},
		{"b", "r1", 1, 2, false},
		{"b", "r1", 1, 1000, false},
	} {
		b := open(t, dir, nil) // a new Inbox each time, which is the same as a restart
		b.Open(func(string) {})
		b.Begin(c.epoch)
		b.Read(1 << 40)
		if err := b.Take(t.Context(), request(c.epoch, c.rc, c.lock, c.revision)); errors.Is(err,
			scale.ErrConflict) != c.refused || !c.refused && err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Remembered controllers are limited. From an unreadable file nothing is remembered.
func TestHeardIsBounded(t *testing.T) {
	t.Parallel()
	var h heard
	for i := range 2 * MaxHeard {
		h = h.with(scale.Epoch{Cluster: "a", RCID: fmt.Sprint(i), Term: scale.Term("a", 5)}, 9)
	}
	if len(h) != MaxHeard || h[len(h)-1].RCID != fmt.Sprint(2*MaxHeard-1) || h[0].RCID != fmt.Sprint(MaxHeard) {
		t.Errorf("%d are remembered, from %v", len(h), h[0])
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := New(Config{Dir: dir}); err == nil || b == nil || len(b.heard) != 0 {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestInvalidTermsAreRefused(t *testing.T) {
	t.Parallel()
	b := open(t, t.TempDir(), nil)
	for _, term := range []string{
		"x", "a", "a/", "a/1", "b/00000000000000000001", "a/00000000000000000009",
		"a/-0000000000000000001", "a/99999999999999999999",
	} {
		r := request("a", "r1", 1, 9)
		r.Epoch.Term = term
		if err := b.Take(t.Context(), r); !errors.Is(err, scale.ErrInvalid) {
			t.Errorf("%s: %v", term, err)
		}
	}
}

type server struct {
	*Inbox
	index uint64

	mu               sync.Mutex
	readings, epochs int
}

func (s *server) count(of *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*of++
}

func (s *server) serve(ctx context.Context, epoch string) {
	s.Open(func(string) {})
	s.Begin(epoch)
	for ctx.Err() == nil {
		s.count(&s.readings)
		_ = wait.Pause(ctx, time.Millisecond)
		s.Read(s.index)
		_ = s.Next(ctx)
	}
}

// Any requests cause at most ten reads of the intents and of the epoch a second. Invented terms and revisions are not
// remembered, and the owner's requests are still served.
func TestRequestsAreWorthAReading(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := &server{index: 1000}
		s.Inbox = open(t, dir, func(c *Config) {
			c.Epoch = func(context.Context) (string, error) { s.count(&s.epochs); return "a", nil }
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() { s.serve(ctx, "a") })
		for i := range 32 {
			all.Go(func() {
				for n := int64(0); ctx.Err() == nil; n++ {
					made := request("a", "r1", 900, 5000+n)
					if i%2 == 0 {
						made = request("z", "r1", 1, 2+n)
					}
					if err := s.Take(ctx, made); !errors.Is(err, scale.ErrConflict) &&
						!errors.Is(err, scale.ErrUnavailable) {
						t.Errorf("%+v: %v", made, err)
					}
				}
			})
		}
		if err := wait.Pause(t.Context(), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if err := s.Take(ctx, request("a", "r1", 800, 1000)); err != nil {
			t.Errorf("the owner's: %v", err)
		}
		all.Wait()
		if s.readings > 102 || s.epochs > 102 || s.readings < 50 {
			t.Errorf("%d readings, %d questions for the epoch in 10 s", s.readings, s.epochs)
		}
		if len(s.heard) != 1 || s.heard[0].Revision != 1000 {
			t.Errorf("remembered: %+v", s.heard)
		}
	})
}

// Requests that wait share the next read. A read that began before a request does not count for it. If the read fails,
// the requests return its error.
func TestRequestsWaitForAReading(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, dir,
			func(c *Config) { c.Epoch = func(context.Context) (string, error) { return "", errors.New("away") } })
		if err := b.Take(t.Context(), request("a", "r1", 1, 9)); !errors.Is(err, scale.ErrUnavailable) {
			t.Errorf("without a session: %v", err)
		}
		b.Open(func(string) {})
		if err := b.Take(t.Context(), request("a", "r1", 1, 9)); !errors.Is(err, scale.ErrUnavailable) {
			t.Errorf("an epoch that cannot be read: %v", err)
		}
		b.Begin("a")
		ask := func() <-chan error {
			done := make(chan error, 1)
			go func() { done <- b.Take(t.Context(), request("a", "r1", 1, 9)) }()
			synctest.Wait()
			return done
		}
		first, second := ask(), ask()
		b.Read(8)
		synctest.Wait()
		if len(first)+len(second) > 0 {
			t.Error("a reading that had begun before counted")
		}
		if err := b.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.Read(9)
		if err := errors.Join(<-first, <-second); err != nil {
			t.Error(err)
		}
		b.Begin("a")
		failing := ask()
		b.Failed(errors.New("no leader"))
		if err := <-failing; !errors.Is(err, scale.ErrUnavailable) {
			t.Errorf("a reading that failed: %v", err)
		}
		closing := ask()
		b.Close()
		if err := <-closing; !errors.Is(err, scale.ErrUnavailable) {
			t.Errorf("a session that ended: %v", err)
		}
		if err := <-ask(); !errors.Is(err, scale.ErrUnavailable) {
			t.Errorf("after it: %v", err)
		}
	})
}

// On a node with a standing query, a request waits until the query delivers.
func TestWatchingNodesWait(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, dir, func(c *Config) { c.Pull = false })
		b.Open(func(string) {})
		b.Begin("a")
		began := time.Now()
		if err := b.Take(t.Context(), request("a", "r1", 1, 9)); !errors.Is(err, scale.ErrUnavailable) ||
			time.Since(began) != watchWithin {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		time.AfterFunc(time.Second, func() { b.Read(9) })
		if err := b.Take(t.Context(), request("a", "r1", 1, 9)); err != nil {
			t.Error(err)
		}
	})
}

// Without requests, each node reads from time to time, at times of its own.
func TestSlowReadings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, dir, func(c *Config) { c.Every = time.Minute })
		var pauses []time.Duration
		for range 50 {
			began := time.Now()
			if err := b.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			pauses = append(pauses, time.Since(began))
		}
		least, most := pauses[0], pauses[0]
		for _, p := range pauses {
			least, most = min(least, p), max(most, p)
		}
		if least < 30*time.Second || most > 90*time.Second || most-least < 20*time.Second {
			t.Errorf("pauses from %v to %v", least, most)
		}
	})
}
