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

// otherHost lets another host take the name, until release.
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
		cfg := consul.SessionConfig{Kind: "preparer", Name: "other", TTL: patience, Journal: new(journal)}
		_ = b.client.RunSession(ctx, cfg, func(ctx context.Context, sess *consul.Session) error {
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

// If the node's name belongs to another host, this preparer accepts no intents, even while the other preparer does not
// run. An operator who knows that no pod runs there can let this host take the name, once.
func TestANodeWithTheNameOfAnotherHostAcceptsNoIntents(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	reg := prometheus.NewRegistry()
	b.cfg.Metrics = preparer.NewMetrics(reg)
	release := b.otherHost()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	r := &refusals{}
	a := b.startCounting(r)
	b.awaitLog("this node's name belongs to another host; no intents are taken: other-host")
	release()
	b.awaitRefusals(r, 3) // even though the lock is free
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
		t.Errorf("the record has the host %s", n.Host)
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

// setNode makes a node's record without a lock.
func (b *bench) setNode(n node.Node) {
	b.t.Helper()
	data, err := json.Marshal(n)
	if err != nil {
		b.t.Fatal(err)
	}
	key := b.keys.Nodes.Key(b.cfg.Node.Name)
	b.commit(consul.Delete(key), consul.Set(key, data))
}

// A name is free if Consul does not know the agent of its machine any more, or if the name has no valid record.
func TestTheNameOfAGoneHostIsFree(t *testing.T) {
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

// Another host that has taken the name may run the same pods, so this host's pods stop when a second answer confirms
// the takeover. They stay stopped, also after restarts, until this host has the name again and their intents are read.
func TestPodsStopWhenTheNameIsTakenOver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.ConfirmLoss = 200 * time.Millisecond
	a := b.start()
	plain, lone := b.upload(b.sleeper("1")), b.upload(b.stopsAfter(time.Hour))
	b.write(intent(0, plain, pod.Running, 10), intent(1, lone, pod.Running, 10), intent(2, plain, pod.Running, 10))
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

	a = b.startAlone() // it knows about the takeover without Consul
	b.eventually(taken)
	b.eventually(func() error { // each pod was reconciled
		if n := strings.Count(b.log.text(), "hold back without the node's name"); n < 6 {
			return fmt.Errorf("%d pods held back", n)
		}
		return nil
	})
	a.stop()
	release()
	b.deleteIntent(2)

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
	a = b.startAlone() // only the pod without an intent still waits
	b.mustKeepPID(0, pid)
	b.awaitPhase(2, runtime.Stopped)
	a.stop()
}

// awaitNamed waits until the disk has that this host has the name.
func (b *bench) awaitNamed() {
	b.t.Helper()
	n := b.awaitServing()
	b.eventually(func() error {
		data, err := os.ReadFile(filepath.Join(b.cfg.Dir, "name.json"))
		if err == nil && !strings.Contains(string(data), n.Incarnation) {
			err = fmt.Errorf("the saved note is %s, want incarnation %s", data, n.Incarnation)
		}
		return err
	})
}

// A record of another host stops no pod, unless it proves that the other host took the name after this host had it.
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
		"another epoch": {
			record: func(_ *bench, n *node.Node) { n.Epoch = "another" },
			why:    "wiped or restored",
		},
		"a store that went back": {
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
			b.write(intent(0, digest, pod.Running, 10))
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
				t.Error("the log says that the name was taken over")
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
