package election_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/election/ballot"
)

const (
	patient = time.Minute // how long something that must happen may take on a busy machine
	lease   = "nightly"
)

func TestMain(m *testing.M) { os.Exit(consultest.NoLeaks(consultest.Main(m))) }

// fleet is one election with its candidates, on the package's Consul or on another one.
type fleet struct {
	t      *testing.T
	addr   string
	client *consul.Client // the client of the test
	raw    *api.Client
	prefix string

	mu      sync.Mutex
	members map[string]*member
	dead    []*member // members that were killed; other members have their ids now
	leading []string  // ids of the members whose duty runs now
	most    int       // highest number of duties that ran at once
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	client, prefix := consultest.Client(t)
	return fleetOn(t, consultest.Shared(t).Addr, client, prefix)
}

func fleetOn(t *testing.T, addr string, client *consul.Client, prefix string) *fleet {
	t.Helper()
	conf := api.DefaultConfig()
	conf.Address = addr
	raw, err := api.NewClient(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conf.Transport.CloseIdleConnections)
	return &fleet{t: t, addr: addr, client: client, raw: raw, prefix: prefix, members: map[string]*member{}}
}

// member is one candidate with its own session.
type member struct {
	f       *fleet
	id      string
	proxy   *consultest.Proxy
	gate    *gate
	stop    context.CancelFunc
	done    chan struct{} // closed when its session has ended
	session chan *consul.Session
	result  chan error // the results of Run

	mu     sync.Mutex
	events []election.Event
}

// start starts a candidate of a version. A version such as 1.19/1.18 has the binary version and the emulation version.
// change may be nil.
func (f *fleet) start(id, version string, change func(*election.Candidate)) *member {
	f.t.Helper()
	return f.run(id, version, change, func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

func (f *fleet) run(id, version string, change func(*election.Candidate), duty func(context.Context) error) *member {
	f.t.Helper()
	m := &member{
		f: f, id: id, proxy: consultest.StartProxy(f.t, f.addr), done: make(chan struct{}),
		session: make(chan *consul.Session, 8), result: make(chan error, 8),
	}
	m.gate = startGate(f.t, m.proxy.Addr)
	client, err := consul.New(consul.Config{Address: m.gate.addr})
	if err != nil {
		f.t.Fatal(err)
	}
	binary, emulated, found := strings.Cut(version, "/")
	if !found {
		emulated = binary
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	m.stop = func() { cancel(); <-m.done }
	f.t.Cleanup(m.stop)
	f.mu.Lock()
	f.members[id] = m
	f.mu.Unlock()
	// The tests destroy sessions to let candidates die. The TTL is long, because no candidate may die only because the
	// machine is busy.
	cfg := consul.SessionConfig{
		Kind: "election", Name: strings.TrimSuffix(f.prefix, "/") + "-" + id,
		TTL: 30 * time.Second,
	}
	go func() {
		defer close(m.done)
		defer client.Close()
		_ = client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error { // it ends with ctx
			c := election.Candidate{
				Client: client, Session: s, Prefix: f.prefix, Lease: lease, ID: id,
				BinaryVersion: binary + ".0", EmulationVersion: emulated + ".0", OnEvent: m.note,
			}
			if change != nil {
				change(&c)
			}
			select {
			case m.session <- s:
			default:
			}
			err := election.Run(ctx, c, func(ctx context.Context) error {
				f.enter(id)
				defer f.exit(id)
				return duty(ctx)
			})
			select {
			case m.result <- err:
			default:
			}
			var once *onceError
			if errors.As(err, &once) {
				<-ctx.Done()
			}
			return err
		})
	}()
	return m
}

// onceError is an error of a duty after which the test does not call Run again.
type onceError struct{ text string }

func (o *onceError) Error() string { return o.text }

func (f *fleet) enter(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leading = append(f.leading, id)
	f.most = max(f.most, len(f.leading))
}

func (f *fleet) exit(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leading = slices.DeleteFunc(f.leading, func(other string) bool { return other == id })
}

func (m *member) note(e election.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, e)
}

// ended returns why its tenures ended.
func (m *member) ended() (errs []error) {
	for _, e := range m.of(election.Ended) {
		errs = append(errs, e.Err)
	}
	return errs
}

func (m *member) of(kind election.EventKind) (found []election.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.events {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

// kill ends a candidate like the death of its machine: no request reaches Consul any more, and its sessions end.
func (m *member) kill() {
	m.f.t.Helper()
	m.proxy.Set(consultest.Always(consultest.CutBefore))
	m.f.destroySessions(m)
}

// revive connects a killed candidate with Consul again.
func (m *member) revive() { m.proxy.Set(consultest.Always(consultest.Forward)) }

// destroySessions ends the sessions of a candidate, like Consul when their TTL is over.
func (f *fleet) destroySessions(m *member) {
	f.t.Helper()
	sessions, _, err := f.raw.Session().List(nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, s := range sessions {
		if s.Name == "rcfarm/election/"+strings.TrimSuffix(f.prefix, "/")+"-"+m.id {
			if _, err := f.raw.Session().Destroy(s.ID, nil); err != nil {
				f.t.Fatal(err)
			}
		}
	}
}

func (f *fleet) key(name string) string { return f.prefix + "elections/" + lease + "/" + name }

// leads waits until a candidate holds the lock, and only its duty runs.
func (f *fleet) leads(id string) {
	f.t.Helper()
	consultest.Eventually(f.t, patient, func() error {
		state, err := f.read()
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if leader, _ := state.Leader(); leader != id || !slices.Equal(f.leading, []string{id}) {
			return fmt.Errorf("%q has the lock, %v do their duty, want %s; events: %s", leader,
				f.leading, id, f.story())
		}
		return nil
	})
}

// story returns all events of all members. The caller holds f.mu.
func (f *fleet) story() string {
	var all []string
	for id, m := range f.members {
		m.mu.Lock()
		for _, e := range m.events {
			all = append(all, fmt.Sprintf("%s: %s %s %s %v %v", id, e.Kind, e.Leader, e.Text, e.Conditions, e.Err))
		}
		m.mu.Unlock()
	}
	return strings.Join(all, "\n")
}

func (f *fleet) read() (*election.State, error) {
	return election.Read(f.t.Context(), f.client, f.prefix, lease)
}

func (f *fleet) state() *election.State {
	f.t.Helper()
	s, err := f.read()
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

func (f *fleet) commit(ops ...consul.Op) {
	f.t.Helper()
	if _, err := f.client.Commit(f.t.Context(), ops); err != nil {
		f.t.Fatal(err)
	}
}

// silent makes a candidate that lives and never answers.
func (f *fleet) silent(id, version string) {
	f.t.Helper()
	session, _, err := f.raw.Session().CreateNoChecks(
		&api.SessionEntry{Behavior: api.SessionBehaviorDelete, LockDelay: time.Millisecond}, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _, _ = f.raw.Session().Destroy(session, nil) })
	data, err := json.Marshal(ballot.Record{
		LeaseName: lease, BinaryVersion: version + ".0",
		EmulationVersion: version + ".0", Strategy: ballot.OldestEmulationVersion,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.commit(consul.Lock(f.key("candidates/"+id), data, session))
}

// neverTwo checks at the end of a test that no two duties ran at once. It is for tests in which each leader notices at
// once that it has lost the lock.
func (f *fleet) neverTwo() {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.most > 1 {
		f.t.Errorf("%d did their duty at once:\n%s", f.most, f.story())
	}
}
