package preparer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/local"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

func localPod(service string, index int) pod.Identity {
	return pod.Identity{RCID: pod.LocalRC(service), Role: "main", Index: index}
}

func (a *agent) ask(t *testing.T, r scale.Request) error {
	t.Helper()
	answer, err := a.Scale(t.Context(), r)
	if answer.Success != (err == nil) || answer.Service != r.Service {
		t.Errorf("answer %+v with %v", answer, err)
	}
	return err
}

// must repeats a request while the node is not ready.
func (a *agent) must(t *testing.T, r scale.Request) {
	t.Helper()
	consultest.Eventually(t, patience, func() error {
		err := a.ask(t, r)
		if err != nil && !errors.Is(err, scale.ErrUnavailable) {
			t.Fatal(err)
		}
		return err
	})
}

func (b *bench) specOf(m manifest.Manifest) scale.Spec {
	b.t.Helper()
	canonical, err := m.Canonical()
	if err != nil {
		b.t.Fatal(err)
	}
	return scale.Spec{Manifest: canonical}
}

func (b *bench) localReality(id pod.Identity) (r pod.Reality, err error) {
	pair, err := b.client.Get(b.t.Context(), b.keys.Realities.Key(b.cfg.Node.Name, id.String()), consul.Consistent)
	if err == nil {
		err = json.Unmarshal(pair.Value, &r)
	}
	return r, err
}

func (b *bench) awaitLocal(service string, index int, m manifest.Manifest) (r pod.Reality) {
	b.t.Helper()
	digest, _ := encodeManifest(b.t, m)
	b.eventually(func() (err error) {
		if r, err = b.localReality(localPod(service, index)); err == nil &&
			(!r.Available || r.Digest != digest || r.Kind != pod.KindLocal) {
			err = fmt.Errorf("reality %+v", r)
		}
		return err
	})
	return r
}

func (b *bench) awaitNoLocal(service string, index int) {
	b.t.Helper()
	b.eventually(func() error {
		r, err := b.localReality(localPod(service, index))
		if errors.Is(err, consul.ErrNotFound) {
			return nil
		}
		return fmt.Errorf("reality %+v, %w", r, err)
	})
}

func (b *bench) claims() map[string]node.Claim {
	b.t.Helper()
	found, bad, err := b.store.ReservationsOf(b.t.Context(), []string{b.cfg.Node.Name})
	if err != nil || len(bad) > 0 {
		b.t.Fatal(err, bad)
	}
	return found[b.cfg.Node.Name].Value.Claims
}

func (b *bench) awaitClaims(want ...pod.Identity) {
	b.t.Helper()
	b.eventually(func() error {
		claims := b.claims()
		for _, id := range want {
			if _, there := claims[id.String()]; !there {
				return fmt.Errorf("no share of %s in %v", id, claims)
			}
		}
		if len(claims) != len(want) {
			return fmt.Errorf("shares %v, want those of %v", claims, want)
		}
		return nil
	})
}

func (b *bench) alive(service string) map[pod.Identity]int {
	b.t.Helper()
	all, _, err := b.runtime.Watch(b.t.Context(), 0)
	if err != nil {
		b.t.Fatal(err)
	}
	pids := map[pod.Identity]int{}
	for _, s := range all {
		if s.Spec.Pod.LocalService() == service && s.Phase == runtime.Running {
			pids[s.Spec.Pod] = s.PID
		}
	}
	return pids
}

// A local service needs no farm. It starts and scales by requests, and runs on without the preparer and without Consul.
// Its record outlives its stop, unless many other services have stopped since.
func TestLocalServiceScalesAndRunsOnWithoutConsul(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	b.awaitServing()
	one := b.sleeper("1")
	if err := a.ask(t, scale.New("web", 1)); !errors.Is(err, scale.ErrUnknownService) {
		t.Errorf("without a spec: %v", err)
	}
	a.must(t, scale.New("web", 2).WithSpec(b.specOf(one)))
	b.awaitLocal("web", 0, one)
	b.awaitLocal("web", 1, one)
	b.awaitClaims(localPod("web", 0), localPod("web", 1))
	before := b.alive("web")

	a.stop()
	a = b.startAlone() // without Consul the service continues to run, and fewer replicas need no reservation
	b.eventually(a.Ready)
	if err := a.ask(t, scale.New("web", 3)); !errors.Is(err, scale.ErrUnavailable) {
		t.Errorf("more replicas without Consul: %v", err)
	}
	a.must(t, scale.New("web", 1))
	b.eventually(func() error {
		if now := b.alive("web"); len(now) != 1 || now[localPod("web", 0)] != before[localPod("web", 0)] {
			return fmt.Errorf("%v run, before %v", now, before)
		}
		return nil
	})
	a.stop()

	a = b.start()
	b.awaitClaims(localPod("web", 0))
	b.awaitNoLocal("web", 1)
	a.must(t, scale.NewWithAssignments("web", []scale.ScaleAssignment{{Role: "default", Indices: []uint32{0, 7}}}))
	b.awaitLocal("web", 7, one)
	a.must(t, scale.New("web", 0))
	b.awaitClaims()
	b.awaitNoLocal("web", 0)
	b.awaitNoLocal("web", 7)
	if n := b.alive("web"); len(n) > 0 {
		t.Errorf("%v run", n)
	}
	keys, err := b.client.Keys(t.Context(), b.keys.Prefix())
	for _, key := range keys {
		if strings.Contains(key, "local-") {
			t.Errorf("left in Consul: %s, %v", key, err)
		}
	}
	a.stop() // the next preparer knows the stopped service
	b.leaveResting(local.MaxResting)
	a = b.start()
	a.must(t, scale.New("web", 0))
	a.must(t, scale.New("web", 1))
	b.awaitLocal("web", 0, one)
	b.eventually(func() error {
		if _, err := os.Stat(filepath.Join(b.cfg.Dir, "local", "old-0.json")); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the service that stopped first is not forgotten: %w", err)
		}
		return nil
	})
	if err := a.ask(t, scale.New("old-0", 1)); !errors.Is(err, scale.ErrUnknownService) {
		t.Errorf("after it was forgotten: %v", err)
	}
	if err := a.ask(t, scale.New("old-1", 0)); err != nil {
		t.Errorf("the service that stopped later: %v", err)
	}
}

// Replicas get a new version one after the other. While a replica with the new version is not available, the others
// keep theirs.
func TestLocalServiceIsUpgradedOneReplicaAfterTheOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	b.awaitServing()
	one, two := b.sleeper("1"), b.sleeper("2")
	a.must(t, scale.New("web", 3).WithSpec(b.specOf(one)))
	for i := range 3 {
		b.awaitLocal("web", i, one)
	}
	before := b.alive("web")
	ready := field.Duration(time.Hour)
	sick := b.sleeper("sick")
	sick.MinReady = &ready
	a.must(t, scale.New("web", 3).WithSpec(b.specOf(sick)))
	digest, _ := encodeManifest(t, sick)
	b.eventually(func() error {
		if r, err := b.localReality(localPod("web", 0)); err != nil || r.Digest != digest ||
			r.State != pod.StateRunning {
			return fmt.Errorf("%+v, %w", r, err)
		}
		return nil
	})
	a.stop() // a restart of the preparer does not change this
	a = b.start()
	b.awaitServing()
	if now := b.alive("web"); now[localPod("web", 1)] != before[localPod("web", 1)] ||
		now[localPod("web", 2)] != before[localPod("web", 2)] {
		t.Errorf("%v run, before %v", now, before)
	}
	a.must(t, scale.New("web", 3).WithSpec(b.specOf(two)))
	for i := range 3 {
		b.awaitLocal("web", i, two)
	}
}

// A request for more than the node's capacity changes nothing. Pods of controllers reduce the capacity. A lost share of
// a local service is reserved again.
func TestLocalServicesReserveCapacity(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.Node.Capacity = node.Capacity{Slots: 4, Memory: 1000}
	b.cfg.Node.PortRange = node.PortRange{Min: 20000, Max: 20001}
	a := b.start()
	b.awaitServing()
	reserve := func(h node.Claim) {
		data, err := json.Marshal(node.Reservation{Claims: map[string]node.Claim{h.Pod.String(): h}})
		if err != nil {
			t.Fatal(err)
		}
		b.commit(consul.Set(b.keys.Reservations.Key(b.cfg.Node.Name), data))
	}
	reserve(node.NewClaim(identity(0), map[string]int{"a": 20000, "b": httpPort}, 0, 500))
	m := b.sleeper("1")
	m.Ports = []manifest.Port{{Name: "x", Dynamic: true}}
	m.Launchables[0].Resources.Memory = 300
	for _, c := range []struct {
		m    manifest.Manifest
		n    uint32
		want string
	}{
		{m, 2, "memory (bytes): it offers 1000, 800 are taken, 300 more are asked for"},
		{func() manifest.Manifest { m := b.server("1"); return m }(), 1, "port 18080 is taken by rc1/main.0"},
		{func() manifest.Manifest {
			m := m
			m.Launchables = slices.Clone(m.Launchables)
			m.Launchables[0].Resources.Memory = 1
			return m
		}(), 2, "20000 to 20001, has too few numbers left"},
		{b.sleeper("2"), 4, "slots: it offers 4, 4 are taken, 1 more are asked for"},
	} {
		if err := a.ask(t, scale.New("web", c.n).WithSpec(b.specOf(c.m))); !errors.Is(err, scale.ErrConflict) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q: %v", c.want, err)
		}
	}
	b.awaitClaims(identity(0))
	a.must(t, scale.New("web", 1).WithSpec(b.specOf(m)))
	b.awaitLocal("web", 0, m)
	if h := b.claims()[localPod("web", 0).String()]; !slices.Equal(h.Ports, []int{20001}) || h.Memory != 300 {
		t.Errorf("share %+v", h)
	}
	b.cfg.RelistEvery = 50 * time.Millisecond
	a.stop()
	a = b.start()
	b.awaitClaims(identity(0), localPod("web", 0))
	reserve(node.NewClaim(identity(0), nil, 0, 500)) // removes the service's share
	b.awaitClaims(identity(0), localPod("web", 0))
	reserve(node.NewClaim(localPod("gone", 0), nil, 0, 1)) // a share of no local service
	b.awaitClaims(localPod("web", 0))
	data, err := json.Marshal(node.Reservation{Ineligible: true})
	if err != nil {
		t.Fatal(err)
	}
	b.commit(consul.Set(b.keys.Reservations.Key(b.cfg.Node.Name), data))
	if err := a.ask(t, scale.New("web", 2)); !errors.Is(err, scale.ErrConflict) ||
		!strings.Contains(err.Error(), "drained") {
		t.Errorf("on a drained node: %v", err)
	}
	b.awaitClaims(localPod("web", 0))
}

// A name belongs to the local service or pod that wants it first.
func TestALocalServiceAndAPodCannotHaveTheSameName(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	m := b.sleeper("1")
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	if err := a.ask(t, scale.New("web", 1).WithSpec(b.specOf(m))); !errors.Is(err, scale.ErrConflict) ||
		!strings.Contains(err.Error(), "pod rc1/main.0 of a controller has the name") {
		t.Errorf("a controller's name: %v", err)
	}
	b.write(intent(0, digest, pod.Stopped, 11))
	b.awaitState(0, pod.StateStopped, 11, "")
	b.eventually(func() error { return a.ask(t, scale.New("web", 1).WithSpec(b.specOf(m))) })
	b.awaitLocal("web", 0, m)
	b.write(intent(0, digest, pod.Running, 12))
	b.awaitState(0, pod.StatePending, 12, `the local service "web" has its name`)
	other := localPod("web", 0) // an intent cannot change a local service
	b.write(pod.Intent{Identity: other, PodID: "web", Digest: digest, State: pod.Stopped, Revision: 1 << 50})
	b.awaitLog("only requests to this node may change")
	if n := b.alive("web"); len(n) != 1 {
		t.Errorf("%v run", n)
	}
	a.must(t, scale.New("web", 0))
	b.awaitReady(0, digest, 12)
}

// Requests that are invalid, too old, or of a newer release change nothing.
func TestRefusedLocalRequestsChangeNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	b.awaitServing()
	m := b.sleeper("1")
	revised := func(revision int64, n uint32) scale.Request {
		r := scale.New("web", n)
		r.Revision = revision
		return r
	}
	a.must(t, revised(7, 1).WithSpec(b.specOf(m)))
	other, root := m, m
	other.ID = "other"
	root.Launchables = nil
	for name, c := range map[string]struct {
		r    scale.Request
		is   error
		want string
	}{
		"older":       {revised(6, 0), scale.ErrConflict, "older than 7"},
		"another's":   {scale.New("web", 1).WithSpec(b.specOf(other)), scale.ErrInvalid, "spec.manifest.id"},
		"no manifest": {scale.New("web", 1).WithSpec(b.specOf(root)), scale.ErrInvalid, "spec.manifest.launchables"},
		"no known one": {
			scale.New("web", 1).WithSpec(scale.Spec{Manifest: json.RawMessage(`{"colour":"red"}`)}), scale.ErrInvalid,
			"spec.manifest.colour",
		},
		"labels": {
			scale.New("web", 1).WithSpec(scale.Spec{
				Manifest: b.specOf(m).Manifest, Labels: map[string]string{"-": ""},
			}),
			scale.ErrInvalid, "spec.labels",
		},
		"name": {scale.New(strings.Repeat("w", 60), 1), scale.ErrInvalid, "at most 57"},
		"one role": {
			scale.NewWithAssignments("web", []scale.ScaleAssignment{{Role: "main"}, {Role: "default"}}),
			scale.ErrInvalid, "assignments[1].role",
		},
	} {
		if err := a.ask(t, c.r); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a.must(t, revised(7, 1)) // the last request again
	a.must(t, scale.New("web", 1))
	b.awaitLocal("web", 0, m)
	if n := b.alive("web"); len(n) != 1 {
		t.Errorf("%v run", n)
	}
}

// If a local service's file is lost, its pods run on and keep their shares, until a request defines it again.
func TestPodsOfALostLocalServiceRunOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	b.awaitServing()
	m := b.sleeper("1")
	a.must(t, scale.New("web", 2).WithSpec(b.specOf(m)))
	b.awaitLocal("web", 0, m)
	b.awaitLocal("web", 1, m)
	before := b.alive("web")
	a.stop()
	if err := os.WriteFile(filepath.Join(b.cfg.Dir, "local", "web.json"), []byte(`{"version":1,`), 0o600); err != nil {
		t.Fatal(err)
	}
	a = b.start()
	b.eventually(func() error {
		r, err := b.localReality(localPod("web", 1))
		if err == nil && !strings.Contains(r.Message, "record of its service was lost") {
			err = fmt.Errorf("reality %+v", r)
		}
		return err
	})
	b.awaitClaims(localPod("web", 0), localPod("web", 1))
	if n := b.awaitServing(); n.OrphanCount() != 0 {
		t.Errorf("the node's record has %d orphans", n.OrphanCount())
	}
	a.must(t, scale.New("web", 1).WithSpec(b.specOf(m)))
	b.awaitClaims(localPod("web", 0))
	b.eventually(func() error {
		if now := b.alive("web"); len(now) != 1 || now[localPod("web", 0)] != before[localPod("web", 0)] {
			return fmt.Errorf("%v run, before %v", now, before)
		}
		return nil
	})
}

// If the preparer dies during a request, it has taken effect as a whole or not at all, and each share has a replica.
func TestLocalRequestIsCompleteOrUndoneAfterACrash(t *testing.T) {
	t.Parallel()
	for step, happened := range map[string]bool{"local booked": false, "local saved": true} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			runCrash(t, b, step, happened)
		})
	}
}

func runCrash(t *testing.T, b *bench, step string, happened bool) {
	t.Helper()
	died := make(chan any, 1)
	b.cfg.Step = func(name string) {
		if name == step {
			panic(step)
		}
	}
	a := b.start()
	b.awaitServing()
	m := b.sleeper("1")
	go func() {
		defer func() { died <- recover() }()
		_, _ = a.Scale(context.WithoutCancel(t.Context()), scale.New("web", 1).WithSpec(b.specOf(m)))
	}()
	if got := <-died; got != step {
		t.Fatalf("it did not reach the step %s: %v", step, got)
	}
	b.awaitClaims(localPod("web", 0))
	a.stop()
	b.cfg.Step = nil
	a = b.start()
	if happened {
		b.awaitLocal("web", 0, m)
		b.awaitClaims(localPod("web", 0))
		return
	}
	b.awaitClaims()
	b.eventually(func() error { // the preparer may not have read its disk yet
		if err := a.ask(t, scale.New("web", 1)); !errors.Is(err, scale.ErrUnknownService) {
			return fmt.Errorf("the service of the undone request: %w", err)
		}
		return nil
	})
}

type slowLock struct {
	preparer.Session
	t        *testing.T
	take     chan struct{}
	acquired atomic.Bool
}

func (s *slowLock) AcquireNode(ctx context.Context, n node.Node, takeOver bool) error {
	select {
	case <-s.take:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := s.Session.AcquireNode(ctx, n, takeOver)
	if err == nil {
		s.acquired.Store(true)
	}
	return err
}

func (s *slowLock) ChangeReservation(
	ctx context.Context, change func(node.Reservation, bool) (node.Reservation, error),
) error {
	if !s.acquired.Load() {
		s.t.Error("a share is reserved before the node's lock is held")
	}
	return s.Session.ChangeReservation(ctx, change)
}

// A share of an unknown local service is removed when the preparer takes the node's lock. Before that, no capacity can
// be reserved.
func TestLocalServicesReserveNothingWithoutTheLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.RelistEvery = time.Hour
	lost := localPod("gone", 0)
	data, err := json.Marshal(node.Reservation{
		Claims: map[string]node.Claim{lost.String(): node.NewClaim(lost, nil, 1, 0)},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.commit(consul.Set(b.keys.Reservations.Key(b.cfg.Node.Name), data))
	lock := &slowLock{t: t, take: make(chan struct{})}
	a := b.startWith(func(session preparer.Session) preparer.Session { lock.Session = session; return lock })
	b.awaitLog("session taken")
	m := b.sleeper("1")
	b.eventually(func() error {
		if err := a.ask(t, scale.New("web", 1).WithSpec(b.specOf(m))); !errors.Is(err, scale.ErrUnavailable) ||
			!strings.Contains(err.Error(), "lock") {
			return fmt.Errorf("before the lock is held: %w", err)
		}
		return nil
	})
	close(lock.take)
	b.awaitClaims()
	a.must(t, scale.New("web", 1).WithSpec(b.specOf(m)))
	b.awaitLocal("web", 0, m)
}
