package deploy_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestMain(m *testing.M) { os.Exit(consultest.Main(m)) }

// world is a store below a fresh prefix, with the records that a cluster begins with.
type world struct {
	*deploy.Client
	consul *consul.Client
	state  *plan.State
}

func newWorld(t *testing.T) *world {
	t.Helper()
	client, prefix := consultest.Client(t)
	keys, err := store.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Client: &deploy.Client{Store: store.New(client, keys), Who: "ann"}, consul: client}
	if w.state, _, err = deploy.State(t.Context(), w.Store); err != nil || w.state.Epoch != "" {
		t.Fatalf("a state of nothing: %+v, %v", w.state, err)
	}
	if _, err := w.Store.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.state, _, err = deploy.State(t.Context(), w.Store); err != nil || w.state.Epoch == "" {
		t.Fatalf("%+v, %v", w.state, err)
	}
	return w
}

func (w *world) put(t *testing.T, key string, value any) {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.consul.Commit(t.Context(), []consul.Op{consul.Set(key, data)}); err != nil {
		t.Fatal(err)
	}
}

const document = `{"name": "web", "replicas": 2, "pod": {"version": 1, "id": "web", "launchables": [{"name": "server", "args": ["ARG"],
	"artifact": {"kind": "exec", "path": "/bin/true"}}]}}`

func (w *world) deployment(t *testing.T, arg string) *plan.Deployment {
	t.Helper()
	spec, err := record.Decode([]byte(strings.Replace(document, "ARG", arg, 1)))
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := (&plan.ServiceSpecResolver{}).Resolve(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	d := plan.NewDeployment(w, *resolved, &plan.ServicePlanner{By: w.Who, State: w.state})
	d.Detach = true
	return d
}

// end removes the rollout with an outcome, like the farm at the end of a rollout.
func (w *world) end(t *testing.T, outcome rollout.State, reason string) {
	t.Helper()
	svc, err := w.Service(t.Context(), "web")
	if err != nil || svc == nil {
		t.Fatal(svc, err)
	}
	keys := w.Store.Keys()
	e := svc.History[len(svc.History)-1]
	e.Outcome, e.Reason = outcome, reason
	w.put(t, keys.Deployments.Key("web", "history", strconv.FormatInt(e.Revision, 10)), e)
	if _, err := w.consul.Commit(t.Context(),
		[]consul.Op{consul.Delete(keys.Rollouts.Key(svc.Deployed.ID))}); err != nil {
		t.Fatal(err)
	}
}

func TestDeployingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if svc, err := w.Service(t.Context(), "web"); svc != nil || err != nil {
		t.Fatalf("a service that is not there: %+v, %v", svc, err)
	}
	p, err := w.deployment(t, "a").Run(t.Context())
	if err != nil || p.Rollout() == "" {
		t.Fatal(p, err)
	}
	svc, err := w.Service(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	if svc.Rollout == nil || svc.Rollout.ID != p.Rollout() || svc.Rollout.Epoch != w.state.Epoch ||
		len(svc.Controllers) != 1 || len(svc.History) != 1 || svc.Deployed.Revision != 1 {
		t.Fatalf("%+v", svc)
	}
	r := svc.Controllers[0].RC
	if r.ChangedBy != "ann" || !svc.Rollout.Has(r.ID) || r.Desired() != 0 || r.Name != "web-r1" ||
		r.ID != rc.RevisionID(svc.Deployed.ID, 1) {
		t.Errorf("%+v", r)
	}
	keys := w.Store.Keys()
	found, err := w.consul.GetMany(t.Context(), []string{
		keys.Names.Key("web-r1"), keys.Drops.Key(r.ID), keys.Bells.Key(r.ID), keys.Manifests.Key(r.ManifestDigest),
	}, consul.Consistent)
	if err != nil || len(found) != 4 {
		t.Errorf("%d records, %v", len(found), err)
	}
	if again, err := w.deployment(t, "a").Run(t.Context()); err != nil || !again.Empty() {
		t.Errorf("the same document again: %+v, %v", again, err)
	}
	w.end(t, rollout.Done, "")
	if w.state, _, err = deploy.State(t.Context(), w.Store); err != nil || w.state.Names[r.ID] != "web-r1" {
		t.Fatalf("%+v, %v", w.state, err)
	}
	w.state.Nodes["n1"] = node.NewView(node.Node{Name: "n1", Epoch: w.state.Epoch, Capacity: node.Capacity{Slots: 2}},
		node.Ops{Name: "n1"}, true)
	second := w.deployment(t, "b")
	second.Planner.(*plan.ServicePlanner).Override = "resourceutil"
	p, err = second.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if svc, err = w.Service(t.Context(), "web"); err != nil || len(svc.Controllers) != 2 || len(svc.History) != 2 ||
		svc.Deployed.Revision != 2 || svc.Rollout.ID != p.Rollout() {
		t.Fatalf("%+v, %v", svc, err)
	}
	if names, err := w.Store.Deployments.ListServices(t.Context()); err != nil ||
		!slices.Equal(names, []string{"web"}) {
		t.Error(names, err)
	}
	recs, corrupt, err := w.Store.Deployments.ListRollouts(t.Context())
	if err != nil || len(corrupt) != 0 || len(recs) != 1 || recs[0].Value.ID != p.Rollout() {
		t.Error(recs, corrupt, err)
	}
}

// A plan has no epoch if it was made before the first farm ran, or without the state of the cluster. Its rollout gets
// the epoch of the store.
func TestDeployingBeforeTheFirstFarm(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]*plan.State{"before": {}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, prefix := consultest.Client(t)
			keys, err := store.NewKeys(prefix)
			if err != nil {
				t.Fatal(err)
			}
			w := &world{
				Client: &deploy.Client{Store: store.New(client, keys), Who: "ann"}, consul: client, state: state,
			}
			if _, err := w.deployment(t, "a").Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			schema, err := w.Store.Schema.Get(t.Context(), store.Default)
			if err != nil {
				t.Fatal(err)
			}
			if svc, err := w.Service(t.Context(), "web"); err != nil || svc.Rollout.Epoch != schema.Value.Epoch {
				t.Errorf("%+v, %v", svc, err)
			}
		})
	}
}

// If two plans were made at the same time, the later commit is refused, and writes nothing.
func TestTwoDeployAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.deployment(t, "a"), w.deployment(t, "b")
	for _, d := range []*plan.Deployment{first, second} {
		if _, err := d.Plan(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := first.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, err := w.consul.Keys(t.Context(), w.Store.Keys().Prefix())
	if err != nil {
		t.Fatal(err)
	}
	_, err = second.Run(t.Context())
	var stale *plan.StaleError
	if !errors.As(err, &stale) {
		t.Error(err)
	}
	if after, err := w.consul.Keys(t.Context(), w.Store.Keys().Prefix()); err != nil || !slices.Equal(before, after) {
		t.Errorf("%v became %v, %v", before, after, err)
	}
}

// A draft's transaction is refused if the records that the draft was made from have changed.
func TestDraftsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*testing.T, *world, *record.Draft){
		"the service is there": func(t *testing.T, w *world, d *record.Draft) {
			w.put(t, w.Store.Keys().Deployed.Key("web"), d.Deployed)
		},
		"the name is taken": func(t *testing.T, w *world, _ *record.Draft) {
			w.put(t, w.Store.Keys().Names.Key("web-r1"), "x")
		},
		"another rollout": func(t *testing.T, w *world, d *record.Draft) {
			w.put(t, w.Store.Keys().Rollouts.Key(d.Rollout.Unit()), d.Rollout)
		},
		"another epoch": func(_ *testing.T, _ *world, d *record.Draft) { d.Rollout.Epoch = "x" },
		"a controller that is gone": func(_ *testing.T, _ *world, d *record.Draft) {
			d.Change = append(d.Change, rc.RC{ID: "x"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			caught := &catcher{Client: w.Client}
			d := w.deployment(t, "a")
			d2 := plan.NewDeployment(caught, d.Spec, d.Planner)
			d2.Detach = true
			if _, err := d2.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			spoil(t, w, caught.draft)
			before, err := w.consul.Keys(t.Context(), w.Store.Keys().Prefix())
			if err != nil {
				t.Fatal(err)
			}
			err = w.Commit(t.Context(), caught.draft)
			if !errors.Is(err, plan.ErrChanged) {
				t.Error(err)
			}
			if after, err := w.consul.Keys(t.Context(), w.Store.Keys().Prefix()); err != nil ||
				!slices.Equal(before, after) {
				t.Errorf("%v became %v, %v", before, after, err)
			}
		})
	}
}

// catcher keeps the draft that would be committed.
type catcher struct {
	*deploy.Client
	draft *record.Draft
}

func (c *catcher) Commit(_ context.Context, d *record.Draft) error { c.draft = d; return nil }

func TestAwait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, err := w.deployment(t, "a").Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	svc, err := w.Service(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	r := svc.Controllers[0].RC
	goal := plan.Goal{Service: "web", Rollout: p.Rollout(), RC: r.ID, Reached: plan.Available, Pods: 2}
	waited := make(chan error, 1)
	go func() { waited <- w.Await(t.Context(), goal) }()
	w.put(t, w.Store.Keys().Statuses.Key(r.ID),
		rc.Status{RCID: r.ID, ObservedGeneration: r.Generation, Available: 2, Placed: 2})
	if err := <-waited; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("the time is up"))
	defer cancel()
	if err := w.Await(ctx,
		plan.Goal{Service: "web", Rollout: p.Rollout(), RC: r.ID, Reached: plan.Left, Pods: 1}); err == nil ||
		!strings.Contains(err.Error(), "the time is up") {
		t.Error(err)
	}
	if err := w.Await(t.Context(),
		plan.Goal{Service: "web", Rollout: p.Rollout(), RC: "none", Reached: plan.Gone}); err != nil {
		t.Error(err)
	}
	w.end(t, rollout.Failed, "it crashed")
	err = w.Await(t.Context(), goal)
	var ended *plan.RolloutError
	if !errors.As(err, &ended) || ended.State != rollout.Failed || ended.Reason != "it crashed" {
		t.Error(err)
	}
	if end, err := w.Ended(t.Context(), "web", "another"); err != nil || end == nil || end.State != rollout.Aborted {
		t.Error(end, err)
	}
}

func TestDigests(t *testing.T) {
	t.Parallel()
	content := []byte("an archive")
	sum := sha256.Sum256(content)
	want := hex.EncodeToString(sum[:])
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/a.tar":
			_, _ = w.Write(content)
		case "/moved":
			http.Redirect(w, r, "/a.tar", http.StatusFound)
		case "/plain":
			http.Redirect(w, r, "http://"+r.Host+"/a.tar", http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s := &deploy.Source{Client: server.Client()}
	for _, tt := range []struct{ artifact, err string }{
		{"file://" + file, ""},
		{server.URL + "/a.tar", ""},
		{server.URL + "/moved", ""},
		{server.URL + "/plain", "the server redirects to a URL that is not https"},
		{server.URL + "/round", "stopped after 10 redirects"},
		{server.URL + "/none", "the server answered 404 Not Found"},
		{"file://" + filepath.Dir(file), "is a directory; allowed: a regular file"},
		{"file:///nope/x", "no such file"},
		{"http://example.org/a.tar", "its URL is not valid; allowed: file:///absolute/path or https://host/path"},
		{"https://u:p@example.org/a", "not valid"},
		{"\x00", "not valid"},
		{"file://host/a", "not valid"},
	} {
		got, err := s.Digest(t.Context(), &manifest.Artifact{Kind: manifest.ArtifactTar, URL: tt.artifact})
		switch {
		case tt.err == "" && (err != nil || got != want):
			t.Errorf("%s: %s, %v", tt.artifact, got, err)
		case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("%s: %v", tt.artifact, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tar := &manifest.Artifact{Kind: manifest.ArtifactTar, URL: "file://" + file}
	if _, err := s.Digest(ctx, tar); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A wait for the number of pods of a plan ends although somebody else has scaled the service since.
func TestAwaitAfterSomebodyScaled(t *testing.T) {
	w := newWorld(t)
	p, err := w.deployment(t, "a").Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	svc, _ := w.Service(t.Context(), "web")
	r := svc.Controllers[0].RC
	goal := plan.Goal{Service: "web", Rollout: p.Rollout(), RC: r.ID, Reached: plan.Available, Pods: 2}
	// Somebody else has scaled the service down to 1 since, and the rollout is done.
	w.put(t, w.Store.Keys().Statuses.Key(r.ID),
		rc.Status{RCID: r.ID, ObservedGeneration: r.Generation, Desired: 1, Available: 1, Placed: 1})
	w.end(t, rollout.Done, "")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := w.Await(ctx, goal); err != nil {
		t.Errorf("the rollout is done, and it waits on: %v", err)
	}
}
