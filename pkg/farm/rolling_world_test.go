package farm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/webhook"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The unit of the service web, and its controllers.
const (
	rolled                    = "01m82rq476dk3dzcatmcv2vmc4"
	rolled1, rolled2, rolled3 = rolled + "-1", rolled + "-2", rolled + "-3"
	rolledPre                 = rolled + "-2-pre"
)

// service is the service web on nodes that check the bounds of its rollouts.
type service struct {
	*cluster

	mu          sync.Mutex
	slow        map[string]bool   // by controller: its pods start and do not become available
	sick        map[string]string // by controller: why none of its pods can run
	ends        *pod.Exit         // how the pod that runs once ends at once; nil: it runs on
	onces       int               // how often that pod was started
	runs        map[pod.Identity]bool
	grew        bool // the second revision has had a pod
	least, most int  // bounds of the service's pods, from now on; most 0: any number
}

func newService(t *testing.T, nodes ...string) *service {
	t.Helper()
	s := &service{
		cluster: newCluster(t), slow: map[string]bool{}, sick: map[string]string{},
		runs: map[pod.Identity]bool{},
	}
	for _, name := range nodes {
		s.node(name, map[string]string{"name": name}, s.react)
	}
	return s
}

// react carries out an intent as the test has set, and checks how many pods the service has then.
func (s *service) react(in pod.Intent) pod.Reality {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := simnode.Obey(in)
	runs := in.State == pod.Running
	if in.RCID == rolledPre && runs {
		r.State, r.Available = pod.StateStarting, false
		s.onces++
		s.end(&r)
		if why, sick := s.sick[in.RCID]; sick {
			r.State, r.Hopeless, r.Message = pod.StateFailed, true, why
		}
	}
	if in.RCID == rolledPre {
		return r
	}
	if delete(s.runs, in.Identity); runs {
		s.runs[in.Identity] = true
	}
	s.grew = s.grew || runs && in.RCID == rolled2
	if n := len(s.runs); s.most > 0 && (n < s.least || n > s.most) {
		s.t.Errorf("%d pods run, allowed: %d to %d", n, s.least, s.most)
	}
	switch why, sick := s.sick[in.RCID]; {
	case runs && sick:
		r.State, r.Available, r.Hopeless, r.Message = pod.StateFailed, false, true, why
	case runs && s.slow[in.RCID]:
		r.State, r.Available = pod.StateStarting, false
	}
	return r
}

// end ends the pod that runs once, if the test has set that. The caller holds the mutex.
func (s *service) end(r *pod.Reality) {
	switch e := s.ends; {
	case e == nil:
	case e.Code == 0 && e.Signal == "":
		r.State, r.LastExit = pod.StateEnded, e
	default:
		r.State, r.LastExit, r.Hopeless, r.AllEnded, r.LogTail = pod.StateFailed, e, true, true, "no such table"
	}
}

// set changes how pods behave. Only pods that get an intent after that are concerned.
func (s *service) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// changeAll changes the reports of all pods of a controller.
func (s *service) changeAll(rcID string, change func(*pod.Reality)) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	for _, n := range s.nodes {
		for id, in := range n.Running() {
			if id.RCID == rcID {
				n.Change(id, in.Revision, change)
			}
		}
	}
}

// quicken lets the pods of a slow controller become available.
func (s *service) quicken(rcID string) {
	s.t.Helper()
	s.set(func() { delete(s.slow, rcID) })
	consultest.Eventually(s.t, soon, func() error { // a slow pod may just be starting
		s.changeAll(rcID, func(r *pod.Reality) { r.State, r.Available = pod.StateReady, true })
		st, err := s.store.Statuses.Get(s.t.Context(), store.Default, rcID)
		if err == nil && st.Value.Available == 0 {
			err = fmt.Errorf("the status is %+v", st.Value)
		}
		return err
	})
}

func rolledManifest(rev int64) *manifest.Manifest { return testManifest("web", 100+int(rev)) }

func (s *service) canonical(m *manifest.Manifest) store.DeployManifest {
	s.t.Helper()
	m.Ports = nil
	canonical, err := m.Canonical()
	if err != nil {
		s.t.Fatal(err)
	}
	return store.DeployManifest{Digest: digestOf(canonical), Canonical: canonical}
}

func (s *service) controller(rev int64, count int) (rc.RC, store.DeployManifest) {
	m := s.canonical(rolledManifest(rev))
	return rc.RC{
		ID: rc.RevisionID(rolled, rev), Name: fmt.Sprintf("web-r%d", rev), ManifestDigest: m.Digest,
		ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &count}}, Strategy: rc.Dynamic, Generation: 1,
		ChangedBy: "op",
		Service:   &rc.Service{Name: "web", Revision: rev},
	}, m
}

// first makes the first revision as it is after its rollout, and waits until it runs. A farm must be running. From then
// on the service has the bounds of a rollout with the same number of pods, in which one pod may start before another
// one stops.
func (s *service) first(count int) {
	s.t.Helper()
	if _, err := s.store.EnsureSchema(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	r, m := s.controller(1, count)
	err := s.store.Operator.ChangeRC(s.t.Context(), store.RCChange{
		RC: r, Manifests: []store.DeployManifest{m}, Audit: store.NewAudit("op", "create", r.ID, nil),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.converged(rolled1, count)
	s.set(func() { s.least, s.most = count, count+1 })
}

// deploy begins a rollout to a revision with this many pods. All controllers that exist are its old revisions.
func (s *service) deploy(rev int64, count int, change func(*rollout.Start)) rollout.Record {
	s.t.Helper()
	ctx := s.t.Context()
	schema, err := s.store.Schema.Get(ctx, store.Consistent)
	if err != nil {
		s.t.Fatal(err)
	}
	recs, _, err := s.store.RCs.List(ctx, store.Consistent)
	if err != nil {
		s.t.Fatal(err)
	}
	next, m := s.controller(rev, count)
	start := rollout.Start{
		ID: store.NewID(), Service: "web", By: "op", Now: time.Now().UTC(),
		Epoch: schema.Value.Epoch, New: next,
	}
	indices := map[string]uint64{}
	for i := range recs {
		start.Old = append(start.Old, rollout.Seen{RC: recs[i].Value})
		indices[recs[i].Value.ID] = recs[i].Index
	}
	if change != nil {
		change(&start)
	}
	started, err := rollout.Begin(start)
	if err != nil {
		s.t.Fatal(err)
	}
	d := store.Deploy{
		Rollout: store.Rec[rollout.Record]{Value: started.Record}, SchemaIndex: schema.Index,
		Manifests: []store.DeployManifest{m},
		Audit:     store.NewAudit("op", "deploy", start.New.ID, started.Audit),
		Besides:   s.documents(rev, start.ID, count),
	}
	for _, r := range started.RCs {
		d.RCs = append(d.RCs, store.Rec[rc.RC]{Value: r, Index: indices[r.ID]})
	}
	if start.PreDeploy != nil {
		pre, m := s.preDeployer()
		d.RCs, d.Manifests = append(d.RCs, store.Rec[rc.RC]{Value: pre}), append(d.Manifests, m)
	}
	if err := s.store.Deployments.Deploy(ctx, d); err != nil {
		s.t.Fatal(err)
	}
	return started.Record
}

// documents writes the document of the service, and the history entry of a revision.
func (s *service) documents(rev int64, rolloutID string, count int) []consul.Op {
	spec := record.ServiceSpec{Name: "web", Replicas: &count, Pod: rolledManifest(rev)}
	id, now := rc.RevisionID(rolled, rev), time.Now().UTC()
	keys := s.store.Keys()
	return []consul.Op{
		consul.Set(keys.Deployed.Key("web"), mustJSON(s.t, record.Deployed{
			ID: rolled, Service: "web", Revision: rev, RC: id, Spec: spec, By: "op", At: now, Rollout: rolloutID,
		})),
		consul.Set(keys.Entries.Key("web", strconv.FormatInt(rev, 10)), mustJSON(s.t, record.Entry{
			Service: "web", Revision: rev, RC: id, Spec: spec, By: "op", At: now,
			Ending: record.Ending{Rollout: rolloutID},
		})),
	}
}

// preDeployer is the controller whose only pod runs once. The pod runs on the node that has the name "once".
func (s *service) preDeployer() (rc.RC, store.DeployManifest) {
	m := rolledManifest(9)
	m.ID, m.Launchables[0].Restart = "web-pre-deploy", &manifest.Restart{Policy: manifest.RestartNever}
	d := s.canonical(m)
	one := 1
	return rc.RC{
		ID: rolledPre, Name: "web-r2-pre-deploy", ManifestDigest: d.Digest, Generation: 1, ChangedBy: "op",
		ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}}, NodeSelector: "name=once", Strategy: rc.Static,
		NodeLoss: rc.NodeLoss{Action: "keep", After: new(field.Duration), UnmanagedAfter: new(field.Duration)},
	}, d
}

func withPreDeploy(s *rollout.Start) {
	s.PreDeploy = &rollout.PreDeploy{RC: rolledPre, Name: "web-r2-pre-deploy"}
}

// rollingFarm runs a farm that reaches Consul at an address. It makes no second sweep, so that only bells cause looks.
func (s *service) rollingFarm(id, addr string, change func(*farm.Config)) (stop func()) {
	s.t.Helper()
	log, err := obs.NewLogger(testWriter{s.t}, "info", "text")
	if err != nil {
		s.t.Fatal(err)
	}
	client, err := consul.New(consul.Config{Address: addr, CallTimeout: 2 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)
	st := store.New(client, s.store.Keys())
	cfg := s.session("farm", id)
	cfg.TTL = 3 * time.Second
	return s.background(func(ctx context.Context) error {
		return client.RunSession(ctx, cfg, func(ctx context.Context, session *consul.Session) error {
			of := farm.Config{
				ID: id, Store: st.FarmSession(session, id), Log: log, TTL: 500 * time.Millisecond,
				SweepEvery:  time.Hour,
				StableAfter: time.Hour,
				Ask:         webhook.Ask,
			}
			if change != nil {
				change(&of)
			}
			return startAndLead(ctx, client, st, session, id, farm.NewFarm(of))
		})
	})
}

// rollout reads the rollout.
func (s *service) rollout() (rollout.Record, error) {
	rec, err := s.store.Deployments.RolloutOf(s.t.Context(), "web")
	return rec.Value, err
}

// rolling waits for a rollout that the test accepts, and returns it.
func (s *service) rolling(good func(*rollout.Record) bool) (r rollout.Record) {
	s.t.Helper()
	consultest.Eventually(s.t, soon, func() (err error) {
		if r, err = s.rollout(); err == nil && !good(&r) {
			err = fmt.Errorf("the rollout is %s", mustJSON(s.t, r))
		}
		return err
	})
	return r
}

// moving waits until the first pod of the rollout's stage was asked for.
func (s *service) moving() rollout.Record {
	s.t.Helper()
	r := s.rolling(func(r *rollout.Record) bool { return r.Phase == rollout.Moving })
	s.run(rolled2, 1)
	return r
}

// ended waits until the service has no rollout, and checks the history entry of a revision.
func (s *service) ended(rev int64, want rollout.State, reasons ...string) {
	s.t.Helper()
	consultest.Eventually(s.t, soon, func() error {
		r, err := s.rollout()
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return fmt.Errorf("there is still %s, %w", mustJSON(s.t, r), err)
	})
	e, err := s.store.Entries.Get(s.t.Context(), store.Consistent, "web", strconv.FormatInt(rev, 10))
	if err != nil || e.Value.Outcome != want || e.Value.EndedAt == nil {
		s.t.Errorf("the history has of revision %d: %+v, %v; want %s", rev, e.Value.Ending, err, want)
	}
	for _, text := range reasons {
		if !strings.Contains(e.Value.Reason, text) {
			s.t.Errorf("%q does not contain %q", e.Value.Reason, text)
		}
	}
}

// only waits until one controller is left, with the given number of pods. No other controller has a status, a name, a
// placement or trouble then. Of the unit, one lock, one bell, the drops and the keys in left may remain.
func (s *service) only(id string, count int, left ...string) {
	s.t.Helper()
	consultest.Eventually(s.t, soon, func() error {
		recs, _, err := s.store.RCs.List(s.t.Context(), store.Consistent)
		if err != nil || len(recs) != 1 {
			return fmt.Errorf("%d controllers, %w", len(recs), err)
		}
		r := recs[0].Value
		if r.ID != id || r.Desired() != count || r.DeletedAt != nil || r.AllowMassStop != 0 {
			return fmt.Errorf("left %+v", r)
		}
		return nil
	})
	s.converged(id, count)
	consultest.Eventually(s.t, soon, func() error {
		keys := s.store.Keys()
		pairs, err := s.client.List(s.t.Context(), keys.Prefix(), consul.Consistent)
		for _, p := range pairs {
			path := strings.TrimPrefix(p.Key, keys.Prefix())
			kind, _, _ := strings.Cut(path, "/")
			mine := strings.Contains(path, id) || p.Key == keys.Locks.Key(rolled) || p.Key == keys.Bells.Key(rolled) ||
				strings.HasPrefix(p.Key, keys.Drops.Key(rolled)) || slices.Contains(left, p.Key)
			if strings.Contains(path, rolled) && !mine || kind == "names" && string(p.Value) != id {
				return fmt.Errorf("left %s: %s", p.Key, p.Value)
			}
		}
		return err
	})
}

// noStepTwice fails the test if two audit records of farms have the same step.
func (s *service) noStepTwice() {
	s.t.Helper()
	audits, _, err := s.store.ListAudit(s.t.Context(), store.AuditFilter{})
	if err != nil {
		s.t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, a := range audits {
		if text := fmt.Sprint(a.What, a.Changes); strings.HasPrefix(a.What, "rollout") && len(a.Changes) > 0 {
			if seen[text] {
				s.t.Errorf("twice: %s", text)
			}
			seen[text] = true
		}
	}
}

// request makes a request to the rollout, as an operator does.
func (s *service) request(verb rollout.Verb) {
	s.t.Helper()
	err := s.store.Operator.AskRollout(s.t.Context(), store.RolloutAsk{
		Service: "web", Request: rollout.Request{Verb: verb, By: "op", At: time.Now().UTC()},
		Audit: store.NewAudit("op", string(verb), "", nil),
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// closed waits until a channel is closed.
func (s *service) closed(c <-chan struct{}, what string) {
	s.t.Helper()
	consultest.Eventually(s.t, soon, func() error {
		select {
		case <-c:
			return nil
		default:
			return fmt.Errorf("not %s yet", what)
		}
	})
}

// onStep gives a verdict on the n-th transaction with a step of a rollout, from 0, and forwards all other requests. cut
// is closed when that transaction has come.
func (s *service) onStep(n int, v consultest.Verdict) (rule func(*http.Request) consultest.Verdict, cut chan struct{}) {
	cut = make(chan struct{})
	keys := s.store.Keys()
	step := func(body []byte) bool {
		var ops []struct{ KV struct{ Verb, Key string } }
		if json.Unmarshal(body, &ops) != nil {
			return false
		}
		has := func(key string, verbs ...string) bool {
			return slices.ContainsFunc(ops, func(op struct{ KV struct{ Verb, Key string } }) bool {
				return op.KV.Key == key && slices.Contains(verbs, op.KV.Verb)
			})
		}
		return has(keys.Rollouts.Key(rolled), "cas", "delete", "delete-cas") &&
			has(keys.Locks.Key(rolled), "check-session")
	}
	return func(r *http.Request) consultest.Verdict {
		if r.URL.Path != "/v1/txn" {
			return consultest.Forward
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !step(body) {
			return consultest.Forward
		}
		if n--; n != -1 {
			return consultest.Forward
		}
		close(cut)
		return v
	}, cut
}
