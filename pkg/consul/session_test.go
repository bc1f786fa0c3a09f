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

// memJournal is a journal that outlives RunSession, as the disk does.
type memJournal struct {
	mu      sync.Mutex
	known   []string
	added   []string // ever
	fail    error    // what every call returns
	failAdd error
}

func (j *memJournal) Incarnations() ([]string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.known), j.fail
}

func (j *memJournal) Add(incarnation string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := errors.Join(j.fail, j.failAdd); err != nil {
		return err
	}
	j.known, j.added = append(j.known, incarnation), append(j.added, incarnation)
	return nil
}

func (j *memJournal) Remove(incarnation string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.known = slices.DeleteFunc(j.known, func(s string) bool { return s == incarnation })
	return j.fail
}

func (j *memJournal) left() []string {
	known, _ := j.Incarnations()
	return known
}

// daemon runs RunSession with a role that reports its tenures and then waits for its context's end.
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

// startDaemon runs a daemon that takes a lock in each tenure.
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
	d := startDaemon(t, c, prefix+"lock", consul.SessionConfig{TTL: 5 * time.Second, Meta: map[string]string{"nonce": "n1"}}, &memJournal{})
	s := receive(t, d.tenures)
	for id, behavior := range map[string]string{s.Releasing: api.SessionBehaviorRelease, s.Deleting: api.SessionBehaviorDelete} {
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
	if ids := serviceIDs(t, raw, s.Incarnation); len(ids) != 1 || !slices.Equal(d.journal.left(), []string{s.Incarnation}) {
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
	// Nothing has to expire: all of it is gone when RunSession returns.
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

// busyTTL is a TTL that a busy machine does not overrun where a test is about a session that lasts.
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
	// A session that vanished may mean a restore, which brings older ones back (R5). Those are ended; a newer one is
	// another daemon's that bears the same name by mistake, and two of them must not end each other for ever.
	sessionGone(t, raw, older)
	sessionAlive(t, raw, newer)
}

// A session that vanishes before the servers have confirmed it once is like any other: what bears its name and is older goes.
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
			d := startDaemon(t, c, prefix+"lock", consul.SessionConfig{TTL: 20 * time.Second, Mode: mode, Name: name}, &memJournal{})
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

// Both ways in which the servers' word stops coming: connections that are cut, and an agent that is paused.
func TestRunSessionIsLostWithoutAnswers(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]consultest.Verdict{"cut": consultest.CutBefore, "paused": consultest.Stall} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, _, prefix := setup(t)
			p := consultest.StartProxy(t, consultest.Shared(t).Addr)
			c := clientOf(t, consul.Config{Address: p.Addr, CallTimeout: time.Second})
			const ttl = 4 * time.Second
			d := startDaemon(t, c, prefix+"lock", consul.SessionConfig{TTL: ttl, Name: strings.ReplaceAll(t.Name(), "/", "-")}, &memJournal{})
			first := receive(t, d.tenures)
			p.Set(consultest.Always(v))
			cut := time.Now()
			if err := receive(t, d.ends); !errors.Is(err, consul.ErrLost) {
				t.Fatalf("the tenure ended with %v", err)
			}
			// The last confirmation was sent at most TTL/2 before its answer, so that the end comes a TTL after the cut
			// at the earliest, and 1.5 TTL after it at the latest. A busy machine may be late with both. Were one answer
			// that fails the end, it would come within TTL/2.
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

// Calls that take every connection and hang do not cost the session: its liveness has connections of its own.
func TestASessionOutlivesCallsThatHang(t *testing.T) {
	t.Parallel()
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	var asked atomic.Int32 // about the session
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
				hanging.Go(func() { _, _ = c.Keys(ctx, "nothing/") }) // it fails when the test is over
			}
			started := asked.Load()
			deadline := time.NewTimer(patience)
			defer deadline.Stop()
			ticker := time.NewTicker(10 * time.Millisecond)
			defer ticker.Stop()
			for asked.Load() < started+12 { // two TTLs of queries and heartbeats at the least
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

// A committed fenced transaction is an answer of the servers: it keeps the tenure although the standing query fails.
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

// A daemon that was killed cannot give anything up. Its successor finds the incarnation in the journal and gets the
// locks at once, a long TTL notwithstanding.
func TestRunSessionRetiresAKilledIncarnation(t *testing.T) {
	t.Parallel()
	direct, raw, prefix := setup(t)
	journal := &memJournal{}
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	killed := startDaemon(t, clientOf(t, consul.Config{Address: p.Addr}), prefix+"lock", consul.SessionConfig{TTL: time.Minute}, journal)
	first := receive(t, killed.tenures)
	p.Set(consultest.Always(consultest.CutBefore))
	killed.stop()
	if got := get(t, direct, prefix+"lock"); got.Session != first.Releasing {
		t.Fatalf("the test's kill released the lock: %+v", got)
	}
	// One more that never got as far as registering.
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
	// It fails while a role runs: the next tenure is not taken.
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

// The locks are given up even where the agent does not deregister the service; the journal keeps what is left to do.
func TestRunSessionReleasesWithoutDeregistering(t *testing.T) {
	t.Parallel()
	direct, _, prefix := setup(t)
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	d := startDaemon(t, clientOf(t, consul.Config{Address: p.Addr}), prefix+"lock", consul.SessionConfig{TTL: time.Minute}, &memJournal{})
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

// ErrWentBack makes the next tenure begin with the end of every session that bears the daemon's name, and of no other.
func TestRunSessionPurgesAfterARegression(t *testing.T) {
	t.Parallel()
	_, raw, _ := setup(t)
	name := func(of string) *api.SessionEntry {
		return &api.SessionEntry{Name: "rcfarm/farm/" + of, LockDelay: time.Millisecond}
	}
	mine, longer := rawSession(t, raw, name(t.Name()+"@a/")), rawSession(t, raw, name(t.Name()+"@a/b/"))
	others := []string{longer, rawSession(t, raw, name(t.Name()+"x@a/")), rawSession(t, raw, name(t.Name()+"@b/")), rawSession(t, raw, name(t.Name()))}
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
			// The next try to begin fails; the purge must not be forgotten over that.
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
	for _, session := range others { // of another name, of another cluster, and of a daemon that names none
		sessionAlive(t, raw, session)
	}
}

// What the role started has stopped when it returns; only then are the locks given up.
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
		// Draining takes longer than the TTL.
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
