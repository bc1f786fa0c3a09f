package preparer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// otherHost makes the node's name another host's, as its preparer does, and returns what ends that.
func (b *bench) otherHost() (release func()) {
	b.t.Helper()
	return b.otherHostAs(false, func(*node.Node) {})
}

func (b *bench) otherHostAs(takeOver bool, change func(*node.Node)) (release func()) {
	b.t.Helper()
	other := make(chan struct{})
	ctx, cancel := context.WithCancel(b.t.Context())
	var held sync.WaitGroup
	held.Go(func() {
		_ = b.client.RunSession(ctx, consul.SessionConfig{Kind: "preparer", Name: "other", TTL: patience, Journal: new(journal)},
			func(ctx context.Context, sess *consul.Session) error {
				n := b.cfg.Node
				n.Host = "other-host"
				change(&n)
				if err := b.store.NodeSession(sess, n.Name).AcquireNode(ctx, n, takeOver); err != nil {
					return err
				}
				select {
				case other <- struct{}{}:
					<-ctx.Done()
				case <-ctx.Done():
				}
				return context.Cause(ctx)
			})
	})
	release = func() { cancel(); held.Wait() }
	b.t.Cleanup(release)
	select {
	case <-other:
	case <-time.After(patience):
		b.t.Fatal("the other preparer does not get the node")
	}
	return release
}

// refusals counts how often the name was refused, which the log does not say.
type refusals struct {
	preparer.Session
	mu    sync.Mutex
	count int
	last  error
}

func (r *refusals) AcquireNode(ctx context.Context, n node.Node, takeOver bool) error {
	err := r.Session.AcquireNode(ctx, n, takeOver)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.count++
		r.last = err
	}
	return err
}

func (b *bench) awaitRefusals(r *refusals, more int) {
	b.t.Helper()
	r.mu.Lock()
	want := r.count + more
	r.mu.Unlock()
	b.eventually(func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.count < want {
			return fmt.Errorf("%d refusals, want %d; the last: %w", r.count, want, r.last)
		}
		return nil
	})
}

func (b *bench) startCounting(r *refusals) *agent {
	return b.startWith(func(t preparer.Session) preparer.Session { r.Session = t; return r })
}

// A node whose name is another host's accepts nothing, whether or not that one's preparer lives. An operator who knows that
// nothing of the other runs any more says so, once.
func TestNameConflict(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	reg := prometheus.NewRegistry()
	b.cfg.Metrics = preparer.NewMetrics(reg)
	release := b.otherHost()
	digest := b.upload(b.sleeper("1"))
	b.tell(intent(0, digest, pod.Running, 10))
	r := &refusals{}
	a := b.startCounting(r)
	b.awaitLog("this node's name belongs to another host; no intents are taken: other-host")
	release()
	b.awaitRefusals(r, 3) // also with the lock free
	for _, want := range []string{"--take-over-name", "--node", b.keys.Nodes.Key(b.cfg.Node.Name)} {
		if !strings.Contains(b.log.text(), want) {
			t.Errorf("the log does not say %s", want)
		}
	}
	b.eventually(func() error {
		if err := a.Ready(); err == nil || !strings.Contains(err.Error(), "other-host") {
			return fmt.Errorf("ready: %w", err)
		}
		return nil
	})
	if err := metric(reg, "rcfarm_preparer_name_refused", 1); err != nil || len(b.procs(0)) != 0 {
		t.Errorf("%v; processes %+v", err, b.procs(0))
	}
	if n, _ := b.node(); n.Host != "other-host" {
		t.Errorf("the record is host %s's", n.Host)
	}
	a.stop()

	b.cfg.TakeOver, b.cfg.Metrics = true, nil
	a = b.start()
	b.awaitReady(0, digest, 10)
	pid := b.pid(0)
	if err := a.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	mine, _ := b.node()
	// It said so once: after the name has become another's again it needs to be said again.
	b.setNode(node.Node{Name: mine.Name, Host: "third-host", ConsulNode: mine.ConsulNode})
	b.awaitLog("this node's name belongs to another host; no intents are taken: third-host")
	b.mustKeepPID(0, pid)
}

func (b *bench) node() (n node.Node, session string) {
	b.t.Helper()
	pair, err := b.client.Get(b.t.Context(), b.keys.Nodes.Key(b.cfg.Node.Name), consul.Consistent)
	if err == nil {
		err = json.Unmarshal(pair.Value, &n)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return n, pair.Session
}

// setNode puts a record in place of what is there, and nobody holds its lock.
func (b *bench) setNode(n node.Node) {
	b.t.Helper()
	data, err := json.Marshal(n)
	if err != nil {
		b.t.Fatal(err)
	}
	key := b.keys.Nodes.Key(b.cfg.Node.Name)
	b.commit(consul.Delete(key), consul.Set(key, data))
}

// The name of a machine whose agent is not known any more is free, and so is one without a record.
func TestNameConflictWithAHostThatIsGone(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*bench){
		"agent not known": func(b *bench) {
			b.setNode(node.Node{Name: b.cfg.Node.Name, Host: "other", ConsulNode: "no-such-agent"})
		},
		"no record": func(*bench) {},
		"garbage":   func(b *bench) { b.commit(consul.Set(b.keys.Nodes.Key(b.cfg.Node.Name), []byte("{"))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			prepare(b)
			a := b.start()
			b.awaitServing()
			first, _ := b.node()
			if err := a.Ready(); err != nil || first.Host == "" || first.Host == "other" {
				t.Errorf("host %q, ready: %v", first.Host, err)
			}
			a.stop()
			b.start()
			b.awaitNode("the same host again", func(n node.Node, session string) bool {
				return session != "" && n.Incarnation != first.Incarnation && n.Host == first.Host
			})
		})
	}
}

// When another host has taken the name over, this one's pods run a second time over there: they stop here, once Consul has said
// so twice, and stay so through restarts, until the name is this host's again and their intents say that they run.
func TestNameTakenOver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.ConfirmLoss = 200 * time.Millisecond
	a := b.start()
	plain, lone := b.upload(b.sleeper("1")), b.upload(b.stopsAfter(time.Hour))
	b.tell(intent(0, plain, pod.Running, 10), intent(1, lone, pod.Running, 10), intent(2, plain, pod.Running, 10))
	b.awaitReady(0, plain, 10)
	b.awaitReady(1, lone, 10)
	b.awaitReady(2, plain, 10)
	b.awaitNamed()
	a.stop()
	release := b.otherHostAs(true, func(n *node.Node) { n.Epoch = b.epoch() })

	a = b.start()
	b.awaitLog("this node's name was taken over by another host")
	for i := range 3 {
		b.awaitPhase(i, runtime.Stopped)
	}
	taken := func() error {
		if err := a.Ready(); err == nil || !strings.Contains(err.Error(), "taken over from this host by other-host") {
			return fmt.Errorf("ready: %w", err)
		}
		return nil
	}
	b.eventually(taken)
	a.stop()

	a = b.startAlone() // without Consul, it knows
	b.eventually(taken)
	b.eventually(func() error { // all have been looked at
		if n := strings.Count(b.log.text(), "hold back without the node's name"); n < 6 {
			return fmt.Errorf("%d pods held back", n)
		}
		return nil
	})
	a.stop()
	release()
	b.forget(2)

	b.cfg.TakeOver = true
	a = b.start()
	b.awaitReady(0, plain, 10)
	b.awaitReady(1, lone, 10)
	b.awaitState(2, pod.StatePending, 10, "orphaned")
	b.awaitPhase(2, runtime.Stopped)
	if err := a.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	pid := b.pid(0)
	b.awaitNamed()
	a.stop()
	b.cfg.TakeOver = false
	a = b.startAlone() // and none but the one without an intent waits any more
	b.mustKeepPID(0, pid)
	b.awaitPhase(2, runtime.Stopped)
	a.stop()
}

// awaitNamed waits until the preparer has noted that it holds the name now.
func (b *bench) awaitNamed() {
	b.t.Helper()
	n := b.awaitServing()
	b.eventually(func() error {
		data, err := os.ReadFile(filepath.Join(b.cfg.Dir, "name.json"))
		if err == nil && !strings.Contains(string(data), n.Incarnation) {
			err = fmt.Errorf("noted is %s, want incarnation %s", data, n.Incarnation)
		}
		return err
	})
}

// What does not say that the name was taken over since ends no pod, however often it is read.
func TestNameConflictStopsNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		note   func(map[string]any)
		record func(b *bench, n *node.Node)
		why    string
	}{
		"an older record": {
			note:   func(m map[string]any) { m["index"] = 1 << 50 },
			record: func(b *bench, n *node.Node) { n.Epoch = b.epoch() },
			why:    "older than this host's last",
		},
		"another world": {
			record: func(_ *bench, n *node.Node) { n.Epoch = "another" },
			why:    "wiped or restored",
		},
		"a world that went back": {
			record: func(b *bench, n *node.Node) { n.Epoch, n.WentBack = b.epoch(), b.epoch() },
			why:    "wiped or restored",
		},
		"it has read nothing": {
			record: func(*bench, *node.Node) {},
			why:    "has not read its intents",
		},
		"another name's directory": {
			note:   func(m map[string]any) { m["node"] = "other" },
			record: func(b *bench, n *node.Node) { n.Epoch = b.epoch() },
			why:    "has not held the name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.cfg.ConfirmLoss = time.Millisecond
			a := b.start()
			digest := b.upload(b.sleeper("1"))
			b.tell(intent(0, digest, pod.Running, 10))
			b.awaitReady(0, digest, 10)
			b.awaitNamed()
			pid := b.pid(0)
			a.stop()
			if tt.note != nil {
				b.changeNote(tt.note)
			}
			b.otherHostAs(true, func(n *node.Node) { tt.record(b, n) })
			r := &refusals{}
			b.startCounting(r)
			b.awaitLog(tt.why)
			b.awaitRefusals(r, 5)
			b.mustKeepPID(0, pid)
			if strings.Contains(b.log.text(), "was taken over") {
				t.Error("it says that the name was taken over")
			}
		})
	}
}

func (b *bench) changeNote(change func(map[string]any)) {
	b.t.Helper()
	path, m := filepath.Join(b.cfg.Dir, "name.json"), map[string]any{}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err == nil {
		change(m)
		data, err = json.Marshal(m)
	}
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
