package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

type world struct {
	addr   string // of Consul, without delay
	keys   *store.Keys
	client *consul.Client
	store  *store.Store
}

// newWorld makes the shared records. Their epoch is so old that farms do not hold (R1).
func newWorld(ctx context.Context, sc *scope, addr string) (*world, error) {
	keys, err := store.NewKeys("bench-" + store.NewID() + "/")
	if err != nil {
		return nil, err
	}
	w := &world{addr: addr, keys: keys}
	if w.client, w.store, err = w.connect(sc, addr); err != nil {
		return nil, err
	}
	sc.add(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, _ = w.client.Commit(ctx, []consul.Op{consul.DeleteTree(keys.Prefix())}) // Consul ends soon after
	})
	rec, err := w.store.EnsureSchema(ctx)
	if err != nil {
		return nil, err
	}
	rec.Value.CreatedAt = rec.Value.CreatedAt.Add(-time.Hour)
	data, err := json.Marshal(rec.Value)
	if err == nil {
		_, err = w.client.Commit(ctx, []consul.Op{consul.CAS(keys.Schema.Key(), data, rec.Index)})
	}
	return w, err
}

func (w *world) connect(sc *scope, addr string) (*consul.Client, *store.Store, error) {
	return w.connectBy(sc, addr, 0)
}

// connectBy is like connect, with this number of connections; zero: one daemon's limit.
func (w *world) connectBy(sc *scope, addr string, conns int) (*consul.Client, *store.Store, error) {
	client, err := consul.New(consul.Config{Address: addr, CallTimeout: callTimeout, MaxConns: conns})
	if err != nil {
		return nil, nil, err
	}
	sc.add(client.Close)
	return client, store.New(client, w.keys), nil
}

// callTimeout is longer than the daemons' own: a busy machine must not end a measurement.
const callTimeout = 20 * time.Second

func background(ctx context.Context, sc *scope, run func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run(ctx) // other code waits for its effect
	}()
	sc.add(func() { cancel(); <-done })
}

// With patientTTL sessions do not end although all programs share a few cores. It is for parts without failures.
const patientTTL = 15 * time.Second

// startTime is how long a simulated pod takes to start.
const startTime = time.Second

func (b *bench) startWorld(ctx context.Context, sc *scope, conf map[string]any,
	nodes simnode.Fleet,
) (*agent, *world, error) {
	dev, err := b.startDev(ctx, sc, conf)
	if err != nil {
		return nil, nil, err
	}
	w, err := newWorld(ctx, sc, dev.addr)
	if err != nil {
		return nil, nil, err
	}
	_, err = w.fleet(ctx, sc, nodes)
	return dev, w, err
}

const racks = 20

// fleet runs simulated nodes, and returns when their records are written.
func (w *world) fleet(ctx context.Context, sc *scope, f simnode.Fleet) (*simnode.Fleet, error) {
	var err error
	if f.Client == nil {
		if f.Client, f.Store, err = w.connect(sc, w.addr); err != nil {
			return nil, err
		}
	}
	if f.TTL == 0 {
		f.TTL = patientTTL
	}
	if f.StartTime == 0 {
		f.StartTime = startTime
	}
	if f.Prepare == nil {
		f.Prepare = func(i int, record *node.Node) {
			record.Labels = map[string]string{"rack": fmt.Sprintf("rack-%02d", i%racks), "zone": "a", "disk": "ssd"}
		}
	}
	ready := make(chan struct{}, 1)
	f.OnReady = func() {
		select {
		case ready <- struct{}{}:
		default: // a later tenure
		}
	}
	background(ctx, sc, f.Run)
	select {
	case <-ready:
		return &f, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// controller returns a record and its manifest. cpu is in thousandths of a core, for each pod.
func controller(name string, replicas int, cpu int64, change func(*rc.RC)) (rc.RC, []byte, error) {
	m := &manifest.Manifest{
		Version: 1, ID: name, MinReady: new(field.Duration), Labels: map[string]string{"team": "bench"},
		Launchables: []manifest.Launchable{{
			Name: "main",
			Artifact: manifest.Artifact{Kind: manifest.ArtifactTar, URL: "https://artifacts.example/" + name +
				".tar.gz", SHA256: fmt.Sprintf("%064d", 1)},
			Env:       map[string]string{"LOG_LEVEL": "info", "REGION": "here"},
			Resources: manifest.Resources{CPU: manifest.Millicores(cpu)},
		}},
	}
	canonical, err := m.Canonical()
	if err != nil {
		return rc.RC{}, nil, err
	}
	r := rc.RC{
		ID: store.NewID(), Name: name, ManifestDigest: manifest.Digest(canonical), Strategy: rc.Dynamic, Generation: 1,
		ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &replicas}}, ChangedBy: "bench",
	}
	if change != nil {
		change(&r)
	}
	return r, canonical, nil
}

// create writes the records of n new controllers, many in one transaction.
func (w *world) create(ctx context.Context, name string, n, replicas int, change func(*rc.RC)) ([]rc.RC, error) {
	return w.createSized(ctx, name, n, replicas, 0, change)
}

// createSized is like create. cpu is in thousandths of a core, for each pod.
func (w *world) createSized(
	ctx context.Context, name string, n, replicas int, cpu int64, change func(*rc.RC),
) ([]rc.RC, error) {
	all := make([]made, n)
	for i := range n {
		r, canonical, err := controller(fmt.Sprintf("%s-%05d", name, i), replicas, cpu, change)
		if err != nil {
			return nil, err
		}
		all[i] = made{r, canonical}
	}
	return w.createAll(ctx, all)
}

type made struct {
	rc        rc.RC
	canonical []byte
}

func (w *world) createAll(ctx context.Context, all []made) ([]rc.RC, error) {
	rcs := make([]rc.RC, len(all))
	const perRC = 5
	var txns [][]consul.Op
	var ops []consul.Op
	for i := range all {
		rcs[i] = all[i].rc
		more, err := w.creation(all[i].rc, all[i].canonical)
		if err != nil {
			return nil, err
		}
		if len(ops)+perRC > consul.MaxTxnOps {
			txns, ops = append(txns, ops), nil
		}
		ops = append(ops, more...)
	}
	return rcs, simnode.CommitAll(ctx, w.client, append(txns, ops))
}

// creation returns what an operator's transaction has.
func (w *world) creation(r rc.RC, canonical []byte) ([]consul.Op, error) {
	record, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	stored, err := json.Marshal(map[string]json.RawMessage{"manifest": canonical})
	if err != nil {
		return nil, err
	}
	a := store.NewAudit("bench", "apply", r.ID, nil)
	audit, err := json.Marshal(a)
	return []consul.Op{
		consul.CAS(w.keys.RCs.Key(r.ID), record, 0),
		consul.CAS(w.keys.Names.Key(r.Name), []byte(r.ID), 0),
		consul.Set(w.keys.Manifests.Key(r.ManifestDigest), stored),
		consul.Set(w.keys.Audits.Key(a.ID), audit),
		consul.Set(w.keys.Bells.Key(r.ID), []byte(store.NewID())),
	}, err
}

// every asks for a condition until it holds. When ctx ends, the error has what was missing.
func every(ctx context.Context, pace time.Duration, condition func() error) error {
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// sparingly asks for a condition until it holds, and pauses for a fiftieth of the time since began, and at least 10 ms.
// So measured times are at most 2 % or 10 ms too long, and the checks cost little.
func sparingly(ctx context.Context, began time.Time, condition func() error) error {
	for {
		err := condition()
		if err == nil {
			return nil
		}
		if e := wait.Pause(ctx, max(10*time.Millisecond, time.Since(began)/50)); e != nil {
			return fmt.Errorf("%w: %w", e, err)
		}
	}
}

// converged waits until every status is converged. It lists all statuses, so it asks less often if there are more.
func (w *world) converged(ctx context.Context, n int) error {
	const pace, perRC = 500 * time.Millisecond, 100 * time.Microsecond
	return every(ctx, max(pace, time.Duration(n)*perRC), func() error {
		recs, _, err := w.store.Statuses.List(ctx, store.Default)
		if err != nil {
			return err
		}
		good := 0
		for i := range recs {
			if recs[i].Value.Is(rc.Converged) {
				good++
			}
		}
		if good < n {
			return fmt.Errorf("%d of %d controllers have converged", good, n)
		}
		return nil
	})
}
