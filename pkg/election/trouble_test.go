package election_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/election"
)

// If a write gets no answer, it has landed when Commit returns, or it never will. The leader still leads.
func TestAWriteWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]consultest.Verdict{
		"landed":     consultest.CutAfter,
		"not landed": consultest.Refuse,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			key := f.prefix + "log"
			results := make(chan error, 8)
			var m atomic.Pointer[member]
			began := make(chan struct{})
			a := f.run("a", "1.18", nil, func(ctx context.Context) error {
				<-began
				before := election.FenceOf(ctx)
				m.Load().proxy.Set(consultest.OnTxn(verdict))
				_, err := election.Commit(ctx, []consul.Op{consul.Set(key, []byte("x"))})
				results <- err
				if election.FenceOf(ctx) == before {
					t.Error("the fence has not moved")
				}
				_, err = election.Commit(ctx, []consul.Op{consul.Set(f.prefix+"next", nil)})
				results <- err
				<-ctx.Done()
				return nil
			})
			m.Store(a)
			close(began)
			if err := <-results; !errors.Is(err, consul.ErrUnknown) || errors.Is(err, election.ErrLost) {
				t.Errorf("the write: %v", err)
			}
			_, err := f.client.Get(t.Context(), key, consul.Consistent)
			if landed := err == nil; landed != (name == "landed") {
				t.Errorf("it is there: %t, %v", landed, err)
			}
			if err := <-results; err != nil {
				t.Errorf("the next write: %v", err)
			}
			f.leads("a")
		})
	}
}

// If another program writes to the lock's key, the lock is not lost: Commit bumps the fence and tries the write again.
// If Consul refuses a write because of its own condition, Commit returns this refusal.
func TestAnotherProgramWritesToTheLock(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	work := make(chan func(context.Context), 1)
	f.run("a", "1.18", nil, func(ctx context.Context) error {
		for {
			select {
			case do := <-work:
				do(ctx)
			case <-ctx.Done():
				return nil
			}
		}
	})
	f.leads("a")
	f.commit(consul.Set(f.key("lease/holder"), []byte("scribble")))
	done := make(chan struct{})
	work <- func(ctx context.Context) {
		defer close(done)
		if _, err := election.Commit(ctx, []consul.Op{consul.CAS(f.prefix+"once", nil, 0)}); err != nil {
			t.Errorf("the write: %v", err)
		}
		_, err := election.Commit(ctx, []consul.Op{consul.CAS(f.prefix+"once", nil, 0)})
		if !errors.Is(err, consul.ErrRefused) || errors.Is(err, election.ErrLost) ||
			!consul.RefusedOn(err, f.prefix+"once") {
			t.Errorf("the second write: %v", err)
		}
		indices, err := election.Commit(ctx, []consul.Op{consul.Set(f.prefix+"log", nil)})
		if len(indices) != 1 || indices[f.prefix+"log"] == 0 || err != nil {
			t.Errorf("indices %v, %v", indices, err)
		}
	}
	<-done
	f.leads("a")
}

// If answers are missing while candidates come and go, one candidate leads in the end.
func TestAnswersGoMissing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	cut := func(m *member) {
		m.proxy.Set(func(r *http.Request) consultest.Verdict {
			if strings.HasPrefix(r.URL.Path, "/v1/session") || strings.HasPrefix(r.URL.Path, "/v1/agent") {
				return consultest.Forward
			}
			return []consultest.Verdict{
				consultest.Forward, consultest.Forward, consultest.CutAfter,
				consultest.Refuse,
			}[rand.IntN(4)]
		})
	}
	for id, version := range map[string]string{"a": "1.19", "b": "1.18", "c": "1.17"} {
		cut(f.start(id, version, nil))
	}
	f.leads("c")
	f.members["c"].kill()
	f.leads("b")
}

// After a restore, the lock belongs to an old session. When that session ends, a living candidate leads.
func TestStoreOfThePast(t *testing.T) {
	t.Parallel()
	var server *consultest.Server
	stop := func() {
		if server != nil {
			server.Stop()
		}
	}
	t.Cleanup(func() { stop() })
	consultest.DespiteHangs(t, func() {
		stop()
		var err error
		if server, err = consultest.Start(""); err != nil {
			t.Fatal(err)
		}
		client, err := consul.New(consul.Config{Address: server.Addr, CallTimeout: patient})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		f := fleetOn(t, server.Addr, client, "test/")
		quick := func(c *election.Candidate) { c.PingEvery = time.Second }
		a := f.start("a", "1.17", quick)
		f.leads("a")
		saved, err := consultest.Snapshot(t.Context(), server.Addr)
		if err != nil {
			t.Fatal(err)
		}
		b := f.start("b", "1.19", quick)
		a.stop()
		f.leads("b")
		// The lock and the record of a are back, with an old session. The record of b is not there.
		if err := consultest.Restore(t.Context(), server.Addr, saved); err != nil {
			if errors.Is(err, consultest.ErrHung) {
				panic(consultest.ErrHung)
			}
			t.Fatal(err)
		}
		consultest.Eventually(t, patient, func() error {
			if ended := b.ended(); len(ended) == 0 {
				return errors.New("b does not know")
			}
			return nil
		})
		f.destroySessions(a) // Consul does this when the TTL of the old session is over, up to a minute later
		f.leads("b")
		if s := f.state(); len(s.Candidates) != 1 || s.Candidates[0].ID != "b" {
			t.Errorf("%+v", s.Candidates)
		}
		b.stop()
	})
}

// A second process with the same id does not take part until the first process is gone.
func TestTwoOfOneID(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start("a", "1.18", nil)
	f.leads("a")
	stop := func() { a.stop() }
	same := f.start("twin", "1.17", func(c *election.Candidate) { c.ID = "a" })
	consultest.Eventually(t, patient, func() error {
		if len(same.of(election.Failed)) == 0 {
			return errors.New("the second says nothing")
		}
		return nil
	})
	f.commit(consul.Delete(f.key("lease/holder"))) // the first process is chosen again
	consultest.Eventually(t, patient, func() error {
		if len(a.of(election.Elected)) < 2 {
			return errors.New("not elected again")
		}
		return nil
	})
	if n := len(same.of(election.Elected)); n > 0 {
		t.Errorf("the second was elected %d times", n)
	}
	stop()
	consultest.Eventually(t, patient, func() error {
		if len(same.of(election.Elected)) == 0 {
			return errors.New("the second does not lead")
		}
		return nil
	})
}

// If a candidate's token is not allowed to take the lock, Run returns an error, and the candidate's record is removed.
func TestATokenThatMayNotLead(t *testing.T) {
	t.Parallel()
	const management = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	server, err := consultest.Start(
		`{"acl": {"enabled": true, "default_policy": "deny", "tokens": {"initial_management": "` + management +
			`", "agent": "` + management + `"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	conf := api.DefaultConfig()
	conf.Address, conf.Token = server.Addr, management
	raw, err := api.NewClient(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conf.Transport.CloseIdleConnections)
	rules := `session_prefix "" { policy = "write" } agent_prefix "" { policy = "read" } service_prefix "" { policy = "write" } node_prefix "" { policy = "read" }
		key_prefix "rcfarm/elections/nightly/candidates/" { policy = "write" } key_prefix "rcfarm/elections/nightly/lease/" { policy = "write" }
		key "rcfarm/elections/nightly/lease/holder" { policy = "read" }`
	var token *api.ACLToken
	consultest.Eventually(t, patient, func() error {
		policy, _, err := raw.ACL().PolicyCreate(&api.ACLPolicy{Name: "nightly", Rules: rules}, nil)
		if err != nil {
			return err
		}
		token, _, err = raw.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{ID: policy.ID}}}, nil)
		return err
	})
	client, err := consul.New(consul.Config{Address: server.Addr, Token: token.SecretID})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	var refused error
	_ = client.RunSession(ctx, consul.SessionConfig{Kind: "election", Name: "denied"},
		func(ctx context.Context, s *consul.Session) error {
			refused = election.Run(ctx, election.Candidate{Client: client, Session: s, Lease: lease, ID: "a"},
				func(context.Context) error { return errors.New("it leads") })
			if errors.Is(refused, consul.ErrRefused) {
				if _, err := client.Get(ctx, "rcfarm/elections/nightly/candidates/a",
					consul.Consistent); !errors.Is(err,
					consul.ErrNotFound) {
					t.Errorf("the record is there still: %v", err)
				}
				cancel()
			}
			return refused
		})
	if !errors.Is(refused, consul.ErrRefused) || !strings.Contains(refused.Error(), "take lease nightly") {
		t.Errorf("Run returned %v", refused)
	}
}
