package preparer_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// unwatched fails the test on a standing query for intents.
type unwatched struct {
	preparer.Store
	t *testing.T
}

func (u *unwatched) WatchIntents(
	ctx context.Context, _ string, _ func(error), _ func(store.Seen[pod.Intent]) error,
) error {
	u.t.Error("a standing query on intents")
	<-ctx.Done()
	return context.Cause(ctx)
}

// pushing reads intents only after a push and at the beginning of a session.
func pushing(t *testing.T) *bench {
	b := newBench(t)
	b.cfg.Push, b.cfg.PullEvery, b.cfg.Store = true, 24*time.Hour, &unwatched{b.store, t}
	return b
}

// written writes an intent, or deletes it if in is nil, together with a second key, and returns the index.
func (b *bench) written(index int, in *pod.Intent) int64 {
	b.t.Helper()
	key := b.keys.Intents.Key(b.cfg.Node.Name, identity(index).String())
	beside := b.keys.Statuses.Key(identity(index).RCID)
	op := consul.Delete(key)
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			b.t.Fatal(err)
		}
		op = consul.Set(key, data)
	}
	written, err := b.client.Commit(b.t.Context(), []consul.Op{op, consul.Set(beside, []byte(store.NewID()))})
	if err != nil {
		b.t.Fatal(err)
	}
	return int64(written[beside])
}

// pushOf is of a farm that has held the controller's lock since index lock.
func (b *bench) pushOf(lock, revision int64) scale.Request {
	b.t.Helper()
	epoch := b.epoch()
	r := scale.New("web", 1)
	r.Revision = revision
	r.Epoch = &scale.Epoch{Cluster: epoch, RCID: identity(0).RCID, Term: scale.Term(epoch, uint64(lock))}
	return r
}

// After a push, a node without a standing query reads its intents, and runs, upgrades and stops pods. It stops no pod
// because the pod is missing in the push or has no intent (P1, P4). It refuses late pushes, and pushes of a previous
// owner, also after a restart.
func TestANodeReadsItsIntentsAfterAPush(t *testing.T) {
	t.Parallel()
	b := pushing(t)
	a := b.start()
	b.awaitServing()
	one, two := b.upload(b.sleeper("1")), b.upload(b.sleeper("2"))
	run, up, stop := intent(0, one, pod.Running, 10), intent(0, two, pod.Running, 11), intent(0, two, pod.Stopped, 12)
	const lock = 5
	first := b.written(0, &run)
	a.must(t, b.pushOf(lock, first))
	b.awaitReady(0, one, 10)
	a.must(t, b.pushOf(lock, b.written(0, &up)))
	b.awaitReady(0, two, 11)
	pid := b.pid(0)
	a.must(t, b.pushOf(lock, b.written(0, nil)).WithSpec(scale.Spec{}))
	b.awaitNode("an orphan", func(n node.Node, _ string) bool { return len(n.Orphans) == 1 })
	b.mustKeepPID(0, pid)
	successor := b.written(1, nil)
	last := b.written(0, &stop)
	a.must(t, b.pushOf(successor, last))
	b.awaitState(0, pod.StateStopped, 12, "")
	for range 2 {
		for name, r := range map[string]scale.Request{
			"of the previous owner": b.pushOf(lock, first), "late": b.pushOf(successor, last-1),
			"of a future index": b.pushOf(successor, last+1000),
		} {
			if err := a.ask(t, r); !errors.Is(err, scale.ErrConflict) && !errors.Is(err, scale.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		a.must(t, b.pushOf(successor, last)) // sent twice
		a.stop()
		a = b.start()
		b.awaitServing()
	}
}

// A node without pushes reads its intents after PullEvery.
func TestANodeReadsItsIntentsWithoutAPush(t *testing.T) {
	t.Parallel()
	b := pushing(t)
	b.cfg.PullEvery = 100 * time.Millisecond
	b.start()
	b.awaitServing()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
}

// Without Consul, a push is answered with an error. When Consul answers again, the node reads its intents without
// another push, because other pushes may have failed.
func TestAPushFailsWithoutConsul(t *testing.T) {
	t.Parallel()
	b := pushing(t)
	proxy := consultest.StartProxy(t, consultest.Shared(t).Addr)
	own, err := consul.New(consul.Config{Address: proxy.Addr, CallTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	b.own, b.cfg.Store = own, &unwatched{store.New(own, b.keys), t}
	a := b.start()
	b.awaitServing()
	digest := b.upload(b.sleeper("1"))
	proxy.Set(consultest.Always(consultest.Refuse))
	run := intent(0, digest, pod.Running, 10)
	r := b.pushOf(5, b.written(0, &run))
	if err := a.ask(t, r); !errors.Is(err, scale.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if procs := b.procs(0); len(procs) > 0 {
		t.Errorf("%+v run", procs)
	}
	proxy.Set(func(*http.Request) consultest.Verdict { return consultest.Forward })
	b.awaitReady(0, digest, 10)
	b.eventually(func() error { _, err := a.Scale(t.Context(), r); return err })
}

// A push with another epoch is refused unless Consul has it. If it does, the node accepts the push even before its
// watch delivers the epoch, and then echoes it (R1).
func TestAPushNeedsAnEpochThatConsulHas(t *testing.T) {
	t.Parallel()
	b := pushing(t)
	a := b.start()
	b.awaitServing()
	digest := b.upload(b.sleeper("1"))
	run := intent(0, digest, pod.Running, 10)
	foreign := b.pushOf(5, b.written(0, &run))
	foreign.Epoch.Cluster = "01jd8k3v9q6t2m5x7z0b4c1n8r"
	foreign.Epoch.Term = scale.Term(foreign.Epoch.Cluster, 5)
	if err := a.ask(t, foreign); !errors.Is(err, scale.ErrConflict) {
		t.Errorf("another cluster's: %v", err)
	}
	if procs := b.procs(0); len(procs) > 0 {
		t.Errorf("%+v run", procs)
	}
	data, err := json.Marshal(store.Schema{
		FormatVersion: store.FormatVersion, Epoch: store.NewID(), CreatedAt: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	b.commit(consul.Set(b.keys.Schema.Key(), data))
	a.must(t, b.pushOf(5, foreign.Revision))
	b.awaitServing()
	b.awaitReady(0, digest, 10)
}

// A node with a standing query answers a push when the query has delivered its intents.
func TestANodeWithAStandingQueryAcceptsPushes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	b.awaitServing()
	digest := b.upload(b.sleeper("1"))
	run := intent(0, digest, pod.Running, 10)
	at := b.written(0, &run)
	b.eventually(func() error { _, err := a.Scale(t.Context(), b.pushOf(5, at)); return err })
	b.awaitReady(0, digest, 10)
}
