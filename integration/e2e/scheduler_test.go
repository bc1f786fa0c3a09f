package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

// exampleScheduler starts docs/examples/scheduler. When it is started again, it listens at the same address.
func (e *env) exampleScheduler(more ...string) (d *daemon, url string) {
	e.t.Helper()
	d = &daemon{
		e: e, name: "scheduler-1", path: e.example("scheduler"),
		args: append([]string{"-listen", "127.0.0.1:0"}, more...), foreign: true,
	}
	e.daemons = append(e.daemons, d)
	d.startAgain()
	const says = "listening on "
	e.within(limit, func() error {
		_, rest, found := strings.Cut(d.logText(), says)
		address, _, whole := strings.Cut(rest, "\n")
		if !found || !whole {
			return errors.New("the scheduler does not say where it listens")
		}
		d.args[1], url = address, "http://"+address
		return nil
	})
	return d, url
}

func (e *env) placedNodes(name string) []string {
	e.t.Helper()
	return slices.Sorted(slices.Values(e.nodesOf(e.rcID(name))))
}

// remoteScheduler: an outside scheduler chooses nodes. While it is dead, no pod is placed, the status has the reason,
// and all other work continues. When the scheduler is back, the missing pods are placed by its rule.
func remoteScheduler(e *env) {
	e.startConsul("")
	token := filepath.Join(e.dir, "scheduler-token")
	if err := os.WriteFile(token, []byte("between-farms-and-scheduler\n"), 0o600); err != nil {
		e.t.Fatal(err)
	}
	theirs, url := e.exampleScheduler("-token-file", token)
	for n := range 3 {
		e.preparer(n + 1)
	}
	e.farm("f1", "", "--scheduler-url", url, "--scheduler-token-file", token)
	e.within(limit, func() error {
		_, err := e.tryRcctl("", "label", "node", "n1", "keep-free=yes")
		return err
	})
	h := e.hello(2, nil)
	h.Port = 0
	e.applied(h)
	for _, name := range []string{"one", "two"} { // the built-in choice would be the emptiest node
		other := h
		other.Name, other.Replicas = name, 1
		e.applied(other)
		if on := e.placedNodes(name); !slices.Equal(on, []string{"n2"}) {
			e.t.Errorf("%s is on %v, the first by name that is not kept free is n2", name, on)
		}
	}
	if on := e.placedNodes("hello"); !slices.Equal(on, []string{"n2", "n3"}) {
		e.t.Errorf("hello is on %v", on)
	}
	theirs.kill()
	before := e.processes()
	h.Replicas = 4
	e.apply(h)
	e.within(limit, func() error {
		if err := e.explains("does not help: 2 of 4 replicas have no node: the scheduler: ", "connection refused",
			"pods that run are left alone"); err != nil {
			return err
		}
		if out := e.rcctl("", "rc", "get", "hello"); !strings.Contains(out, "SchedulerFailing") {
			return fmt.Errorf("rcctl rc get says %s", out)
		}
		return nil
	})
	e.sameProcesses(before, "while the scheduler is away")
	other := h
	other.Name, other.Replicas = "two", 0 // a change that needs no new node is carried out
	e.applied(other)
	if on := e.placedNodes("hello"); !slices.Equal(on, []string{"n2", "n3"}) {
		e.t.Errorf("hello is on %v, and nobody chose", on)
	}
	theirs.startAgain()
	e.rcctl(cluster.HelloSpec(h), "apply", "-f", "-", "--wait", "--timeout", limit.String())
	if on := e.placedNodes("hello"); !slices.Equal(on, []string{"n2", "n2", "n3", "n3"}) {
		e.t.Errorf("hello is on %v", on)
	}
	if err := e.explains("does not help"); err == nil {
		e.t.Error("it is said to fail, and has placed all")
	}
	e.oneCopyEach()
}

// ownScheduler: another program is a farm with its own scheduler. If this scheduler refuses nodes, explain names the
// scheduler.
func ownScheduler(e *env) {
	e.startConsul("")
	for n := range 2 {
		e.preparer(n + 1)
	}
	e.within(limit, func() error {
		_, err := e.tryRcctl("", "label", "node", "n1", "keep-free=yes")
		return err
	})
	program := e.example("farm")
	args := append(e.common("f1", ""), "--id", "f1")
	refused := exec.CommandContext(e.t.Context(), program, append(args, "--scheduler-url", "http://127.0.0.1:7470")...)
	if out, err := refused.CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "this program has a scheduler of its own") {
		e.t.Fatalf("%v\n%s", err, out)
	}
	f := e.start("f1", program, args...)
	h := e.hello(2, nil)
	h.Port = 0
	e.applied(h)
	if on := e.placedNodes("hello"); !slices.Equal(on, []string{"n2", "n2"}) {
		e.t.Errorf("hello is on %v, and n1 is kept free", on)
	}
	if !strings.Contains(f.logText(), "of this program (main.keepFree)") {
		e.t.Errorf("the farm does not say which scheduler it asks:\n%s", f.logTail(20))
	}
	e.rcctl("", "node", "cordon", "n2")
	h.Replicas = 3
	e.apply(h)
	e.within(limit, func() error {
		return e.explains("Its scheduler refuses nodes for a reason of its own: kept free: 1. "+
			"By the farm's own rule, these nodes have capacity: n1.", "Look at the scheduler")
	})
	e.rcctl("", "label", "node", "n1", "keep-free-")
	e.rcctl(cluster.HelloSpec(h), "apply", "-f", "-", "--wait", "--timeout", limit.String())
	if on := e.placedNodes("hello"); !slices.Equal(on, []string{"n1", "n2", "n2"}) {
		e.t.Errorf("hello is on %v", on)
	}
	e.oneCopyEach()
}
