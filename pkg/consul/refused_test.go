package consul_test

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

const daemonRules = `agent_prefix "" { policy = "read" } node_prefix "" { policy = "read" } service_prefix "" { policy = "write" }
	session_prefix "" { policy = "write" } key_prefix "" { policy = "write" }`

func TestTokens(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	t.Run("refused", func(t *testing.T) { t.Parallel(); testRefusedToken(t, g) })
	t.Run("changed", func(t *testing.T) { t.Parallel(); testChangedToken(t, g) })
}

func (g guarded) revoke(t *testing.T, accessor string) {
	t.Helper()
	if _, err := g.raw.ACL().TokenDelete(accessor, nil); err != nil {
		t.Fatal(err)
	}
}

// If Consul refuses a daemon's token, the agent cannot report to the servers that the daemon's check has failed. The
// daemon's sessions still end within twice their own TTL, and with another token it takes new ones.
func testRefusedToken(t *testing.T, g guarded) {
	file := filepath.Join(t.TempDir(), "token")
	secret, accessor := g.tokenWith(t, daemonRules)
	putToken(t, file, secret)
	d := startDaemon(t, clientOf(t, consul.Config{Address: g.addr, TokenFile: file}), "refused/lock",
		consul.SessionConfig{Name: "refused"}, &memJournal{})
	first := receive(t, d.tenures)
	refused := time.Now()
	g.revoke(t, accessor)
	if err := receive(t, d.ends); !errors.Is(err, consul.ErrLost) {
		t.Errorf("the tenure ended with %v", err)
	}
	for _, id := range []string{first.Releasing, first.Deleting} {
		consultest.Eventually(t, 2*consul.MinSessionTTL+patience/2, func() error {
			entry, _, err := g.raw.Session().Info(id, nil)
			if err == nil && entry != nil {
				err = errors.New("it lives")
			}
			return err
		})
	}
	took := time.Since(refused)
	t.Logf("both sessions had ended %s after their token", took.Round(time.Millisecond))
	if took > 2*consul.MinSessionTTL+5*time.Second {
		t.Errorf("the sessions ended %s after their token", took)
	}
	putToken(t, file, g.token(t, daemonRules))
	if second := receive(t, d.tenures); second.fence.Index <= first.fence.Index {
		t.Errorf("the second tenure is %+v", second)
	}
}

// If a daemon's token file changes, the daemon keeps its session, even when the first token is deleted. The agent syncs
// the check with the new token, so if the daemon dies, its session ends as fast as before.
func testChangedToken(t *testing.T, g guarded) {
	file := filepath.Join(t.TempDir(), "token")
	secret, accessor := g.tokenWith(t, daemonRules)
	putToken(t, file, secret)
	p := consultest.StartProxy(t, g.addr)
	var second atomic.Value
	second.Store("")
	vouched := make(chan struct{}, 1)
	p.Set(func(r *http.Request) consultest.Verdict {
		if r.URL.Path == "/v1/agent/service/register" && r.Header.Get("X-Consul-Token") == second.Load() {
			select {
			case vouched <- struct{}{}:
			default: // it was reported already
			}
		}
		return consultest.Forward
	})
	var renewed atomic.Int32
	d := startDaemon(t, clientOf(t, consul.Config{Address: p.Addr, TokenFile: file}), "changed/lock",
		consul.SessionConfig{
			Name:      "changed",
			OnRenewed: func(context.Context, *consul.Session, time.Duration) error { renewed.Add(1); return nil },
		}, &memJournal{})
	s := receive(t, d.tenures)
	next := g.token(t, daemonRules)
	second.Store(next)
	putToken(t, file, next)
	<-vouched
	// Then the registration has been carried out.
	consultest.Eventually(t, patience, func() error {
		checks, _, err := g.raw.Health().Checks("rcfarm-farm", nil)
		if err == nil &&
			!slices.ContainsFunc(checks,
				func(c *api.HealthCheck) bool { return c.ServiceID == "rcfarm-farm-changed-"+s.Incarnation }) {
			err = errors.New("no check in the catalog")
		}
		return err
	})
	g.revoke(t, accessor)
	before := renewed.Load()
	consultest.Eventually(t, 4*consul.MinSessionTTL, func() error {
		if renewed.Load() < before+2 {
			return errors.New("not renewed twice since")
		}
		return nil
	})
	for _, id := range []string{s.Releasing, s.Deleting} {
		if entry, _, err := g.raw.Session().Info(id, nil); err != nil || entry == nil {
			t.Errorf("session %s: %+v, %v", id, entry, err)
		}
	}
	select {
	case err := <-d.ends:
		t.Fatalf("the tenure ended: %v", err)
	default:
	}
	p.Set(consultest.Always(consultest.CutBefore))
	died := time.Now()
	consultest.Eventually(t, patience, func() error {
		entry, _, err := g.raw.Session().Info(s.Releasing, nil)
		if err == nil && entry != nil {
			err = errors.New("it lives")
		}
		return err
	})
	if took := time.Since(died); took > consul.MinSessionTTL {
		t.Errorf("its death was seen after %s", took)
	} else {
		t.Logf("its death was seen after %s", took.Round(time.Millisecond))
	}
}
