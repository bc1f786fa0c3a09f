package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The newer version has fields that the older one does not have.
const (
	oldVersion = "0.1.0"
	newVersion = "0.2.0"
)

func (e *env) buildAs(version string) string {
	e.t.Helper()
	dir := filepath.Join(e.dir, "v"+version)
	stamp := "-X github.com/rcfarm/rcfarm/pkg/app.described=v" + version
	build := exec.CommandContext(e.t.Context(), "go", "build", "-trimpath", "-ldflags", stamp, "-o", dir+"/",
		"./cmd/farm", "./cmd/preparer", "./cmd/rcctl")
	build.Dir, build.Env = e.root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		e.t.Fatalf("build version %s: %v\n%s", version, err, out)
	}
	return dir
}

type gateWatch struct {
	mu     sync.Mutex
	gate   string
	raised []string // the versions that the gate has had
	early  []string // keys that had fields of the newer version before the gate allowed them
}

func (g *gateWatch) see(snap consul.Snapshot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range snap.Pairs {
		var gate store.Gate
		if p.Key == store.DefaultPrefix+"gate" && json.Unmarshal(p.Value, &gate) == nil && gate.Version != g.gate {
			g.gate, g.raised = gate.Version, append(g.raised, gate.Version)
		}
	}
	for _, p := range snap.Pairs {
		if text := string(p.Value); g.gate != newVersion &&
			(strings.Contains(text, `"mode":`) || strings.Contains(text, `"ports_in_use":`)) {
			g.early = append(g.early, p.Key)
		}
	}
}

func (e *env) watchGate() *gateWatch {
	g := &gateWatch{}
	ctx, cancel := context.WithCancel(e.t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		_ = e.client.WatchPrefix(ctx, store.DefaultPrefix, consul.WatchOptions{OnError: func(error) {}},
			func(snap consul.Snapshot) error {
				g.see(snap)
				return nil
			})
	})
	e.t.Cleanup(func() { cancel(); done.Wait() })
	return g
}

func (e *env) isGate(version string) error {
	gate, err := e.store.ReadGate(e.t.Context())
	if err == nil && gate.Value.Version != version {
		err = fmt.Errorf("the gate is %s, want %s", gate.Value.Version, version)
	}
	return err
}

func (e *env) gateOpen() {
	e.t.Helper()
	e.within(limit, func() error { return e.isGate(feature.Known.Newest()) })
}

func (e *env) leads(ids ...string) {
	e.t.Helper()
	e.within(limit, func() error {
		state, err := election.Read(e.t.Context(), e.client, store.DefaultPrefix, store.FarmLease)
		if err != nil {
			return err
		}
		if leader, _ := state.Leader(); !slices.Contains(ids, leader) {
			return fmt.Errorf("%q leads, want one of %v", leader, ids)
		}
		return nil
	})
}

func (d *daemon) replace(program string) {
	d.signal(syscall.SIGTERM)
	<-d.current().ended
	d.path = program
	d.startAgain()
}

func (e *env) refusedBy(rcctl, stdin, want string, args ...string) {
	e.t.Helper()
	cmd := exec.CommandContext(e.t.Context(), rcctl, append([]string{"--consul-addr", e.consul.Addr}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	exit, is := errors.AsType[*exec.ExitError](err)
	if !is || exit.ExitCode() != 4 || !strings.Contains(string(out), want) {
		e.t.Errorf("rcctl %v: %v, want it refused with %q\n%s", args, err, want, out)
	}
}

const onEachNode = `
name: agent
mode: each-node
pod:
  version: 1
  id: agent
  launchables:
  - name: agent
    artifact: {kind: exec, path: /bin/sleep}
    args: ["1000000"]
`

// upgrade: farms and a preparer of one version are replaced by programs of the next version, one by one. While a farm
// of the earlier version lives, a farm of this version leads, and no record has a field that this version does not
// know. After that, the gate is raised once. A program whose version is below the gate writes nothing any more.
func upgrade(e *env) {
	before, after := e.buildAs(oldVersion), e.buildAs(newVersion)
	e.startConsul(`{"limits": {"http_max_conns_per_client": 1000}}`) // all daemons are on one machine
	g := e.watchGate()
	ids := []string{"f1", "f2", "f3"}
	farms := map[string]*daemon{}
	for _, id := range ids {
		farms[id] = e.start(id, filepath.Join(before, "farm"), append(e.common(id, ""), "--id", id)...)
	}
	n1 := e.start("n1", filepath.Join(before, "preparer"),
		append(e.common("n1", ""), "--node", "n1", "--address", e.address(1))...)
	e.within(limit, func() error { return e.isGate(oldVersion) })
	h := e.hello(1, nil)
	e.applied(h)
	e.remember("hello")
	running := e.processes()

	newer := filepath.Join(after, "rcctl")
	for i, id := range ids {
		e.leads(ids[i:]...)
		e.refusedBy(newer, onEachNode, "mode needs version "+newVersion, "apply", "-f", "-")
		farms[id].replace(filepath.Join(after, "farm"))
		e.within(limit, func() error {
			rec, err := e.store.Farms.Get(e.t.Context(), store.Consistent, id)
			if err == nil && rec.Value.EmulationVersion != newVersion {
				err = fmt.Errorf("%s emulates %q", id, rec.Value.EmulationVersion)
			}
			return err
		})
	}
	e.leads(ids...)
	e.refusedBy(newer, onEachNode, "held back by node n1 (version "+oldVersion+")", "apply", "-f", "-")
	if err := e.isGate(oldVersion); err != nil {
		e.t.Error(err)
	}
	n1.replace(filepath.Join(after, "preparer"))
	e.within(limit, func() error { return e.isGate(newVersion) })
	e.sameProcesses(running, "after the upgrade")
	e.rcctl(onEachNode, "apply", "-f", "-", "--wait")
	running = e.processes()

	e.refusedBy(filepath.Join(before, "rcctl"), "", "upgrade it to "+newVersion, "rc", "scale", "hello", "0")
	for id, with := range map[string][]string{
		"f4": {filepath.Join(before, "farm")},
		"f5": {filepath.Join(after, "farm"), "--emulation-version", oldVersion},
	} {
		d := e.start(id, with[0], append(append(e.common(id, ""), "--id", id), with[1:]...)...)
		e.within(limit, func() error {
			select {
			case <-d.current().ended:
			default:
				return fmt.Errorf("%s has not ended", id)
			}
			if log := d.logTail(20); !strings.Contains(log, "upgrade it to "+newVersion) {
				return fmt.Errorf("%s ended with\n%s", id, log)
			}
			return nil
		})
	}
	e.sameProcesses(running, "beside programs that are too old")
	e.gateHistory(g)
}

func (e *env) gateHistory(g *gateWatch) {
	e.t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.early) > 0 {
		e.t.Errorf("records of %s before the gate allowed them: %v", newVersion, g.early)
	}
	if want := []string{oldVersion, newVersion}; !slices.Equal(g.raised, want) {
		e.t.Errorf("the gate was %v, want %v", g.raised, want)
	}
	audits, _, err := e.store.ListAudit(e.t.Context(), store.AuditFilter{})
	if err != nil {
		e.t.Fatal(err)
	}
	times := 0
	for _, a := range audits {
		if a.What == "raise-gate" {
			times++
		}
	}
	if times != 1 {
		e.t.Errorf("the gate was raised %d times", times)
	}
}
