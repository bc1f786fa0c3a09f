package preparer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/shim"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const httpPort = 18080

// bench is one node with a real supervisor and Consul, and directories in place of fetched artifacts. A test may change
// cfg before start.
type bench struct {
	t         *testing.T
	client    *consul.Client
	store     *store.Store
	own       *consul.Client // client of the preparer's session
	keys      *store.Keys
	runtime   *shim.Client
	artifacts *artifacts
	cfg       preparer.Config
	log       *logBuffer
	journal   journal
	current   *preparer.Preparer // the preparer that was started last
}

func newBench(t *testing.T) *bench {
	t.Helper()
	client, prefix := consultest.Client(t)
	return newBenchAt(t, client, prefix)
}

func newBenchAt(t *testing.T, client *consul.Client, prefix string) *bench {
	t.Helper()
	keys, err := store.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, client: client, own: client, keys: keys, store: store.New(client, keys), log: &logBuffer{}}
	t.Cleanup(func() {
		if strings.Contains(b.log.text(), "pod has an event that its state does not allow") {
			t.Error("a pod had an event for which the table of states has no row")
		}
		if t.Failed() {
			t.Logf("log of the preparer:\n%s", b.log.text())
		}
	})
	if _, err := b.store.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	b.runtime = startSupervisor(t, filepath.Join(dir, "shim"))
	b.artifacts = &artifacts{dir: filepath.Join(dir, "artifacts"), missing: map[string]bool{}}
	log, err := obs.NewLogger(b.log, "debug", "text")
	if err != nil {
		t.Fatal(err)
	}
	// Ports and services of tests that run together must not clash.
	sum := rand.Uint32()
	b.cfg = preparer.Config{
		Node: node.Node{
			Name:    fmt.Sprintf("node-%x", sum),
			Address: fmt.Sprintf("127.%d.%d.%d", 2+sum>>16&0x7f, sum>>8&0xff, 1+sum%250),
			Labels:  map[string]string{"rack": "a"}, Capacity: node.Capacity{Slots: 10},
		},
		Host:  install.Host{Dir: filepath.Join(dir, "node"), Artifacts: b.artifacts, Runtime: b.runtime},
		Store: b.store, Services: client.Services, Log: log,
		BusyPoll: 30 * time.Millisecond, IdlePoll: 60 * time.Millisecond,
		RetryMin: 20 * time.Millisecond, RetryMax: 100 * time.Millisecond,
	}
	return b
}

// A socket's path must be short.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "preptest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := consultest.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// The supervisor and its processes end with the test.
func startSupervisor(t *testing.T, dir string) *shim.Client {
	t.Helper()
	cmd := exec.Command(os.Args[0], superviseArg, dir)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	if err := consultest.StartTied(cmd, func(error) { close(done) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // ends the supervisor
		<-done
	})
	return dialSupervisor(t, dir, "")
}

func dialSupervisor(t *testing.T, dir, cgroup string) *shim.Client {
	t.Helper()
	client, err := shim.Dial(shim.ClientConfig{Dir: dir, Cgroup: cgroup, ConnectTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func (b *bench) runtimeDir() string { return filepath.Join(filepath.Dir(b.cfg.Dir), "shim") }

func (b *bench) useRuntime(client *shim.Client) { b.runtime, b.cfg.Runtime = client, client }

type agent struct {
	*preparer.Preparer
	stop func() // ends the preparer and waits for its end; may be called twice
}

func (b *bench) start() *agent {
	b.t.Helper()
	return b.startWith(func(t preparer.Session) preparer.Session { return t })
}

func (b *bench) startWith(wrap func(preparer.Session) preparer.Session) *agent {
	b.t.Helper()
	a := b.startAlone()
	ctx, cancel := context.WithCancel(b.t.Context())
	var session sync.WaitGroup
	session.Go(func() {
		cfg := consul.SessionConfig{
			Kind: "preparer", Name: b.cfg.Node.Name, TTL: 5 * time.Second, Journal: &b.journal,
			OnEvent: func(event string, _ *consul.Session, err error) {
				fmt.Fprintln(b.log, "session event:", event, err)
			},
		}
		err := b.own.RunSession(ctx, cfg, func(ctx context.Context, sess *consul.Session) error {
			return a.Serve(ctx, wrap(store.New(b.own, b.keys).NodeSession(sess, b.cfg.Node.Name)))
		})
		if !errors.Is(err, context.Canceled) {
			b.t.Errorf("session ended with %v", err)
		}
	})
	alone := a.stop
	a.stop = func() {
		cancel()
		session.Wait()
		alone()
	}
	b.t.Cleanup(a.stop)
	return a
}

func (b *bench) startAlone() *agent {
	b.t.Helper()
	p, err := preparer.New(b.cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := p.Run(ctx); !errors.Is(err, context.Canceled) {
			b.t.Errorf("Run ended with %v", err)
		}
	})
	b.current = p
	a := &agent{Preparer: p, stop: func() { cancel(); run.Wait() }}
	b.t.Cleanup(a.stop)
	return a
}

func (b *bench) eventually(condition func() error) {
	b.t.Helper()
	consultest.Eventually(b.t, patience, condition)
}

func (b *bench) commit(ops ...consul.Op) {
	b.t.Helper()
	if _, err := b.client.Commit(b.t.Context(), ops); err != nil {
		b.t.Fatal(err)
	}
}

// sleeper's digest depends on version.
func (b *bench) sleeper(version string) manifest.Manifest {
	return b.pod("exec sleep 1000", version)
}

// server's process listens and has an HTTP check.
func (b *bench) server(version string) manifest.Manifest {
	m := b.pod("exec "+testBinary()+" "+serveArg, version)
	interval, timeout := field.Duration(time.Second), field.Duration(5*time.Second) // enough for a busy machine
	m.Ports = []manifest.Port{{Name: "http-main", Port: httpPort}}
	m.Health = &manifest.Health{
		HTTP: &manifest.HTTPCheck{Port: "http-main", Path: "/"}, Interval: &interval, Timeout: &timeout,
	}
	return m
}

func testBinary() string {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return exe
}

func (b *bench) pod(script, version string) manifest.Manifest {
	grace := field.Duration(5 * time.Second)
	return manifest.Manifest{
		Version: manifest.Version, ID: "web", MinReady: new(field.Duration),
		Launchables: []manifest.Launchable{{
			Name: "main", Artifact: b.artifacts.add(b.t, script), StopGrace: &grace,
			Env: map[string]string{"VERSION": version, "NODE_NAME": "forged"},
		}},
	}
}

func (b *bench) upload(m manifest.Manifest) string {
	b.t.Helper()
	digest, value := encodeManifest(b.t, m)
	b.commit(consul.Set(b.keys.Manifests.Key(digest), value))
	return digest
}

func encodeManifest(t *testing.T, m manifest.Manifest) (digest string, value []byte) {
	t.Helper()
	if err := m.Validate().Err(); err != nil {
		t.Fatal(err)
	}
	canonical, err := m.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	return manifest.Digest(canonical), fmt.Appendf(nil, `{"manifest":%s}`, canonical)
}

func identity(index int) pod.Identity {
	return pod.Identity{RCID: "rc1", Role: "main", Index: index}
}

func intent(index int, digest string, state pod.RunState, revision int64) pod.Intent {
	return pod.Intent{
		Identity: identity(index), PodID: "web", Digest: digest, State: state, Revision: revision, Replicas: 4,
	}
}

func (b *bench) write(intents ...pod.Intent) {
	b.t.Helper()
	for _, in := range intents {
		data, err := json.Marshal(in)
		if err != nil {
			b.t.Fatal(err)
		}
		b.commit(consul.Set(b.keys.Intents.Key(b.cfg.Node.Name, in.Identity.String()), data))
	}
}

func (b *bench) deleteIntent(index int) {
	b.t.Helper()
	b.commit(consul.Delete(b.keys.Intents.Key(b.cfg.Node.Name, identity(index).String())))
}

func (b *bench) reality(index int) (pod.Reality, uint64, error) {
	var r pod.Reality
	pair, err := b.client.Get(
		b.t.Context(), b.keys.Realities.Key(b.cfg.Node.Name, identity(index).String()), consul.Consistent,
	)
	if err == nil {
		err = json.Unmarshal(pair.Value, &r)
	}
	return r, pair.ModifyIndex, err
}

func (b *bench) awaitReality(index int, want string, ok func(pod.Reality) bool) pod.Reality {
	b.t.Helper()
	var r pod.Reality
	b.eventually(func() error {
		var err error
		if r, _, err = b.reality(index); err != nil {
			return fmt.Errorf("want %s: %w", want, err)
		}
		if !ok(r) {
			return fmt.Errorf("want %s, reality is %+v", want, r)
		}
		return nil
	})
	return r
}

func (b *bench) awaitReady(index int, digest string, revision int64) pod.Reality {
	b.t.Helper()
	return b.awaitReality(index, fmt.Sprintf("ready %.12s at %d", digest, revision), func(r pod.Reality) bool {
		return r.State == pod.StateReady && r.Available && r.Digest == digest && r.Revision == revision
	})
}

func (b *bench) awaitState(index int, state pod.State, revision int64, message string) pod.Reality {
	b.t.Helper()
	return b.awaitReality(index, fmt.Sprintf("%s at %d with %q", state, revision, message), func(r pod.Reality) bool {
		return r.State == state && r.Revision == revision && strings.Contains(r.Message, message)
	})
}

func (b *bench) awaitNode(want string, ok func(n node.Node, session string) bool) node.Node {
	b.t.Helper()
	var n node.Node
	b.eventually(func() error {
		rec, complete, err := b.store.NodeOrphans(b.t.Context(), b.cfg.Node.Name)
		if err != nil || !complete {
			return fmt.Errorf("want %s, pages of orphans are complete: %v: %w", want, complete, err)
		}
		if n = rec.Value; !ok(n, rec.Session) {
			return fmt.Errorf("want %s, node record is %+v, session %q", want, n, rec.Session)
		}
		return nil
	})
	return n
}

func (b *bench) epoch() string {
	b.t.Helper()
	rec, err := b.store.EnsureSchema(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return rec.Value.Epoch
}

func (b *bench) awaitServing() node.Node {
	b.t.Helper()
	epoch := b.epoch()
	return b.awaitNode("lock and epoch", func(n node.Node, session string) bool {
		return session != "" && n.Epoch == epoch
	})
}

func (b *bench) procs(index int) []runtime.Status {
	b.t.Helper()
	all, _, err := b.runtime.Watch(b.t.Context(), 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(s runtime.Status) bool { return s.Spec.Pod != identity(index) })
}

// The supervisor may still have the record of the pod's earlier process.
func (b *bench) pid(index int) (pid int) {
	b.t.Helper()
	b.eventually(func() error {
		procs := b.procs(index)
		alive := slices.DeleteFunc(slices.Clone(procs), func(s runtime.Status) bool {
			return s.Phase == runtime.Stopped
		})
		if len(alive) > 1 {
			b.t.Fatalf("processes %+v, want only one that runs", procs)
		}
		if len(procs) != 1 || procs[0].Phase != runtime.Running {
			return fmt.Errorf("processes %+v, want one that runs", procs)
		}
		pid = procs[0].PID
		return nil
	})
	return pid
}

func (b *bench) mustKeepPID(index, pid int) {
	b.t.Helper()
	if now := b.pid(index); now != pid {
		b.t.Errorf("pid %d, want the same process %d", now, pid)
	}
}

// services returns which of the node's services pass at the local agent.
func (b *bench) services() map[string]bool {
	b.t.Helper()
	local, err := b.client.Services.LocalServices(b.t.Context(), register.MetaNode, b.cfg.Node.Name)
	if err != nil {
		b.t.Fatal(err)
	}
	passing := map[string]bool{}
	for id, health := range local {
		passing[id] = health.Passing
	}
	return passing
}

func (b *bench) awaitLog(text string) {
	b.t.Helper()
	b.eventually(func() error {
		if !strings.Contains(b.log.text(), text) {
			return fmt.Errorf("no %q in the log", text)
		}
		return nil
	})
}

// artifacts makes artifacts from shell scripts. Those in missing cannot be fetched.
type artifacts struct {
	dir     string
	mu      sync.Mutex
	missing map[string]bool
	errs    map[string]error
}

func (a *artifacts) add(t *testing.T, script string) manifest.Artifact {
	t.Helper()
	digest := manifest.Digest([]byte(script))
	bin := filepath.Join(a.dir, digest, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "launch"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return manifest.Artifact{Kind: manifest.ArtifactTar, URL: "file:///" + digest, SHA256: digest}
}

func (a *artifacts) setMissing(art manifest.Artifact, missing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.missing[art.SHA256] = missing
}

func (a *artifacts) setError(art manifest.Artifact, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.errs == nil {
		a.errs = map[string]error{}
	}
	a.errs[art.SHA256] = err
}

func (a *artifacts) Ensure(_ context.Context, art manifest.Artifact) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.missing[art.SHA256] {
		return "", errors.New("no such file")
	}
	if err := a.errs[art.SHA256]; err != nil {
		return "", err
	}
	return filepath.Join(a.dir, art.SHA256), nil
}

type journal struct {
	mu  sync.Mutex
	ids []string
}

func (j *journal) Incarnations() ([]string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.ids), nil
}

func (j *journal) Add(id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ids = append(j.ids, id)
	return nil
}

func (j *journal) Remove(id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ids = slices.DeleteFunc(j.ids, func(other string) bool { return other == id })
	return nil
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func manifestDigest(canonical string) string { return manifest.Digest([]byte(canonical)) }
