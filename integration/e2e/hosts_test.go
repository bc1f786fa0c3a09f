package e2e

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// twoHosts: two machines have the same node name. The second machine does nothing and reports why, also while the first
// machine's preparer is away. When the first machine is gone, the second gets the name.
func twoHosts(e *env) {
	e.startConsul("")
	firstAgent, firstAddr := e.agent(1)
	_, secondAddr := e.agent(2)
	first := e.preparerAt(1, firstAddr)
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	id := e.rcID("hello")
	processes, owner := e.processes(), e.node("n1").Value.Host

	second := e.start("n1-twin", "preparer",
		append(e.common("n1-twin", secondAddr), "--node", "n1", "--address", e.address(2))...)
	e.refusedTimes(second, 1)
	for _, want := range []string{owner, "machine-1", "machine-2", "--take-over-name"} {
		if !strings.Contains(second.logText(), want) {
			e.t.Errorf("the second preparer does not say %s", want)
		}
	}
	for round := range 3 {
		first.kill()
		e.within(limit, func() error { return e.lockedBy("", owner) })
		second.kill()
		second.startAgain() // it decides anew while the lock is free
		e.refusedTimes(second, 2+round)
		if err := e.lockedBy("", owner); err != nil {
			e.t.Error(err)
		}
		e.sameProcesses(processes, "the second preparer found the lock free")
		first.startAgain()
		e.within(limit, func() error { return e.lockedBy("its preparer", owner) })
		e.sameProcesses(processes, "the first preparer is back")
	}
	e.applied(e.hello(1, map[string]string{"HELLO_VERSION": "2"}))
	if len(e.processes()) != 1 {
		e.t.Errorf("processes %v after an upgrade, want one", e.processes())
	}

	e.powerOff(1, firstAgent, first)
	e.within(limit, func() error {
		if n := e.node("n1"); n.Session == "" || n.Value.Host == owner {
			return fmt.Errorf("node n1 is host %s's, session %q", n.Value.Host, n.Session)
		}
		return nil
	})
	if !e.agentFailed("machine-1") {
		e.t.Error("the name was taken over from a machine whose agent lives")
	}
	e.within(limit, func() error { // Consul may still have the pod's check from the first machine
		if len(e.processes()) != 1 || e.node("n1").Value.ConsulNode != "machine-2" {
			return fmt.Errorf("processes %v of node %+v", e.processes(), e.node("n1").Value)
		}
		return e.converged(id, 1)
	})
}

func (e *env) node(name string) store.Rec[node.Node] {
	e.t.Helper()
	rec, err := e.store.Nodes.Get(e.t.Context(), store.Consistent, name)
	if err != nil {
		e.t.Fatal(err)
	}
	return rec
}

func (e *env) refusedTimes(d *daemon, n int) {
	e.t.Helper()
	e.within(limit, func() error {
		if got := strings.Count(d.logText(), "this node's name belongs to another host"); got < n {
			return fmt.Errorf("%s has refused its name %d times, want %d", d.name, got, n)
		}
		return nil
	})
}

// An empty who means that the record is not locked.
func (e *env) lockedBy(who, host string) error {
	n := e.node("n1")
	if (n.Session != "") != (who != "") || n.Value.Host != host {
		return errors.Join(fmt.Errorf("host %s, session %q", n.Value.Host, n.Session),
			fmt.Errorf("want host %s, locked by %q", host, who))
	}
	return nil
}
