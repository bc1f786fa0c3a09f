package consul_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// ByTTL relies on these facts: Consul refuses a TTL below 10 s, and a session that is not renewed ends between one and
// about two TTLs later.
func TestFactSessionTTL(t *testing.T) {
	t.Parallel()
	_, raw, _ := setup(t)
	create := func(ttl string) (string, error) {
		id, _, err := raw.Session().CreateNoChecks(&api.SessionEntry{TTL: ttl, LockDelay: time.Millisecond}, nil)
		return id, err
	}
	if id, err := create("9s"); err == nil {
		t.Errorf("a session with a TTL of 9 s was made: %s", id)
	}
	created := time.Now()
	id := must[string](t)(create(consul.MinSessionTTL.String()))
	var died time.Duration
	consultest.Eventually(t, 4*consul.MinSessionTTL, func() error {
		entry, _, err := raw.Session().Info(id, nil)
		if err == nil && entry != nil {
			err = errors.New("it lives")
		}
		died = time.Since(created)
		return err
	})
	t.Logf("died after %s", died.Round(time.Millisecond))
	if died < consul.MinSessionTTL {
		t.Errorf("a session with a TTL of %s died after %s", consul.MinSessionTTL, died)
	}
	if entry, _, err := raw.Session().Renew(id, nil); err != nil || entry != nil {
		t.Errorf("renewing a dead session: %+v, %v", entry, err)
	}
}

func TestTTLSessionNeedsNoAgent(t *testing.T) {
	t.Parallel()
	direct, raw, prefix := setup(t)
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	p.Set(func(r *http.Request) consultest.Verdict {
		if strings.HasPrefix(r.URL.Path, "/v1/agent/") || strings.HasPrefix(r.URL.Path, "/v1/catalog/") {
			return consultest.Refuse
		}
		return consultest.Forward
	})
	c := clientOf(t, consul.Config{Address: p.Addr})
	d := startDaemon(t, c, prefix+"lock", consul.SessionConfig{Mode: consul.ByTTL, TTL: time.Second}, &memJournal{})
	s := receive(t, d.tenures)
	for id, behavior := range map[string]string{
		s.Releasing: api.SessionBehaviorRelease,
		s.Deleting:  api.SessionBehaviorDelete,
	} {
		entry, _, err := raw.Session().Info(id, nil)
		if err != nil || entry == nil {
			t.Fatalf("session %q: %v", id, err)
		}
		if entry.Behavior != behavior || entry.TTL != "10s" || len(entry.NodeChecks)+len(entry.ServiceChecks) != 0 ||
			!strings.HasSuffix(entry.Name, "/"+s.Incarnation) {
			t.Errorf("session %+v", entry)
		}
	}
	if ids := serviceIDs(t, raw, s.Incarnation); len(ids) != 0 {
		t.Errorf("registered %v", ids)
	}
	d.stop()
	if got := get(t, direct, prefix+"lock"); got.Session != "" {
		t.Errorf("the lock is still held by %s", got.Session)
	}
	sessionGone(t, raw, s.Deleting)
	if left := d.journal.left(); len(left) != 0 {
		t.Errorf("journal %v", left)
	}
}

// A session with its own TTL is renewed, so it lives much longer than twice its TTL.
func TestTTLSessionOutlivesItsTTL(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	d := startDaemon(t, c, prefix+"lock", consul.SessionConfig{Mode: consul.ByTTL}, &memJournal{})
	s, taken := receive(t, d.tenures), time.Now()
	consultest.Eventually(t, 4*consul.MinSessionTTL, func() error {
		if age := time.Since(taken); age < 5*consul.MinSessionTTL/2 {
			return fmt.Errorf("%s old", age)
		}
		return nil
	})
	sessionAlive(t, raw, s.Releasing)
	sessionAlive(t, raw, s.Deleting)
	select {
	case err := <-d.ends:
		t.Errorf("the tenure ended: %v", err)
	default:
	}
}

func TestTTLSessionIsLostAndTakenAgain(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	d := startDaemon(t, c, prefix+"lock", consul.SessionConfig{Mode: consul.ByTTL}, &memJournal{})
	first := receive(t, d.tenures)
	destroyed := time.Now()
	if _, err := raw.Session().Destroy(first.Releasing, nil); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, d.ends); !errors.Is(err, consul.ErrLost) {
		t.Fatalf("the tenure ended with %v", err)
	}
	if took := time.Since(destroyed); took > consul.MinSessionTTL { // without the blocking query it would take 1.5 TTLs
		t.Errorf("seen after %s only", took)
	}
	second := receive(t, d.tenures)
	if second.Releasing == first.Releasing || second.fence.Index <= first.fence.Index {
		t.Errorf("the second tenure is %+v", second)
	}
	sessionGone(t, raw, first.Deleting)
}

// A killed daemon leaves sessions behind. The next start destroys these, and no sessions of other daemons.
func TestTTLSessionRetiresAKilledIncarnation(t *testing.T) {
	t.Parallel()
	direct, raw, prefix := setup(t)
	journal := &memJournal{}
	namesake := rawSession(t, raw,
		&api.SessionEntry{Name: "rcfarm/farm/" + t.Name() + "/another", LockDelay: time.Millisecond})
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	killed := startDaemon(t, clientOf(t, consul.Config{Address: p.Addr}), prefix+"lock",
		consul.SessionConfig{Mode: consul.ByTTL}, journal)
	first := receive(t, killed.tenures)
	p.Set(consultest.Always(consultest.CutBefore))
	killed.stop()
	if left := journal.left(); !slices.Equal(left, []string{first.Incarnation}) {
		t.Fatalf("journal %v", left)
	}
	d := startDaemon(t, direct, prefix+"lock", consul.SessionConfig{Mode: consul.ByTTL}, journal)
	second := receive(t, d.tenures)
	sessionGone(t, raw, first.Releasing)
	sessionGone(t, raw, first.Deleting)
	sessionAlive(t, raw, namesake)
	if left := journal.left(); !slices.Equal(left, []string{second.Incarnation}) {
		t.Errorf("journal %v", left)
	}
}

func TestUnknownSessionMode(t *testing.T) {
	t.Parallel()
	c, _, _ := setup(t)
	err := c.RunSession(t.Context(),
		consul.SessionConfig{Kind: "farm", Name: "x", Mode: "lease", Journal: &memJournal{}},
		func(context.Context, *consul.Session) error { t.Error("the role ran"); return nil })
	if err == nil || !strings.Contains(err.Error(), `"lease"`) || !strings.Contains(err.Error(), "check or ttl") {
		t.Errorf("RunSession returned %v", err)
	}
}
