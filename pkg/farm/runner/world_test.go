package runner_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/farm/runner"
	"github.com/rcfarm/rcfarm/pkg/internal/webhook"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestMain(m *testing.M) { os.Exit(consultest.Main(m)) }

// soon is how long anything may take that should happen at once, on a busy machine with the race detector.
const soon = time.Minute

// The ids of the controllers of service web.
const (
	unit             = "01m82rq476dk3dzcatmcv2vmc4"
	web1, web2, web3 = unit + "-1", unit + "-2", unit + "-3"
)

// world is services on a prefix of their own, whose controllers' owners are simulated: pods do at once what a record asks for.
type world struct {
	*store.Store
	t      *testing.T
	addr   string // of its Consul
	client *consul.Client

	mu    sync.Mutex
	sick  map[string]string // by controller: why none of its pods becomes available
	slow  map[string]bool   // by controller: none of its pods is available yet
	once  once
	most  int // pods of service web at the end, and at most beyond that
	least int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	client, prefix := consultest.Client(t)
	keys, err := store.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Store: store.New(client, keys), t: t, addr: consultest.Shared(t).Addr, client: client, sick: map[string]string{}, slow: map[string]bool{}}
	if _, err := w.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// background runs something until the test ends, or what it returns is called.
func (w *world) background(run func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); !errors.Is(err, context.Canceled) {
			w.t.Errorf("ended: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	w.t.Cleanup(stop)
	return stop
}

// owners answers for all controllers as their farms would, and judges what the runners ask of them.
func (w *world) owners() {
	w.background(func(ctx context.Context) error {
		told := map[string]rc.Status{}
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			if err := w.pass(ctx, told); err != nil && ctx.Err() == nil {
				return err
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-tick.C:
			}
		}
	})
}

func (w *world) pass(ctx context.Context, told map[string]rc.Status) error {
	schema, err := w.Schema.Get(ctx, store.Default)
	if err != nil {
		return err
	}
	recs, _, err := w.RCs.List(ctx, store.Default)
	if err != nil {
		return err
	}
	w.judge(recs)
	keys := w.Keys()
	for i := range recs {
		r := &recs[i].Value
		w.mu.Lock()
		why, sick := w.sick[r.ID]
		slow := w.slow[r.ID]
		w.mu.Unlock()
		if r.ID == preDeployID && r.DeletedAt == nil {
			if err := w.runOnce(ctx, r, schema.Value.Epoch); err != nil {
				return err
			}
			continue
		}
		if r.DeletedAt != nil {
			_, err := w.client.Commit(ctx, []consul.Op{
				consul.DeleteCAS(keys.RCs.Key(r.ID), recs[i].Index), consul.Delete(keys.Names.Key(r.Name)), consul.Delete(keys.Bells.Key(r.ID)), consul.Delete(keys.Statuses.Key(r.ID)),
			})
			if err != nil && !errors.Is(err, store.ErrRefused) {
				return err
			}
			continue
		}
		n := r.Desired()
		st := rc.Status{
			RCID: r.ID, ObservedGeneration: r.Generation, Epoch: schema.Value.Epoch, Desired: n, Placed: n, Available: n, Updated: n, UpdatedAvailable: n, Owner: "sim",
		}
		if sick || slow {
			st.Available, st.UpdatedAvailable = 0, 0
		}
		if sick {
			st.Failing = []rc.PodFailure{{Pod: "main.0", Node: "n1", Reason: why, Hopeless: true}}
		}
		if before := told[r.ID]; fmt.Sprintf("%+v", before) == fmt.Sprintf("%+v", st) {
			continue
		}
		value, err := json.Marshal(st)
		if err != nil {
			return err
		}
		if _, err := w.client.Commit(ctx, []consul.Op{consul.Set(keys.Statuses.Key(r.ID), value), consul.Set(keys.RolloutBells.Key("web"), []byte(store.NewID()))}); err != nil {
			return err
		}
		told[r.ID] = st
	}
	return nil
}

// judge says what no instant of a rollout may look like. All records were read at one moment.
func (w *world) judge(recs []store.Rec[rc.RC]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sum := 0
	for i := range recs {
		if recs[i].Value.ID != preDeployID {
			sum += recs[i].Value.Desired()
		}
		w.once.judge(w.t, &recs[i].Value)
	}
	if w.most > 0 && (sum > w.most || sum < w.least) {
		w.t.Errorf("the service asks for %d pods, allowed: %d to %d", sum, w.least, w.most)
	}
}

func controller(rev int64, count int) rc.RC {
	return rc.RC{
		ID: rc.RevisionID(unit, rev), Name: fmt.Sprintf("web-r%d", rev), ManifestDigest: fmt.Sprintf("%064d", rev),
		ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &count}}, Labels: map[string]string{"service": "web"}, Strategy: rc.Dynamic,
		Generation: 1, ChangedBy: "op", Service: &rc.Service{Name: "web", Revision: rev},
	}
}

// deploy begins a rollout to a revision of so many pods, beside whatever controllers there are.
func (w *world) deploy(rev int64, count int, change func(*rollout.Start)) rollout.Record {
	w.t.Helper()
	ctx := w.t.Context()
	schema, err := w.Schema.Get(ctx, store.Default)
	if err != nil {
		w.t.Fatal(err)
	}
	recs, _, err := w.RCs.List(ctx, store.Default)
	if err != nil {
		w.t.Fatal(err)
	}
	indices := map[string]uint64{}
	start := rollout.Start{ID: store.NewID(), Service: "web", By: "op", Now: time.Now().UTC(), Epoch: schema.Value.Epoch, New: controller(rev, count)}
	for i := range recs {
		start.Old = append(start.Old, rollout.Seen{RC: recs[i].Value})
		indices[recs[i].Value.ID] = recs[i].Index
	}
	if change != nil {
		change(&start)
	}
	started, err := rollout.Begin(start)
	if err != nil {
		w.t.Fatal(err)
	}
	d := store.Deploy{Rollout: store.Rec[rollout.Record]{Value: started.Record}, SchemaIndex: schema.Index, Audit: store.NewAudit("op", "deploy", start.New.ID, started.Audit)}
	for _, r := range started.RCs {
		d.RCs = append(d.RCs, store.Rec[rc.RC]{Value: r, Index: indices[r.ID]})
	}
	if start.PreDeploy != nil {
		d.RCs = append(d.RCs, store.Rec[rc.RC]{Value: preDeployer(started.Record.Term())})
	}
	entry, err := json.Marshal(map[string]any{"service": "web", "revision": rev, "rollout": start.ID})
	if err != nil {
		w.t.Fatal(err)
	}
	d.Besides = []consul.Op{consul.Set(w.entry(rev), entry)}
	if err := w.Deployments.Deploy(ctx, d); err != nil {
		w.t.Fatal(err)
	}
	return started.Record
}

func (w *world) entry(rev int64) string {
	return fmt.Sprintf("%sdeployments/web/history/%d", w.Keys().Prefix(), rev)
}

// running makes the first revision as it is after its rollout, and sets the bounds that a rollout to another one of as many pods keeps
// when one pod may come before one goes.
func (w *world) running(count int) {
	w.t.Helper()
	first := controller(1, count)
	if err := w.Operator.ChangeRC(w.t.Context(), store.RCChange{RC: first, Audit: store.NewAudit("op", "create", first.ID, nil)}); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.least, w.most = count, count+1
}

// farm is a runner under a session of its own.
type farm struct {
	wrap     func(runner.Session) runner.Session // of its store; nil: as it is
	id       string
	selector string
	told     *teller
	stop     func()
	runner   atomic.Pointer[runner.Runner] // of its session
}

// members are the living farms, as all of them see them.
type members struct {
	mu  sync.Mutex
	all []store.Member
}

func (w *world) members(ids ...string) *members {
	m := &members{}
	for _, id := range ids {
		m.join(id)
	}
	return m
}

func (m *members) list() []store.Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all)
}

// join adds a farm, and tells some others.
func (m *members) join(id string, tell ...*farm) {
	m.mu.Lock()
	m.all = append(m.all, store.Member{ID: id})
	m.mu.Unlock()
	for _, f := range tell {
		if r := f.runner.Load(); r != nil {
			r.MembersChanged()
		}
	}
}

// quicken lets the pods of a slow controller become available.
func (w *world) quicken(rcID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.slow, rcID)
}

// teller notes alerts.
type teller struct {
	mu   sync.Mutex
	said []string
}

func (a *teller) Raise(_ context.Context, in alert.Incident) bool { return a.say("raise " + in.Reason) }
func (a *teller) Resolve(_ context.Context, in alert.Incident) bool {
	return a.say("resolve " + in.Reason)
}

func (a *teller) say(text string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = append(a.said, text)
	return true
}

// saidSo returns nil once exactly these beginnings were said, in order. The same may be said again right after it was said: what was told is
// noted afterwards, and is told again where the note did not land.
func (a *teller) saidSo(want ...string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	said := slices.Compact(slices.Clone(a.said))
	if len(said) != len(want) {
		return fmt.Errorf("told %q, want %q", a.said, want)
	}
	for i := range want {
		if !strings.HasPrefix(said[i], want[i]) {
			return fmt.Errorf("told %q, want %q", a.said, want)
		}
	}
	return nil
}

const ttl = 3 * time.Second

// runs starts a farm's runner that reaches Consul at an address. members are those that it sees, itself if there are none.
func (w *world) runs(f *farm, addr string, members func() []store.Member) {
	w.t.Helper()
	log, err := obs.NewLogger(testWriter{w.t}, "info", "text")
	if err != nil {
		w.t.Fatal(err)
	}
	client, err := consul.New(consul.Config{Address: addr, CallTimeout: 2 * time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(client.Close)
	if members == nil {
		members = func() []store.Member { return []store.Member{{ID: f.id, RCSelector: f.selector}} }
	}
	f.told = &teller{}
	cfg := consul.SessionConfig{Kind: "farm", Name: f.id, TTL: ttl, Journal: &simnode.Journal{}}
	f.stop = w.background(func(ctx context.Context) error {
		return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
			var session runner.Session = store.New(client, w.Keys()).FarmSession(s, f.id)
			if f.wrap != nil {
				session = f.wrap(session)
			}
			r := runner.New(runner.Config{
				ID: f.id, Store: session, Log: log, Members: members, Ask: webhook.Ask, Alerter: f.told,
				WentBack: func(context.Context) error { return store.ErrWentBack }, Grace: 300 * time.Millisecond, Look: 300 * time.Millisecond, Unclaimed: time.Second,
				StableAfter: 500 * time.Millisecond,
			})
			f.runner.Store(r)
			group, ctx := errgroup.WithContext(ctx)
			group.Go(func() error { return r.Start(ctx) })
			candidate := election.Candidate{Client: client, Session: s, Prefix: w.Keys().Prefix(), Lease: store.FarmLease, ID: f.id}
			group.Go(func() error {
				return election.Run(ctx, candidate, func(ctx context.Context) error { return r.Lead(ctx, w.Leader(f.id, election.Commit)) })
			})
			return group.Wait()
		})
	})
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) { w.t.Logf("%s", p); return len(p), nil }

// ended waits until the service has no rollout, and says what its history tells of a revision.
func (w *world) ended(rev int64) (outcome, reason string) {
	w.t.Helper()
	consultest.Eventually(w.t, soon, func() error {
		p, err := w.client.Get(w.t.Context(), w.Keys().Rollouts.Key("web"), consul.Consistent)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return fmt.Errorf("there is still %s, %w", p.Value, err)
	})
	p, err := w.client.Get(w.t.Context(), w.entry(rev), consul.Consistent)
	if err != nil {
		w.t.Fatal(err)
	}
	var entry struct{ Outcome, Reason string }
	if err := json.Unmarshal(p.Value, &entry); err != nil {
		w.t.Fatal(err)
	}
	return entry.Outcome, entry.Reason
}

// only waits until one controller is left, which asks for so many pods and belongs to no rollout.
func (w *world) only(id string, count int) {
	w.t.Helper()
	consultest.Eventually(w.t, soon, func() error {
		recs, _, err := w.RCs.List(w.t.Context(), store.Default)
		if err != nil || len(recs) != 1 {
			return fmt.Errorf("%d controllers, %w", len(recs), err)
		}
		if r := recs[0].Value; r.ID != id || r.Desired() != count || r.Mutator != "" || r.DeletedAt != nil || r.AllowMassStop != 0 || len(r.Service.Companions) > 0 {
			return fmt.Errorf("left %+v", r)
		}
		return nil
	})
}

// record reads the rollout.
func (w *world) record() (rollout.Record, error) {
	p, err := w.client.Get(w.t.Context(), w.Keys().Rollouts.Key("web"), consul.Consistent)
	var rec rollout.Record
	if err == nil {
		err = json.Unmarshal(p.Value, &rec)
	}
	return rec, err
}

func (w *world) ask(verb rollout.Verb) {
	w.t.Helper()
	err := w.Operator.AskRollout(w.t.Context(), store.RolloutAsk{
		Service: "web", Request: rollout.Request{Verb: verb, By: "op", At: time.Now().UTC()}, Audit: store.NewAudit("op", string(verb), "", nil),
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// onStep treats the n-th transaction of a runner's steps, from 0, in one way, and forwards all else. cut is closed when it came.
func onStep(n int, v consultest.Verdict, prefix string) (rule func(*http.Request) consultest.Verdict, cut chan struct{}) {
	cut = make(chan struct{})
	fence := []byte(prefix + "locks/rollout/")
	return func(r *http.Request) consultest.Verdict {
		if r.URL.Path != "/v1/txn" {
			return consultest.Forward
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !bytes.Contains(body, fence) || !bytes.Contains(body, []byte(`"check-session"`)) {
			return consultest.Forward
		}
		n--
		if n != -1 {
			return consultest.Forward
		}
		close(cut)
		return v
	}, cut
}
