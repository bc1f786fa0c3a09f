package preparer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestLifeOfAPod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// P8 allows only so many connections.
	few, err := consul.New(consul.Config{Address: consultest.Shared(t).Addr, MaxConns: 6 - consul.LivenessConns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(few.Close)
	b.runAs(few)
	b.start()
	n := b.awaitServing()
	if n.ConsulNode == "" || n.Incarnation == "" || n.Labels["rack"] != "a" || len(n.Orphans) != 0 {
		t.Errorf("node record %+v", n)
	}
	digest := b.upload(b.server("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	pid := b.pid(0)
	b.checkEnvironment(digest)
	counted := intent(0, digest, pod.Running, 12)
	counted.Replicas = 7 // this restarts no process, and running processes keep their POD_REPLICAS
	b.write(counted)
	b.awaitReady(0, digest, 12)
	b.mustKeepPID(0, pid)
	b.checkEnvironment(digest)
	id := register.ServiceID(b.cfg.Node.Name, identity(0))
	b.eventually(func() error {
		if local := b.services(); len(local) != 1 || !local[id] {
			return fmt.Errorf("services %v, want %s passing", local, id)
		}
		return nil
	})

	b.write(intent(0, digest, pod.Running, 20)) // only a new revision
	b.awaitReady(0, digest, 20)
	b.mustKeepPID(0, pid)

	b.write(intent(0, digest, pod.Stopped, 20)) // not a newer revision
	b.write(intent(1, digest, pod.Stopped, 5))  // unknown to the node
	b.awaitState(1, pod.StateStopped, 5, "")
	b.mustKeepPID(0, pid)

	b.write(intent(0, digest, pod.Stopped, 30))
	b.awaitState(0, pod.StateStopped, 30, "")
	if procs, local := b.procs(0), b.services(); syscall.Kill(pid, 0) == nil || len(local) != 0 {
		t.Errorf("reported stopped with processes %+v and services %v", procs, local)
	}

	b.write(intent(0, digest, pod.Running, 30))
	b.awaitState(0, pod.StateStopped, 30, "refused to run revision 30")
	b.deleteIntent(0)
	b.deleteIntent(1)
	for i := range 2 {
		b.awaitNoReality(i)
	}
	b.write(intent(0, digest, pod.Running, 29)) // the tombstone outlives the reality
	b.awaitState(0, pod.StateStopped, 30, "refused to run revision 29")
	b.write(intent(0, digest, pod.Running, 31))
	b.awaitReady(0, digest, 31)
}

var errStays = errors.New("it is still there")

func (b *bench) awaitNoReality(index int) {
	b.t.Helper()
	b.eventually(func() error {
		r, _, err := b.reality(index)
		if !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("reality %+v, want none: %w", r, errors.Join(err, errStays))
		}
		return nil
	})
}

func (b *bench) checkEnvironment(digest string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(
		b.t.Context(), http.MethodGet, "http://"+net.JoinHostPort(b.cfg.Node.Address, strconv.Itoa(httpPort)), nil,
	)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	var env []string
	if err := json.NewDecoder(resp.Body).Decode(&env); err != nil {
		b.t.Fatal(err)
	}
	home := filepath.Join(b.cfg.Dir, "homes", "rc1.main.0")
	for _, want := range []string{
		"NODE_NAME=" + b.cfg.Node.Name, "NODE_ADDRESS=" + b.cfg.Node.Address,
		"POD_ID=web", "POD_HOME=" + home, "POD_DIGEST=" + digest,
		"RC_ID=rc1", "POD_ROLE=main", "POD_INDEX=0", "POD_REPLICAS=4", "PORT_HTTP_MAIN=18080", "VERSION=1",
	} {
		if !slices.Contains(env, want) {
			b.t.Errorf("environment %q lacks %s", env, want)
		}
	}
	if info, err := os.Stat(home); err != nil || !info.IsDir() {
		b.t.Errorf("home of the pod: %v", err)
	}
}

func TestUpgradeKeepsTheOldUntilTheNewIsThere(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	first := b.upload(b.server("1"))
	b.write(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	pid := b.pid(0)

	next := b.server("2")
	next.Launchables[0].Artifact = b.artifacts.add(t, "# another\nexec "+testBinary()+" "+serveArg)
	b.artifacts.setMissing(next.Launchables[0].Artifact, true)
	second := b.upload(next)
	b.write(intent(0, second, pod.Running, 20))
	r := b.awaitState(0, pod.StateFailed, 20, "no such file")
	if r.Digest != first || !r.Available {
		t.Errorf("reality %+v, want the first version available", r)
	}
	b.mustKeepPID(0, pid)

	b.write(intent(0, first, pod.Running, 30)) // back to the running version
	b.awaitReady(0, first, 30)
	b.mustKeepPID(0, pid)

	b.artifacts.setMissing(next.Launchables[0].Artifact, false)
	b.write(intent(0, second, pod.Running, 40))
	b.awaitReady(0, second, 40)
	if now := b.pid(0); now == pid || syscall.Kill(pid, 0) == nil {
		t.Errorf("pid %d after an upgrade from %d", now, pid)
	}
	b.write(intent(0, first, pod.Running, 50)) // an earlier version again
	b.awaitReady(0, first, 50)
}

func comm(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestTheReportNamesTheHolderOfATakenPort(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", net.JoinHostPort(b.cfg.Node.Address, strconv.Itoa(httpPort)))
	if err != nil {
		t.Fatal(err)
	}
	b.start()
	digest := b.upload(b.server("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitState(0, pod.StateFailed, 10, fmt.Sprintf("process %d (%q) holds %s", os.Getpid(), comm(t), listener.Addr()))
	if procs, local := b.procs(0), b.services(); len(procs)+len(local) != 0 {
		t.Errorf("processes %+v, services %v", procs, local)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	b.awaitReady(0, digest, 10)
}

// A dynamic port has the intent's number. Without one, the pod does not start.
func TestDynamicPortNeedsANumber(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.server("1")
	m.Ports[0] = manifest.Port{Name: m.Ports[0].Name, Dynamic: true}
	digest := b.upload(m)
	in := intent(0, digest, pod.Running, 10)
	in.Ports = map[string]int{m.Ports[0].Name: 0}
	b.write(in)
	b.awaitState(0, pod.StateFailed, 10, "the farm gave it no number")
	in.Revision, in.Ports = 20, map[string]int{m.Ports[0].Name: httpPort}
	b.write(in)
	b.awaitReady(0, digest, 20)
	if s := b.services(); len(s) != 1 {
		t.Errorf("services %v, want one", s)
	}
}

func TestTheReportSaysWhyAManifestIsUnusable(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	digest, value := encodeManifest(t, b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitState(0, pod.StateFailed, 10, "is not in Consul; apply it again")

	b.commit(consul.Set(b.keys.Manifests.Key(digest), []byte(`{"manifest":{"version":1}}`)))
	b.awaitState(0, pod.StateFailed, 10, "its content has digest")

	canonical := `{"version":1,"id":"web","launchables":[]}`
	invalid := manifestDigest(canonical)
	b.commit(consul.Set(b.keys.Manifests.Key(invalid), []byte(`{"manifest":`+canonical+`}`)))
	b.write(intent(1, invalid, pod.Running, 10))
	b.awaitState(1, pod.StateFailed, 10, "launchables")

	whole := strings.TrimSuffix(strings.TrimPrefix(string(value), `{"manifest":`), "}")
	newer := strings.TrimSuffix(whole, "}") + `,"sidecars":[1]}`
	unknown := manifestDigest(newer)
	b.commit(consul.Set(b.keys.Manifests.Key(unknown), []byte(`{"manifest":`+newer+`}`)))
	b.write(intent(2, unknown, pod.Running, 10))
	b.awaitState(2, pod.StateFailed, 10, "upgrade the preparer")

	b.commit(consul.Set(b.keys.Manifests.Key(digest), value))
	b.awaitReady(0, digest, 10)
}

func TestCrashingPodIsReported(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	digest := b.upload(b.pod("exit 7", "1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReality(0, "an exit status", func(r pod.Reality) bool {
		return !r.Available && r.Restarts > 0 && r.LastExit != nil && r.LastExit.Code == 7
	})
	b.write(intent(0, digest, pod.Stopped, 11))
	b.awaitState(0, pod.StateStopped, 11, "")
}

// A pod with an intent that this build does not understand stays as it is.
func TestUnreadableIntentsChangeNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10), intent(1, digest, pod.Running, 10))
	pids := []int{}
	for i := range 2 {
		b.awaitReady(i, digest, 10)
		pids = append(pids, b.pid(i))
	}
	b.write(intent(0, digest, "paused", 20))
	b.commit(consul.Set(b.keys.Intents.Key(b.cfg.Node.Name, identity(1).String()), []byte("{")))
	b.awaitLog("some intents cannot be understood")
	b.write(intent(2, digest, pod.Running, 10))
	b.awaitReady(2, digest, 10)
	for i, pid := range pids {
		b.awaitReady(i, digest, 10)
		b.mustKeepPID(i, pid)
	}
	b.awaitNode("no orphans", func(n node.Node, _ string) bool { return len(n.Orphans) == 0 })
}

// The node restores services that another program changed, and removes unknown ones with its name.
func TestChangedServicesAreRestored(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	digest := b.upload(b.server("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	id := register.ServiceID(b.cfg.Node.Name, identity(0))
	stray := consul.Service{ID: id + "-stray", Name: "web", Meta: map[string]string{register.MetaNode: b.cfg.Node.Name}}
	foreign := consul.Service{
		ID: "foreign-" + b.cfg.Node.Name, Name: "web",
		Meta: map[string]string{register.MetaNode: "other-" + b.cfg.Node.Name},
	}
	daemon := consul.Service{ID: "rcfarm-preparer-" + b.cfg.Node.Name, Name: "daemon", Meta: stray.Meta} // of no pod
	for _, s := range []consul.Service{stray, foreign, daemon} {
		if err := b.client.Services.RegisterService(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.client.Services.DeregisterService(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b.eventually(func() error {
		if local := b.services(); len(local) != 2 || !local[id] || !local[daemon.ID] {
			return fmt.Errorf("services %v", local)
		}
		return nil
	})
	b.awaitReady(0, digest, 10)
	others, err := b.client.Services.LocalServices(t.Context(), register.MetaNode, "other-"+b.cfg.Node.Name)
	if err != nil || len(others) != 1 {
		t.Errorf("services of another node: %v (%v)", others, err)
	}
}

// Each named port is a service. An upgrade deregisters the services that the new version lacks, and a stop deregisters
// all.
func TestEachPortIsAService(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	first := b.server("1")
	first.Ports = append(
		[]manifest.Port{{Name: "admin", Dynamic: true}, {Name: "metrics", Dynamic: true}}, first.Ports...,
	)
	first.Service = &manifest.Service{Name: "shop", Tags: []string{"v1", "blue"}, Meta: map[string]string{"team": "a"}}
	in := intent(0, b.upload(first), pod.Running, 10)
	in.Ports = map[string]int{"http-main": httpPort, "admin": 7001, "metrics": 7002}
	b.write(in)
	b.awaitReady(0, in.Digest, 10)
	id := register.ServiceID(b.cfg.Node.Name, identity(0))
	b.awaitServices(map[string]string{
		id: "shop:" + strconv.Itoa(httpPort), id + ".admin": "shop-admin:7001", id + ".metrics": "shop-metrics:7002",
	}, first.Service)

	next := b.server("2")
	next.Ports = append(next.Ports, manifest.Port{Name: "metrics", Dynamic: true})
	next.Service = &manifest.Service{Port: "metrics"}
	in.Digest, in.Revision = b.upload(next), 20
	delete(in.Ports, "admin")
	b.write(in)
	b.awaitReady(0, in.Digest, 20)
	b.awaitServices(
		map[string]string{id: "web:7002", id + ".http-main": "web-http-main:" + strconv.Itoa(httpPort)},
		&manifest.Service{},
	)

	in.State, in.Revision = pod.Stopped, 30
	b.write(in)
	b.awaitState(0, pod.StateStopped, 30, "")
	b.awaitServices(map[string]string{}, nil)
}

// awaitServices waits until exactly these services pass: name:port by id, with the tags and meta of as.
func (b *bench) awaitServices(want map[string]string, as *manifest.Service) {
	b.t.Helper()
	b.eventually(func() error {
		got := map[string]string{}
		for id, passing := range b.services() {
			var s struct {
				Service string
				Port    int
				Tags    []string
				Meta    map[string]string
			}
			if err := agentSays(b.t, "/v1/agent/service/"+id, &s); err != nil {
				return err
			}
			if got[id] = fmt.Sprintf("%s:%d", s.Service, s.Port); !passing {
				got[id] += " not passing"
			}
			if !slices.Equal(s.Tags, as.Tags) && len(s.Tags)+len(as.Tags) > 0 {
				return fmt.Errorf("service %s has the tags %q, want %q", id, s.Tags, as.Tags)
			}
			for key, value := range as.Meta {
				if s.Meta[key] != value {
					return fmt.Errorf("service %s has the meta %v, want %s=%s", id, s.Meta, key, value)
				}
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("services %v, want %v", got, want)
		}
		return nil
	})
}

func agentSays(t *testing.T, path string, answer any) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+consultest.Shared(t).Addr+path, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, res.Status)
	}
	return json.NewDecoder(res.Body).Decode(answer)
}

// A pod can be stopped while its artifact is fetched.
func TestStopInterruptsAFetch(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	stuck := make(chan struct{}, 10)
	b.cfg.Artifacts = stuckArtifacts(stuck)
	b.start()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitState(0, pod.StateFetching, 10, "")
	<-stuck
	b.write(intent(0, digest, pod.Stopped, 11))
	b.awaitState(0, pod.StateStopped, 11, "")
}

type stuckArtifacts chan struct{}

func (s stuckArtifacts) Ensure(ctx context.Context, _ manifest.Artifact) (string, error) {
	s <- struct{}{}
	<-ctx.Done()
	return "", ctx.Err()
}

// A pod with two processes is available only with both, and a stop stops both.
func TestPodWithTwoProcessesNeedsBoth(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.server("1")
	side := b.sleeper("1").Launchables[0]
	side.Name = "side"
	m.Launchables = append(m.Launchables, side)
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	procs := b.procs(0)
	if len(procs) != 2 {
		t.Fatalf("processes %+v", procs)
	}
	if err := syscall.Kill(procs[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.awaitReality(0, "one restart", func(r pod.Reality) bool {
		return r.Available && r.Restarts == 1 && r.LastExit != nil && r.LastExit.Signal == "SIGKILL"
	})
	b.write(intent(0, digest, pod.Stopped, 11))
	b.awaitState(0, pod.StateStopped, 11, "")
	for _, proc := range procs {
		if syscall.Kill(proc.PID, 0) == nil {
			t.Errorf("process %d still runs", proc.PID)
		}
	}
	b.eventually(func() error {
		if procs := b.procs(0); len(procs) > 0 {
			return fmt.Errorf("the runtime still knows %+v", procs)
		}
		return nil
	})
}
