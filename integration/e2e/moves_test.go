package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// pooled has three pods on nodes of pool a, at most one on a node. On n4 no pod becomes available.
func (e *env) pooled(deadline string) string {
	e.t.Helper()
	h := e.hello(3, map[string]string{"HELLO_SICK": "n4"})
	h.Selector = "pool=a"
	return "max_per_node: 1\nprogress_deadline: " + deadline + "\n" + cluster.HelloSpec(h)
}

func (e *env) nodesOf(id string) []string {
	e.t.Helper()
	var nodes []string
	placements := e.placements(id)
	for i := range len(placements) {
		nodes = append(nodes, placements[fmt.Sprintf("main.%d", i)].Value.Node)
	}
	return nodes
}

// sickMove: a pod must move off its node, and does not become available on another node. The pod returns to its node,
// and explain has the reason. The move is tried again as soon as there is another node. A drain of another node does
// not wait for this pod. If the pod's node matches again before the pod has moved, the pod also returns to its node.
func sickMove(e *env) {
	e.startConsul("")
	for n := range 4 {
		e.preparer(n+1, "--label", "pool="+map[bool]string{true: "a", false: "later"}[n < 3])
	}
	e.farm("f1", "")
	e.applyText(e.pooled("3s"), "--wait", "--timeout", limit.String())
	id := e.rcID("hello")
	at := func(i int) pod.Placement { return e.placements(id)[fmt.Sprintf("main.%d", i)].Value }
	mover := slices.Index(e.nodesOf(id), "n1")
	before := e.processes()

	e.rcctl("", "label", "node", "n4", "pool=a")
	e.rcctl("", "label", "node", "n1", "pool=b")
	e.within(limit, func() error {
		if p := at(mover); p.Node != "n1" || len(p.Ghosts) > 0 || len(p.Avoid) != 1 || p.Avoid[0].Node != "n4" {
			return fmt.Errorf("main.%d is on %s with ghosts %+v, avoids %+v", mover, p.Node, p.Ghosts, p.Avoid)
		}
		return e.explains(fmt.Sprintf("main.%d must leave n1", mover), "did not become available on n4 (")
	})
	e.sameProcesses(before, "while no other node takes the pod")

	e.preparer(5, "--label", "pool=a")
	e.preparer(6, "--label", "pool=a")
	drained := make(chan error, 1)
	go func() {
		_, err := e.tryRcctl("", "node", "drain", "n3", "--wait")
		drained <- err
	}()
	least := e.leastAvailable(id, func() error {
		nodes := e.nodesOf(id)
		slices.Sort(nodes)
		if want := []string{"n2", "n5", "n6"}; !slices.Equal(nodes, want) {
			return fmt.Errorf("pods on %v, want %v", nodes, want)
		}
		return e.converged(id, 3)
	})
	if least < 2 {
		e.t.Errorf("only %d pods were available, the minimum is 2", least)
	}
	if err := <-drained; err != nil {
		e.t.Error(err)
	}

	e.applyText(e.pooled("10m"), "--wait", "--timeout", limit.String())
	mover = slices.Index(e.nodesOf(id), "n2")
	before = e.processes()
	e.rcctl("", "label", "node", "n2", "pool=b")
	e.within(limit, func() error {
		if p := at(mover); p.Node != "n4" {
			return fmt.Errorf("main.%d is on %s", mover, p.Node)
		}
		return nil
	})
	e.rcctl("", "label", "node", "n2", "pool=a")
	e.within(limit, func() error {
		if p := at(mover); p.Node != "n2" || len(p.Ghosts) > 0 {
			return fmt.Errorf("main.%d is on %s with ghosts %+v", mover, p.Node, p.Ghosts)
		}
		return e.converged(id, 3)
	})
	e.sameProcesses(before, "when its node may keep it again")
	e.oneCopyEach()
}

func (e *env) explains(texts ...string) error {
	out, err := e.tryRcctl("", "rc", "explain", "hello")
	if err != nil {
		return err
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			return errors.New("no " + text + " in " + out)
		}
	}
	return nil
}

// misplaced: the node of a static controller's pod does not match any more. The pod is not moved, and reports show this
// until the node matches again. The audit trail of the node has what happened to the node's pods.
func misplaced(e *env) {
	e.startConsul("")
	e.preparer(1)
	e.farm("f1", "")
	h := e.hello(1, nil)
	h.Selector = "rack=a"
	static := "strategy: static\n" + cluster.HelloSpec(h)
	e.applyText(static, "--wait", "--timeout", limit.String())
	id := e.rcID("hello")
	before := e.processes()
	e.rcctl("", "label", "node", "n1", "rack=z")
	const why = `main.0 stays on n1, whose labels "rack=a" does not match: its controller is static`
	e.within(limit, func() error { return e.explains("It has converged: 1 of 1", why) })
	e.within(limit, func() error {
		if log := e.daemons[1].logText(); !strings.Contains(log, "condition=Misplaced") {
			return errors.New("no alert in " + log)
		}
		return nil
	})
	e.rcctl("", "rc", "status", "hello", "--watch", "--until", "Misplaced", "--timeout", limit.String())
	e.sameProcesses(before, "while its node does not match")
	e.rcctl("", "label", "node", "n1", "rack-")
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
		if err == nil && st.Value.Is("Misplaced") {
			err = fmt.Errorf("%+v", st.Value)
		}
		return err
	})
	e.rcctl("", "rc", "scale", "hello", "0", "--wait", "--timeout", limit.String())
	out := e.rcctl("", "audit", "--node", "n1")
	for _, want := range []string{"place main.0 on n1", "stop main.0 on n1", "remove main.0 from n1"} {
		if !strings.Contains(out, want) {
			e.t.Errorf("no %q in\n%s", want, out)
		}
	}
}
