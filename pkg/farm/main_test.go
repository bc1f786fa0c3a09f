package farm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestMain(m *testing.M) { os.Exit(consultest.Main(m)) }

// soon is the limit for anything that should happen at once, on a busy machine with the race detector.
const soon = time.Minute

// cluster has farms and simulated nodes below its own prefix.
type cluster struct {
	t      *testing.T
	addr   string // of its Consul
	client *consul.Client
	store  *store.Store

	mu    sync.Mutex
	nodes map[string]*simnode.Node
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	client, prefix := consultest.Client(t)
	keys, err := store.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{
		t: t, addr: consultest.Shared(t).Addr, client: client, store: store.New(client, keys),
		nodes: map[string]*simnode.Node{},
	}
}

// background runs a daemon and returns a function that stops it; the end of the test stops it, too.
func (c *cluster) background(run func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); !errors.Is(err, context.Canceled) {
			c.t.Errorf("daemon ended: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	c.t.Cleanup(stop)
	return stop
}

const ttl = 5 * time.Second

func (c *cluster) node(name string, labels map[string]string, react func(pod.Intent) pod.Reality) (stop func()) {
	c.mu.Lock()
	n := c.nodes[name]
	if n == nil {
		n = &simnode.Node{
			Record: node.Node{
				Name: name, Labels: labels, Capacity: node.Capacity{Slots: 10}, Address: "127.0.0.1",
				PortRange: node.PortRange{Min: 20000, Max: 20005},
			},
			TTL: ttl, React: react,
		}
		n.Client, n.Store = c.connect()
		c.nodes[name] = n
	}
	c.mu.Unlock()
	return c.background(n.Run)
}

// connect returns a client for one daemon, with the connection limit of a daemon.
func (c *cluster) connect() (*consul.Client, *store.Store) { return c.connectTo(c.addr) }

// connectTo is connect for another address.
func (c *cluster) connectTo(addr string) (*consul.Client, *store.Store) {
	client, err := consul.New(consul.Config{Address: addr})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(client.Close)
	return client, store.New(client, c.store.Keys())
}

func (c *cluster) farm(id string) (stop func()) { return c.patientFarm(id, 500*time.Millisecond) }

// patientFarm runs a farm with the given TTL (wait). After a new epoch, the farm waits for twice this time.
func (c *cluster) patientFarm(id string, wait time.Duration) (stop func()) {
	return c.farmBy(id, c.addr, wait, &simnode.Journal{})
}

// session configures the session of a daemon. Tests share a Consul and use the same names. A daemon whose session
// vanished destroys earlier sessions of its name. The scope protects the sessions of other tests.
func (c *cluster) session(kind, name string) consul.SessionConfig {
	scope := c.store.Keys().Prefix()
	return consul.SessionConfig{Kind: kind, Name: name, Scope: scope, TTL: ttl, Journal: &simnode.Journal{}}
}

// farmBy runs a farm with a TTL. The farm reaches Consul at the given address, and remembers its sessions in a journal.
func (c *cluster) farmBy(id, addr string, wait time.Duration, journal consul.Journal) (stop func()) {
	log, err := obs.NewLogger(testWriter{c.t}, "info", "text")
	if err != nil {
		c.t.Fatal(err)
	}
	client, st := c.connectTo(addr)
	cfg := c.session("farm", id)
	cfg.Journal = journal
	return c.background(func(ctx context.Context) error {
		return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
			f := farm.NewFarm(farm.Config{
				ID: id, Store: st.FarmSession(s, id), Log: log, TTL: wait, SweepEvery: time.Second,
			})
			return startAndLead(ctx, client, st, s, id, f)
		})
	})
}

// startAndLead runs a farm that does the duties of the leader whenever it is elected.
func startAndLead(ctx context.Context, client *consul.Client, st *store.Store, s *consul.Session, id string,
	f *farm.Farm,
) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.Start(ctx) })
	candidate := election.Candidate{
		Client: client, Session: s, Prefix: st.Keys().Prefix(), Lease: store.FarmLease,
		ID: id,
	}
	group.Go(func() error {
		err := election.Run(ctx, candidate, func(ctx context.Context) error {
			return f.Lead(ctx, st.Leader(id, election.Commit))
		})
		if errors.Is(err, store.ErrWentBack) {
			return f.WentBack(ctx)
		}
		return err
	})
	return group.Wait()
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) { w.t.Logf("%s", p); return len(p), nil }

func testManifest(id string, port int) *manifest.Manifest {
	m := &manifest.Manifest{
		Version: 1, ID: id,
		Launchables: []manifest.Launchable{{
			Name:     "main",
			Artifact: manifest.Artifact{Kind: "tar", URL: "file:///nowhere.tar.gz", SHA256: fmt.Sprintf("%064d", port)},
		}},
	}
	if port != 0 {
		m.Ports = []manifest.Port{{Name: "http", Port: port}}
	}
	return m
}

// apply creates a controller or changes it.
func (c *cluster) apply(id string, m *manifest.Manifest, change func(*rc.RC)) {
	c.t.Helper()
	canonical, err := m.Canonical()
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.store.EnsureSchema(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	consultest.Eventually(c.t, soon, func() error {
		rec, err := c.store.RCs.Get(c.t.Context(), store.Consistent, id)
		if errors.Is(err, store.ErrNotFound) {
			one := 1
			rec.Value = rc.RC{
				ID: id, Name: id, Strategy: rc.Dynamic,
				ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}},
			}
		} else if err != nil {
			return err
		}
		rec.Value.Generation++
		rec.Value.ManifestDigest = manifest.Digest(canonical)
		change(&rec.Value)
		manifests := []store.DeployManifest{{Digest: rec.Value.ManifestDigest, Canonical: canonical}}
		audit := store.NewAudit("test", "apply", id, nil)
		_, err = c.client.Get(c.t.Context(), c.store.Keys().Rollouts.Key(id), consul.Consistent)
		if errors.Is(err, store.ErrNotFound) {
			return c.store.Operator.ChangeRC(c.t.Context(),
				store.RCChange{RC: rec.Value, Index: rec.Index, Manifests: manifests, Audit: audit})
		}
		if err != nil {
			return err
		}
		return c.steps(rec, canonical)
	})
}

// rolls puts a rollout in charge of a service. The rollout's record cannot be read, so the rollout makes no step.
func (c *cluster) rolls(unit string) {
	c.t.Helper()
	if _, err := c.client.Commit(c.t.Context(),
		[]consul.Op{consul.Set(c.store.Keys().Rollouts.Key(unit), []byte("{"))}); err != nil {
		c.t.Fatal(err)
	}
}

// steps changes a controller that a rollout is in charge of, as a step of the rollout does.
func (c *cluster) steps(rec store.Rec[rc.RC], canonical []byte) error {
	value, err := json.Marshal(rec.Value)
	if err != nil {
		return err
	}
	stored, err := json.Marshal(map[string]json.RawMessage{"manifest": canonical})
	if err != nil {
		return err
	}
	keys, id := c.store.Keys(), rec.Value.ID
	_, err = c.client.Commit(c.t.Context(), []consul.Op{
		consul.CAS(keys.RCs.Key(id), value, rec.Index),
		consul.Set(keys.Manifests.Key(rec.Value.ManifestDigest), stored),
		consul.Set(keys.Names.Key(rec.Value.Name), []byte(id)), consul.Set(keys.Drops.Key(id), []byte(store.NewID())),
		consul.Set(keys.Bells.Key(id), []byte(store.NewID())),
	})
	return err
}

func replicas(n int) func(*rc.RC) {
	return func(r *rc.RC) { r.ReplicaGroups[0].Count = &n }
}

// converged waits for a status of the present generation with condition Converged, and for exactly n pods that run on
// the nodes.
func (c *cluster) converged(id string, n int) {
	c.t.Helper()
	c.convergedWithin(soon, id, n)
}

func (c *cluster) convergedWithin(limit time.Duration, id string, n int) {
	c.t.Helper()
	consultest.Eventually(c.t, limit, func() error {
		rec, err := c.store.RCs.Get(c.t.Context(), store.Consistent, id)
		if err != nil {
			return err
		}
		st, err := c.store.Statuses.Get(c.t.Context(), store.Default, id)
		if err != nil {
			return err
		}
		if st.Value.ObservedGeneration != rec.Value.Generation || !st.Value.Is(rc.Converged) || st.Value.Desired != n {
			text, _ := json.Marshal(st.Value)
			return fmt.Errorf("status of generation %d: %s", rec.Value.Generation, text)
		}
		return nil
	})
	if got := c.running(id); len(got) != n {
		c.t.Fatalf("converged with %d pods running on the nodes, want %d: %v", len(got), n, got)
	}
}

// running returns which pods run on which nodes, as the nodes see it.
func (c *cluster) running(rcID string) map[pod.Identity][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[pod.Identity][]string{}
	for name, n := range c.nodes {
		for id := range n.Running() {
			if id.RCID == rcID {
				out[id] = append(out[id], name)
			}
		}
	}
	return out
}

func digestOf(canonical []byte) string { return manifest.Digest(canonical) }
