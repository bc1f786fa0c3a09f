package e2e

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func (e *env) statusIs(id string, good func(*rc.Status) bool) {
	e.t.Helper()
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
		if err == nil && !good(&st.Value) {
			err = fmt.Errorf("status %+v", st.Value)
		}
		return err
	})
}

func (e *env) audited(id, text string) int {
	e.t.Helper()
	found, corrupt, err := e.store.ListAudit(e.t.Context(), store.AuditFilter{RCID: id})
	if err := errors.Join(append(corrupt, err)...); err != nil {
		e.t.Fatal(err)
	}
	n := 0
	for _, a := range found {
		for _, line := range a.Changes {
			if strings.Contains(line, text) {
				n++
			}
		}
	}
	return n
}

// agentRebooted: a machine fails and comes back with all its pods. Later only its preparer stops, again and again. Then
// the machine must not count as lost, although Consul once reported that it failed, and although the controller would
// replace a lost pod at once.
func agentRebooted(e *env) {
	e.startConsul("")
	agents, preparers := e.machines(2)
	e.farm("f1", "")
	h := e.hello(1, nil)
	h.NodeLoss = "{after: 1h}"
	e.applied(h)
	id := e.rcID("hello")
	where := e.placements(id)["main.0"].Value.Node
	victim := e.nodeNumber(where)

	e.powerOff(victim, agents[victim], preparers[victim])
	e.statusIs(id, func(st *rc.Status) bool { return st.Lost == 1 })
	agents[victim].startAgain()
	preparers[victim].startAgain()
	e.within(limit, func() error { return e.converged(id, 1) })
	e.within(limit, func() error {
		if n := len(e.processes()); n != 1 {
			return fmt.Errorf("%d processes", n)
		}
		return nil
	})

	h.NodeLoss = "{after: 0s}"
	e.applied(h)
	processes, lost := e.processes(), e.audited(id, "its node is gone")
	if lost != 1 {
		e.t.Errorf("the loss was written down %d times", lost)
	}
	for range 3 {
		preparers[victim].kill()
		e.statusIs(id, func(st *rc.Status) bool { return st.Unmanaged+st.Lost == 1 })
		if err := e.availableAll(id, 1); err != nil {
			e.t.Errorf("while only the preparer is away: %v", err)
		}
		preparers[victim].startAgain()
		e.statusIs(id, func(st *rc.Status) bool { return st.Unmanaged+st.Lost == 0 && st.Is(rc.Converged) })
	}
	if now := e.audited(id, "its node is gone") - lost; now != 0 {
		e.t.Errorf("a living machine was taken for a lost one %d times", now)
	}
	if n := e.audited(id, " is lost"); n != 0 {
		e.t.Errorf("a pod of a living machine was replaced %d times", n)
	}
	e.sameProcesses(processes, "after the preparer of a machine that once failed was stopped")
}

// lostStaysLost: all processes of a machine are killed, so the machine is lost. The machine still counts as lost when
// its pod is placed elsewhere, and when the former copy is forgotten and no record has the loss any more. No pod on the
// machine is shown as ready. When its preparer starts, the machine does not count as lost any more.
func lostStaysLost(e *env) {
	e.startConsul("")
	agents, preparers := e.machines(3)
	e.farm("f1", "")
	h := e.hello(1, nil)
	h.NodeLoss = "{after: 5s}"
	e.applied(h)
	id := e.rcID("hello")
	victim := e.placements(id)["main.0"].Value.Node
	n := e.nodeNumber(victim)

	e.powerOff(n, agents[n], preparers[n])
	e.within(limit, func() error { return e.nodeIs(victim, "lost", inspect.Lost) })
	e.within(limit, func() error { return e.nothingReadyOn(victim, 1) })
	shown := func(when string, copies int) {
		e.t.Helper()
		if err := errors.Join(e.nodeIs(victim, "lost", inspect.Lost), e.nothingReadyOn(victim, copies)); err != nil {
			e.t.Errorf("%s: %v", when, err)
		}
	}
	e.within(limit, func() error {
		if p := e.placements(id)["main.0"].Value; p.Node == victim || len(p.Ghosts) != 1 {
			return fmt.Errorf("main.0 is on %s, former copies %+v", p.Node, p.Ghosts)
		}
		return nil
	})
	shown("when the replacement was placed", 1)
	if text := e.rcctl("", "pod", "describe", "hello-main-0", "--node", victim); !strings.Contains(text,
		"(its machine is gone)") || !strings.Contains(text, "Reality      unknown, because ") {
		e.t.Errorf("pod describe says\n%s", text)
	}
	e.within(limit, func() error { return e.converged(id, 1) })
	shown("when the replacement was ready", 1)

	e.rcctl("", "pod", "forget", "hello-main-0", "--node", victim, "--wait", "--timeout", limit.String())
	if p := e.placements(id)["main.0"].Value; len(p.Ghosts) != 0 {
		e.t.Errorf("former copies %+v", p.Ghosts)
	}
	shown("when the pod was forgotten", 1) // the report is still there

	agents[n].startAgain()
	preparers[n].startAgain()
	e.within(limit, func() error { return e.nodeIs(victim, "yes", inspect.Alive) })
	e.within(limit, func() error { return e.alone(id, 1) })
	e.oneCopyEach()

	preparers[n].kill() // the machine's agent lives, so the machine is not lost
	e.within(limit, func() error { return e.nodeIs(victim, "no", inspect.Away) })
}

func (e *env) nodeIs(name, alive, state string) error {
	e.t.Helper()
	for line := range strings.Lines(e.rcctl("", "nodes")) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name && fields[1] != alive {
			return fmt.Errorf("rcctl nodes shows %s as %q, want %q", name, fields[1], alive)
		}
	}
	var views []inspect.NodeView
	e.decode([]byte(e.rcctl("", "nodes", "-o", "json")), &views)
	for i := range views {
		if v := &views[i]; v.Name == name {
			if v.State != state || v.Alive != (state == inspect.Alive) {
				return fmt.Errorf("rcctl nodes -o json shows %s as %q, alive %t, want %q", name, v.State, v.Alive,
					state)
			}
			return nil
		}
	}
	return fmt.Errorf("rcctl nodes shows no %s", name)
}

func (e *env) nothingReadyOn(node string, copies int) error {
	e.t.Helper()
	var views []inspect.PodView
	e.decode([]byte(e.rcctl("", "pods", "--node", node, "-o", "json")), &views)
	for i := range views {
		if v := &views[i]; v.State != inspect.Lost || v.Available {
			return fmt.Errorf("rcctl pods shows %s on %s as %s, available %t (%s)", v.Name,
				node, v.State, v.Available, v.Message)
		}
	}
	if table := e.rcctl("", "pods", "--node", node); len(views) != copies || strings.Contains(table, "ready") {
		return fmt.Errorf("%d pods on %s, want %d\n%s", len(views), node, copies, table)
	}
	return nil
}

// forgetLate: an operator declares a pod gone while its preparer is away and no farm runs. Before a farm runs, the
// preparer comes back and goes away again. So the pod runs, and the farm does not forget it. The audit trail, the
// status and the operator's command report this. The machine dies, and the operator asks again: now the pod is
// forgotten.
func forgetLate(e *env) {
	e.startConsul("")
	n1 := e.preparer(1)
	f1 := e.farm("f1", "")
	e.applied(e.hello(1, nil))
	e.remember("hello")
	id := e.rcIDs["hello"]
	before, processes := e.placements(id)["main.0"].Value, e.processes()

	f1.kill()
	n1.kill()
	e.nodeLocked("n1", false)
	e.rcctl("", "pod", "forget", "hello-main-0", "--node", "n1")
	waited := make(chan error, 1)
	go func() {
		_, err := e.tryRcctl("", "pod", "forget", "hello-main-0", "--wait", "--timeout", limit.String())
		waited <- err
	}()
	e.within(limit, func() error {
		asked, err := e.client.Keys(e.t.Context(), e.store.Keys().Requests.Below(id))
		if err == nil && len(asked) != 2 {
			err = fmt.Errorf("requests %v", asked)
		}
		return err
	})
	n1.startAgain()
	e.nodeLocked("n1", true)
	n1.kill()
	e.nodeLocked("n1", false)
	f1.startAgain()
	if err := <-waited; err == nil || !strings.Contains(err.Error(), "nothing was forgotten: request ") ||
		!strings.Contains(err.Error(), "was back in between") {
		e.t.Errorf("waiting for the second request: %v", err)
	}
	e.within(limit, func() error { return e.says(id, rc.RequestVoid, "to forget main.0 on n1 is void: ") })
	if n := e.audited(id, "to forget main.0 on n1 is void: "); n != 2 {
		e.t.Errorf("the audit trail has %d void requests, want 2", n)
	}
	if now := e.placements(id)["main.0"].Value; now.Revision != before.Revision || now.Node != "n1" {
		e.t.Errorf("the pod was %+v, now %+v", before, now)
	}
	e.sameProcesses(processes, "after requests that were void")

	e.powerOff(1)
	out := e.rcctl("", "pod", "forget", "hello-main-0", "--wait", "--timeout", limit.String())
	if !strings.Contains(out, "hello-main-0 on n1 is forgotten") {
		e.t.Error(out)
	}
	if p, there := e.placements(id)["main.0"]; there {
		e.t.Errorf("not forgotten: %+v", p)
	}
}

func (e *env) nodeLocked(name string, want bool) {
	e.t.Helper()
	e.within(limit, func() error {
		_, locked, err := e.store.NodeLock(e.t.Context(), name)
		if err == nil && locked != want {
			err = fmt.Errorf("%s is held: %t", name, locked)
		}
		return err
	})
}

// nodeForget: a machine dies for good. Its pods are replaced. Their controllers converge, although no node can confirm
// that the former copies have stopped. One command removes the machine with all of its records. The command refuses a
// machine that lives.
func nodeForget(e *env) {
	e.startConsul("")
	agents, preparers := e.machines(3)
	e.farm("f1", "")
	var ids []string
	for i, name := range []string{"one", "two", "three"} {
		h := e.hello(2, nil)
		h.Name, h.Port, h.NodeLoss = name, 8081+i, "{after: 0s}"
		e.applied(h)
		ids = append(ids, e.rcID(name))
	}
	victim := e.nodeNumber(e.placements(ids[0])["main.0"].Value.Node)
	dead := fmt.Sprintf("n%d", victim)
	if out, err := e.tryRcctl("", "node", "forget", dead); err == nil || !strings.Contains(out, "its preparer lives") {
		e.t.Errorf("forgetting a living node: %v", err)
	}
	preparers[victim].kill()
	e.nodeLocked(dead, false)
	if out, err := e.tryRcctl("", "node", "forget", dead); err == nil ||
		!strings.Contains(out, fmt.Sprintf("its Consul agent machine-%d lives", victim)) {
		e.t.Errorf("forgetting a node whose agent lives: %v", err)
	}

	e.powerOff(victim, agents[victim])
	copies := 0
	for _, id := range ids {
		e.within(2*limit, func() error {
			for key, p := range e.placements(id) {
				if p.Value.Node == dead {
					return fmt.Errorf("%s is still on %s", key, dead)
				}
			}
			return e.converged(id, 2)
		})
		for _, p := range e.placements(id) {
			copies += len(p.Value.Ghosts)
		}
	}
	if copies == 0 {
		e.t.Fatal("nothing was on the machine that died")
	}
	if out := e.rcctl("", "node", "forget", dead, "--dry-run"); strings.Count(out, "would forget ") != copies {
		e.t.Errorf("of %d copies: %s", copies, out)
	}
	out := e.rcctl("", "node", "forget", dead, "--timeout", limit.String())
	if !strings.Contains(out, fmt.Sprintf("node %s is forgotten", dead)) {
		e.t.Error(out)
	}
	for _, id := range ids {
		e.within(limit, func() error { return e.alone(id, 2) })
	}
	for _, p := range e.saved() {
		for _, below := range []string{"/nodes/", "/nodeops/", "/reservations/", "/intent/", "/reality/"} {
			if strings.Contains(p.Key, below) && strings.Contains(p.Key+"/", "/"+dead+"/") {
				e.t.Errorf("%s is left", p.Key)
			}
		}
	}
	if out := e.rcctl("", "audit", "--node", dead); !strings.Contains(out, "forget-node") {
		e.t.Errorf("the audit trail says nothing: %s", out)
	}
	e.oneCopyEach()
}
