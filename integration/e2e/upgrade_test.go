package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const nextVersion = "99.0.0"

func (e *env) buildNext() string {
	e.t.Helper()
	program := filepath.Join(e.dir, "preparer-next")
	stamp := "-X github.com/rcfarm/rcfarm/pkg/app.described=v" + nextVersion
	build := exec.CommandContext(e.t.Context(), "go", "build", "-trimpath", "-ldflags",
		stamp, "-o", program, "./cmd/preparer")
	build.Dir, build.Env = e.root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		e.t.Fatalf("build the next preparer: %v\n%s", err, out)
	}
	return program
}

func (e *env) versionOf(program string) string {
	e.t.Helper()
	out, err := exec.CommandContext(e.t.Context(), program, "--version").Output()
	if err != nil {
		e.t.Fatal(err)
	}
	words := strings.Fields(string(out))
	return words[len(words)-1]
}

// copyProgram returns a copy that may be removed.
func (e *env) copyProgram(name string) string {
	e.t.Helper()
	data, err := os.ReadFile(filepath.Join(e.root, "bin", name))
	path := filepath.Join(e.dir, name+"-old")
	if err == nil {
		err = os.WriteFile(path, data, 0o755)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return path
}

// preparerUpgrade: preparers are replaced by preparers of another build at another path, and the old build is removed.
// The supervisors of the old build continue to run. Pods keep their pids, and are still supervised.
func preparerUpgrade(e *env) {
	e.startConsul("")
	old, next := e.copyProgram("preparer"), e.buildNext()
	version := e.versionOf(old)
	preparers := map[string]*daemon{}
	for n := range 2 {
		name := fmt.Sprintf("n%d", n+1)
		preparers[name] = e.start(name, old, append(e.common(name, ""), "--node", name, "--address", e.address(n+1))...)
	}
	e.farm("f1", "")
	h := e.hello(2, map[string]string{"HELLO_VERSION": "1"})
	e.applied(h)
	e.remember("hello")
	before := e.processes()
	keepers := func() []int {
		return slices.Sorted(slices.Values(slices.Concat(e.supervisors(1), e.supervisors(2))))
	}
	kept := keepers()
	if len(kept) != 2 {
		e.t.Fatalf("pods are kept running by %v; want two supervisors", kept)
	}

	for _, name := range slices.Sorted(maps.Keys(preparers)) {
		if v := e.nodes()[name].Value.Version; v != version {
			e.t.Errorf("%s has version %s before the upgrade, want %s", name, v, version)
		}
		d := preparers[name]
		d.signal(syscall.SIGTERM)
		<-d.current().ended
		d.path = next
		d.startAgain()
		e.within(limit, func() error {
			if rec := e.nodes()[name]; rec.Session == "" || rec.Value.Version != nextVersion {
				return fmt.Errorf("%s has session %q and version %s", name, rec.Session, rec.Value.Version)
			}
			return nil
		})
	}
	if err := os.Remove(old); err != nil {
		e.t.Fatal(err)
	}
	id := e.rcIDs["hello"]
	e.within(limit, func() error { return e.converged(id, 2) })
	e.sameProcesses(before, "after the upgrade of the preparers")
	if now := keepers(); !slices.Equal(now, kept) {
		e.t.Errorf("pods are kept running by %v, before the upgrade by %v", now, kept)
	}

	for index := range 2 {
		e.crash("hello", index)
		pod := fmt.Sprintf("hello-main-%d", index)
		e.within(limit, func() error {
			out, err := e.tryRcctl("", "logs", pod)
			if err == nil && strings.Count(out, "listening on ") != 2 {
				err = fmt.Errorf("log of %s: %q", pod, out)
			}
			return err
		})
	}
	e.within(limit, func() error { return e.converged(id, 2) })

	other := e.hello(2, nil)
	other.Name, other.Port = "other", 8081
	e.applied(other)
	crashed := e.processes()
	h.Env["HELLO_VERSION"] = "2"
	e.applied(h)
	for key, pid := range e.processes() {
		if same := crashed[key] == pid; same == strings.HasPrefix(key, id+"/") {
			e.t.Errorf("%s: pid %d, before a change of hello %d", key, pid, crashed[key])
		}
	}
	if out := e.rcctl("", "exec", "hello-main-0", "--", "printenv", "HELLO_VERSION"); out != "2\n" {
		e.t.Errorf("environment of a pod after its upgrade: %q", out)
	}
	e.sameProcessCount(4)
	e.oneCopyEach()
}
