package consul_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// memJournal outlives RunSession, like a journal on disk.
type memJournal struct {
	mu      sync.Mutex
	known   []string
	added   []string // all ids that were ever added
	fail    error    // the error that each call returns
	failAdd error
}

func (m *memJournal) Incarnations() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.known), m.fail
}

func (m *memJournal) Add(incarnation string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := errors.Join(m.fail, m.failAdd); err != nil {
		return err
	}
	m.known, m.added = append(m.known, incarnation), append(m.added, incarnation)
	return nil
}

func (m *memJournal) Remove(incarnation string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = slices.DeleteFunc(m.known, func(s string) bool { return s == incarnation })
	return m.fail
}

func (m *memJournal) left() []string {
	known, _ := m.Incarnations()
	return known
}

type daemon struct {
	cfg     consul.SessionConfig
	journal *memJournal
	tenures chan tenure
	ends    chan error // why each tenure ended
	cancel  context.CancelCauseFunc
	all     sync.WaitGroup
	result  error
}

type tenure struct {
	*consul.Session
	fence consul.Fence
}

func startDaemon(t *testing.T, c *consul.Client, lock string, cfg consul.SessionConfig, journal *memJournal) *daemon {
	t.Helper()
	d := &daemon{journal: journal, tenures: make(chan tenure, 10), ends: make(chan error, 10)}
	cfg.Kind, cfg.Journal = "farm", journal
	if cfg.Name == "" {
		cfg.Name = t.Name()
	}
	cfg.OnEvent = func(event string, _ *consul.Session, err error) { t.Log(event, err) }
	d.cfg = cfg
	ctx, cancel := context.WithCancelCause(t.Context())
	d.cancel = cancel
	d.all.Go(func() {
		d.result = c.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
			fence, err := c.Locks.Acquire(ctx, lock, s.Releasing, differ(s.Incarnation))
			if err != nil {
				return err
			}
			d.tenures <- tenure{s, fence}
			<-ctx.Done()
			d.ends <- context.Cause(ctx)
			return context.Cause(ctx)
		})
	})
	t.Cleanup(d.stop)
	return d
}

func (d *daemon) stop() {
	d.cancel(errTestDone)
	d.all.Wait()
}

func serviceIDs(t *testing.T, raw *api.Client, name string) []string {
	t.Helper()
	services, err := raw.Agent().ServicesWithFilter(fmt.Sprintf("ID contains %q", name))
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for id := range services {
		ids = append(ids, id)
	}
	return ids
}

func TestRunSessionTakesTwoSessionsAndEndsCleanly(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	d := startDaemon(t, c, prefix+"lock",
		consul.SessionConfig{TTL: 5 * time.Second, Meta: map[string]string{"nonce": "n1"}}, &memJournal{})
	s := receive(t, d.tenures)
	for id, behavior := range map[string]string{
		s.Releasing: api.SessionBehaviorRelease,
		s.Deleting:  api.SessionBehaviorDelete,
	} {
		entry, _, err := raw.Session().Info(id, nil)
		if err != nil || entry == nil {
			t.Fatalf("session %q: %v", id, err)
		}
		if entry.Behavior != behavior || entry.LockDelay != time.Millisecond || entry.Node != s.ConsulNode ||
			!slices.Contains(entry.NodeChecks, "serfHealth") || len(entry.ServiceChecks) != 1 ||
			!strings.Contains(entry.ServiceChecks[0].ID, s.Incarnation) || entry.TTL != consul.MinSessionTTL.String() {
			t.Errorf("session %+v", entry)
		}
	}
	if ids := serviceIDs(t, raw, s.Incarnation); len(ids) != 1 ||
		!slices.Equal(d.journal.left(), []string{s.Incarnation}) {
		t.Errorf("registered %v, journal %v", ids, d.journal.left())
	}
	consultest.Eventually(t, patience, func() error {
		found, err := c.Catalog.Passing(t.Context(), consul.ServiceName("farm"), "nonce", "n1")
		if err == nil && len(found) == 0 {
			err = errors.New("the catalog has no such instance")
		}
		return err
	})
	must[consul.Fence](t)(c.Locks.Acquire(t.Context(), prefix+"member", s.Deleting, differ("m")))

	d.stop()
	if !errors.Is(d.result, errTestDone) {
		t.Errorf("RunSession returned %v", d.result)
	}
	// Locks, keys, service and sessions need not expire.
	if got := get(t, c, prefix+"lock"); got.Session != "" {
		t.Errorf("the lock is still held by %s", got.Session)
	}
	if _, err := c.Get(t.Context(), prefix+"member", consul.Consistent); !errors.Is(err, consul.ErrNotFound) {
		t.Errorf("the member record is still there: %v", err)
	}
	if ids := serviceIDs(t, raw, s.Incarnation); len(ids) != 0 || len(d.journal.left()) != 0 {
		t.Errorf("still registered: %v, journal %v", ids, d.journal.left())
	}
	for _, id := range []string{s.Releasing, s.Deleting} {
		if entry, _, err := raw.Session().Info(id, nil); err != nil || entry != nil {
			t.Errorf("session %s is still there: %v", id, err)
		}
	}
}

// busyTTL is long enough that no session ends on a busy machine.
const busyTTL = 5 * time.Second

func TestRunSessionOutlivesItsTTL(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	const ttl = busyTTL
	d := startDaemon(t, c, prefix+"lock", consul.SessionConfig{TTL: ttl}, &memJournal{})
	s, taken := receive(t, d.tenures), time.Now()
	consultest.Eventually(t, patience, func() error {
		if age := time.Since(taken); age < 2*ttl {
			return fmt.Errorf("%s old", age)
		}
		return nil
	})
	sessionAlive(t, raw, s.Releasing)
	select {
	case err := <-d.ends:
		t.Fatalf("the tenure ended: %v", err)
	default:
	}
}

func TestRunSessionIsLostWhenDestroyedByHand(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	namesake := &api.SessionEntry{Name: "rcfarm/farm/" + t.Name(), LockDelay: time.Millisecond}
	older := rawSession(t, raw, namesake)
	d := startDaemon(t, c, prefix+"lock", consul.SessionConfig{TTL: 5 * time.Second}, &memJournal{})
	first := receive(t, d.tenures)
	newer := rawSession(t, raw, namesake)
	if _, err := raw.Session().Destroy(first.Releasing, nil); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, d.ends); !errors.Is(err, consul.ErrLost) {
		t.Fatalf("the tenure ended with %v", err)
	}
	second := receive(t, d.tenures)
	if second.Incarnation == first.Incarnation || second.Releasing == first.Releasing {
		t.Fatalf("the second tenure is %+v", second)
	}
	if left := d.journal.left(); !slices.Equal(left, []string{second.Incarnation}) {
		t.Errorf("journal: %v, want the second incarnation", left)
	}
	sessionGone(t, raw, first.Deleting)
	// A session may have vanished in a restore, which brings older sessions back (R5), so these are ended. A newer one
	// belongs to another daemon with the same name. If it were ended too, the two would end each other's sessions for
	// ever.
	sessionGone(t, raw, older)
	sessionAlive(t, raw, newer)
}

// Older sessions of the name are ended even if the session vanishes before its first confirmation.
func TestRunSessionIsLostBeforeItsFirstConfirmation(t *testing.T) {
	t.Parallel()
	for _, mode := range []consul.SessionMode{consul.ByCheck, consul.ByTTL} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			_, raw, prefix := setup(t)
			p := consultest.StartProxy(t, consultest.Shared(t).Addr)
			c := clientOf(t, consul.Config{Address: p.Addr, CallTimeout: patience})
			const unanswered = 5
			asked := 0
			p.Set(func(r *http.Request) consultest.Verdict {
				if !strings.HasPrefix(r.URL.Path, "/v1/session/info/") {
					return consultest.Forward
				}
				if asked++; asked <= unanswered {
					return consultest.Refuse
				}
				return consultest.Forward
			})
			name := strings.ReplaceAll(t.Name(), "/", "-")
			namesake := &api.SessionEntry{Name: "rcfarm/farm/" + name, LockDelay: time.Millisecond}
			if mode == consul.ByTTL {
				namesake.Name += "/older"
			}
			older := rawSession(t, raw, namesake)
			d := startDaemon(t, c, prefix+"lock",
				consul.SessionConfig{TTL: 20 * time.Second, Mode: mode, Name: name}, &memJournal{})
			first := receive(t, d.tenures)
			if _, err := raw.Session().Destroy(first.Releasing, nil); err != nil {
				t.Fatal(err)
			}
			if err := receive(t, d.ends); !errors.Is(err, consul.ErrLost) {
				t.Fatalf("the tenure ended with %v", err)
			}
			receive(t, d.tenures)
			sessionGone(t, raw, older)
		})
	}
}

// A session is lost without answers, because connections are cut or the agent is paused.
func TestRunSessionIsLostWithoutAnswers(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]consultest.Verdict{"cut": consultest.CutBefore, "paused": consultest.Stall} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, _, prefix := setup(t)
			p := consultest.StartProxy(t, consultest.Shared(t).Addr)
			c := clientOf(t, consul.Config{Address: p.Addr, CallTimeout: time.Second})
			const ttl = 4 * time.Second
			d := startDaemon(t, c, prefix+"lock",
				consul.SessionConfig{TTL: ttl, Name: strings.ReplaceAll(t.Name(), "/", "-")}, &memJournal{})
			first := receive(t, d.tenures)
			p.Set(consultest.Always(v))
			cut := time.Now()
			if err := receive(t, d.ends); !errors.Is(err, consul.ErrLost) {
				t.Fatalf("the tenure ended with %v", err)
			}
			// The last confirmation was sent at most TTL/2 before its answer, so the tenure ends between TTL and 1.5
			// TTL after the cut, or later on a busy machine. If the first failed answer ended it, it would end within
			// TTL/2.
			took := time.Since(cut)
			t.Logf("ended %s after the last answer", took.Round(time.Millisecond))
			if took < ttl*3/4 || took > 5*ttl {
				t.Errorf("the tenure ended after %s with a TTL of %s", took, ttl)
			}
			p.Set(nil)
			second := receive(t, d.tenures)
			if second.Incarnation == first.Incarnation {
				t.Error("the incarnation was used again")
			}
			if got := get(t, direct, prefix+"lock"); got.Session != second.Releasing {
				t.Errorf("the lock is held by %s", got.Session)
			}
		})
	}
}

// Calls that hang and take all connections do not end the session, because its liveness has its own connections.
func TestASessionOutlivesCallsThatHang(t *testing.T) {
	t.Parallel()
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	var asked atomic.Int32 // requests about the session
	p.Set(func(r *http.Request) consultest.Verdict {
		if strings.HasPrefix(r.URL.Path, "/v1/kv/") {
			return consultest.Stall
		}
		asked.Add(1)
		return consultest.Forward
	})
	c := clientOf(t, consul.Config{Address: p.Addr, MaxConns: 4, CallTimeout: patience})
	ctx, cancel := context.WithCancel(t.Context())
	var hanging sync.WaitGroup
	err := c.RunSession(ctx, consul.SessionConfig{Kind: "farm", Name: t.Name(), TTL: busyTTL, Journal: &memJournal{}},
		func(role context.Context, _ *consul.Session) error {
			defer cancel()
			for range 32 {
				hanging.Go(func() { _, _ = c.Keys(ctx, "nothing/") }) // the call fails at the end of the test
			}
			started := asked.Load()
			deadline := time.NewTimer(patience)
			defer deadline.Stop()
			ticker := time.NewTicker(10 * time.Millisecond)
			defer ticker.Stop()
			for asked.Load() < started+12 { // queries and heartbeats of at least two TTLs
				select {
				case <-role.Done():
					t.Errorf("the session was lost: %v", context.Cause(role))
					return nil
				case <-deadline.C:
					t.Errorf("%d requests about the session", asked.Load()-started)
					return nil
				case <-ticker.C:
				}
			}
			return nil
		})
	hanging.Wait()
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A committed transaction with the fence confirms the session, although the queries about it fail.
func TestConfirmKeepsTheTenure(t *testing.T) {
	t.Parallel()
	_, _, prefix := setup(t)
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	c := clientOf(t, consul.Config{Address: p.Addr})
	const ttl = busyTTL
	d := startDaemon(t, c, prefix+"lock", consul.SessionConfig{TTL: ttl}, &memJournal{})
	s := receive(t, d.tenures)
	p.Set(func(r *http.Request) consultest.Verdict {
		if strings.HasPrefix(r.URL.Path, "/v1/session/info/") || strings.HasPrefix(r.URL.Path, "/v1/session/renew/") {
			return consultest.CutBefore
		}
		return consultest.Forward
	})
	cut := time.Now()
	pace := time.NewTicker(ttl / 50)
	defer pace.Stop()
	for n := 0; time.Since(cut) < 2*ttl; n++ {
		<-pace.C
		sent := time.Now()
		ops := append(s.fence.Ops(), consul.Set(prefix+"w", fmt.Append(nil, n)))
		if _, err := c.Commit(t.Context(), ops); err != nil {
			t.Fatalf("after %s: %v", time.Since(cut), err)
		}
		s.Confirm(sent)
	}
	select {
	case err := <-d.ends:
		t.Fatalf("the tenure ended: %v", err)
	default:
	}
	if err := receive(t, d.ends); !errors.Is(err, consul.ErrLost) {
		t.Fatalf("without confirmations the tenure ended with %v", err)
	}
}

// A killed daemon cannot release its locks. The next run ends its sessions by the journal, and gets the locks at once.
func TestRunSessionRetiresAKilledIncarnation(t *testing.T) {
	t.Parallel()
	direct, raw, prefix := setup(t)
	journal := &memJournal{}
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	killed := startDaemon(t, clientOf(t, consul.Config{Address: p.Addr}), prefix+"lock",
		consul.SessionConfig{TTL: time.Minute}, journal)
	first := receive(t, killed.tenures)
	p.Set(consultest.Always(consultest.CutBefore))
	killed.stop()
	if got := get(t, direct, prefix+"lock"); got.Session != first.Releasing {
		t.Fatalf("the test's kill released the lock: %+v", got)
	}
	if err := journal.Add("neverregistered"); err != nil {
		t.Fatal(err)
	}

	restarted := time.Now()
	d := startDaemon(t, direct, prefix+"lock", consul.SessionConfig{TTL: time.Minute}, journal)
	second := receive(t, d.tenures)
	t.Logf("the lock was ours again after %s", time.Since(restarted).Round(time.Millisecond))
	sessionGone(t, raw, first.Releasing)
	sessionGone(t, raw, first.Deleting)
	if left := journal.left(); !slices.Equal(left, []string{second.Incarnation}) {
		t.Errorf("journal: %v", left)
	}
	if ids := serviceIDs(t, raw, first.Incarnation); len(ids) != 0 {
		t.Errorf("the killed incarnation is still registered: %v", ids)
	}
}

func TestRunSessionEndsWhenTheJournalFails(t *testing.T) {
	t.Parallel()
	c, _, _ := setup(t)
	disk := errors.New("disk full")
	for name, journal := range map[string]*memJournal{"reading": {fail: disk}, "adding": {failAdd: disk}} {
		err := c.RunSession(t.Context(), consul.SessionConfig{Kind: "farm", Name: t.Name(), Journal: journal},
			func(context.Context, *consul.Session) error {
				t.Error(name, ": the role ran")
				return nil
			})
		if !errors.Is(err, disk) || !strings.Contains(err.Error(), "journal") {
			t.Errorf("%s: RunSession returned %v", name, err)
		}
	}
	journal := &memJournal{}
	err := c.RunSession(t.Context(), consul.SessionConfig{Kind: "farm", Name: t.Name(), Journal: journal},
		func(context.Context, *consul.Session) error {
			journal.mu.Lock()
			defer journal.mu.Unlock()
			journal.fail = disk
			return errors.New("role failed")
		})
	if !errors.Is(err, disk) || len(journal.added) != 1 {
		t.Errorf("RunSession returned %v after %d tenures", err, len(journal.added))
	}
}

// RunSession releases the locks even if the agent does not deregister the service. The journal keeps the incarnation
// for the next start.
func TestRunSessionReleasesWithoutDeregistering(t *testing.T) {
	t.Parallel()
	direct, _, prefix := setup(t)
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	d := startDaemon(t, clientOf(t, consul.Config{Address: p.Addr}), prefix+"lock",
		consul.SessionConfig{TTL: time.Minute}, &memJournal{})
	s := receive(t, d.tenures)
	p.Set(func(r *http.Request) consultest.Verdict {
		if strings.HasPrefix(r.URL.Path, "/v1/agent/service/deregister/") {
			return consultest.Refuse
		}
		return consultest.Forward
	})
	d.stop()
	if got := get(t, direct, prefix+"lock"); got.Session != "" {
		t.Errorf("the lock is still held by %s", got.Session)
	}
	if left := d.journal.left(); !slices.Equal(left, []string{s.Incarnation}) {
		t.Errorf("journal: %v", left)
	}
	again := startDaemon(t, direct, prefix+"lock", consul.SessionConfig{TTL: time.Minute}, d.journal)
	second := receive(t, again.tenures)
	if left := d.journal.left(); !slices.Equal(left, []string{second.Incarnation}) {
		t.Errorf("journal after the next start: %v", left)
	}
}

// After ErrWentBack, RunSession destroys only the sessions with the daemon's name before the next tenure.
func TestRunSessionPurgesAfterARegression(t *testing.T) {
	t.Parallel()
	_, raw, _ := setup(t)
	name := func(of string) *api.SessionEntry {
		return &api.SessionEntry{Name: "rcfarm/farm/" + of, LockDelay: time.Millisecond}
	}
	mine, longer := rawSession(t, raw, name(t.Name()+"@a/")), rawSession(t, raw, name(t.Name()+"@a/b/"))
	others := []string{
		longer, rawSession(t, raw, name(t.Name()+"x@a/")), rawSession(t, raw, name(t.Name()+"@b/")),
		rawSession(t, raw, name(t.Name())),
	}
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	c := clientOf(t, consul.Config{Address: p.Addr})
	tenures := 0
	journal := &memJournal{}
	cfg := consul.SessionConfig{Kind: "farm", Name: t.Name(), Scope: "a/", Journal: journal, TTL: 5 * time.Second}
	ctx, cancel := context.WithCancelCause(t.Context())
	err := c.RunSession(ctx, cfg, func(_ context.Context, s *consul.Session) error {
		switch tenures++; tenures {
		case 1:
			if entry, _, err := raw.Session().Info(mine, nil); err != nil || entry == nil {
				t.Errorf("an ordinary start destroyed a session of an unknown incarnation: %v", err)
			}
			// RunSession must still destroy the old sessions later.
			failures := 2
			p.Set(func(r *http.Request) consultest.Verdict {
				if r.URL.Path == "/v1/session/list" && failures > 0 {
					failures--
					return consultest.CutAfter
				}
				return consultest.Forward
			})
			return fmt.Errorf("watching: %w", consul.ErrWentBack)
		default:
			if entry, _, err := raw.Session().Info(mine, nil); err != nil || entry != nil {
				t.Errorf("a session of the past is alive: %+v %v", entry, err)
			}
			if entry, _, err := raw.Session().Info(s.Releasing, nil); err != nil || entry == nil {
				t.Errorf("our own new session is gone: %v", err)
			}
			cancel(errTestDone)
			return nil
		}
	})
	if !errors.Is(err, errTestDone) || tenures != 2 {
		t.Errorf("RunSession returned %v after %d tenures", err, tenures)
	}
	for _, session := range others { // sessions of another name, of another cluster, and without a cluster
		sessionAlive(t, raw, session)
	}
}

// RunSession releases the locks only when the role has returned, and so all that it started has stopped.
func TestRunSessionKeepsTheLockUntilTheRoleReturns(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	const ttl = busyTTL
	cfg := consul.SessionConfig{Kind: "farm", Name: t.Name(), Journal: &memJournal{}, TTL: ttl}
	err := c.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
		f, err := c.Locks.Acquire(ctx, prefix+"lock", s.Releasing, differ("v"))
		if err != nil {
			return err
		}
		cancel(errTestDone)
		<-ctx.Done()
		drained := time.Now()
		consultest.Eventually(t, patience, func() error {
			if took := time.Since(drained); took < ttl*3/2 {
				return fmt.Errorf("%s passed", took)
			}
			return nil
		})
		sessionAlive(t, raw, s.Releasing)
		if _, err := c.Commit(context.WithoutCancel(ctx), append(f.Ops(), consul.Set(prefix+"w", nil))); err != nil {
			t.Errorf("a fenced write while draining: %v", err)
		}
		return nil
	})
	if !errors.Is(err, errTestDone) {
		t.Errorf("RunSession returned %v", err)
	}
	if got := get(t, c, prefix+"lock"); got.Session != "" {
		t.Errorf("the lock is held by %s", got.Session)
	}
}
