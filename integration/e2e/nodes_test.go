package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func (e *env) agent(n int) (d *daemon, addr string) {
	e.t.Helper()
	var self struct{ Member struct{ Port int } }
	e.decode(e.request(http.MethodGet, "/v1/agent/self", nil), &self)
	bin, err := devserver.Find(filepath.Join(e.root, "bin"))
	if err != nil {
		e.t.Fatal(err)
	}
	name := fmt.Sprintf("machine-%d", n)
	dir := filepath.Join(e.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		e.t.Fatal(err)
	}
	file := filepath.Join(dir, "consul.json")
	conf := e.encode(map[string]any{
		"node_name": name, "data_dir": filepath.Join(dir, "data"),
		"bind_addr": e.address(n), "client_addr": e.address(n),
		"retry_join": []string{"127.0.0.1:" + strconv.Itoa(self.Member.Port)}, "disable_update_check": true,
		"log_level": "warn", "ports": map[string]int{"dns": -1, "grpc": -1, "grpc_tls": -1},
	})
	if err := os.WriteFile(file, conf, 0o600); err != nil {
		e.t.Fatal(err)
	}
	d = &daemon{e: e, name: name, path: bin, args: []string{"agent", "-config-file", file}, foreign: true}
	e.daemons = append(e.daemons, d)
	d.startAgain()
	e.within(limit, func() error {
		_, err := exec.CommandContext(e.t.Context(), bin, "info", "-http-addr", e.address(n)+":8500").Output()
		if err != nil {
			return fmt.Errorf("agent of %s: %w", name, err)
		}
		return nil
	})
	return d, e.address(n) + ":8500"
}

// machines starts n machines with an agent and a preparer each. Both lists have the node's number as index.
func (e *env) machines(n int) (agents, preparers []*daemon) {
	e.t.Helper()
	agents, preparers = make([]*daemon, n+1), make([]*daemon, n+1)
	for i := 1; i <= n; i++ {
		var addr string
		agents[i], addr = e.agent(i)
		preparers[i] = e.preparerAt(i, addr)
	}
	return agents, preparers
}

func (e *env) supervisors(n int) []int {
	e.t.Helper()
	dir := filepath.Join(e.dir, fmt.Sprintf("n%d", n)) + "/"
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		e.t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		line, err := os.ReadFile(file)
		pid, convErr := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && convErr == nil && strings.Contains(string(line), "supervise") &&
			strings.Contains(string(line), dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// powerOff kills everything on a machine at once: daemons, supervisor and pods.
func (e *env) powerOff(n int, daemons ...*daemon) {
	e.t.Helper()
	pids := e.supervisors(n)
	for _, d := range daemons {
		pids = append(pids, d.current().cmd.Process.Pid)
	}
	for key, pid := range e.processes() {
		if strings.HasSuffix(key, fmt.Sprintf("@n%d", n)) {
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // no process may react to the death of another
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, d := range daemons {
		<-d.current().ended
	}
}

// nodeLoss: a machine dies with its agent. Its pod is placed elsewhere when gossip has detected the death and
// node_loss.after has passed. When the machine returns, the old copy of the pod stops, and only one copy is left.
func nodeLoss(e *env) {
	e.startConsul("")
	agents, preparers := e.machines(3)
	e.farm("f1", "")
	h := e.hello(2, nil)
	h.NodeLoss = "{after: 1s}"
	e.applied(h)
	id := e.rcID("hello")
	victim := e.nodeNumber(e.placements(id)["main.0"].Value.Node)
	other := e.placements(id)["main.1"].Value.Node

	died := time.Now()
	e.powerOff(victim, agents[victim], preparers[victim])
	e.within(limit, func() error {
		if !e.agentFailed(fmt.Sprintf("machine-%d", victim)) {
			return errors.New("gossip has not found out")
		}
		return nil
	})
	seen := time.Now()
	e.within(limit, func() error {
		p := e.placements(id)["main.0"].Value
		if e.nodeNumber(p.Node) == victim || len(p.Ghosts) != 1 || !p.Ghosts[0].LeftBecauseLost {
			return fmt.Errorf("main.0 is on %s with ghosts %+v", p.Node, p.Ghosts)
		}
		return nil
	})
	e.t.Logf("gossip saw the loss after %s; the replacement was placed %s later, node_loss.after is 1 s",
		seen.Sub(died).Round(time.Millisecond), time.Since(seen).Round(time.Millisecond))
	e.within(limit, func() error { return e.availableAll(id, 2) })
	if now := e.placements(id)["main.1"].Value.Node; now != other {
		e.t.Errorf("main.1 moved from %s to %s", other, now)
	}

	agents[victim].startAgain()
	preparers[victim].startAgain()
	e.within(2*limit, func() error { return e.alone(id, 2) })
	e.oneCopyEach()
	if len(e.processes()) != 2 {
		e.t.Errorf("processes %v, want 2", e.processes())
	}
}

// alone needs n replicas and no former copy. A converged status is not enough, because it may be from before a lost
// machine came back with its copies.
func (e *env) alone(id string, n int) error {
	for key, p := range e.placements(id) {
		if len(p.Value.Ghosts) > 0 {
			return fmt.Errorf("%s has former copies: %+v", key, p.Value.Ghosts)
		}
	}
	return e.converged(id, n)
}

func (e *env) nodeNumber(name string) int {
	e.t.Helper()
	n, err := strconv.Atoi(strings.TrimPrefix(name, "n"))
	if err != nil {
		e.t.Fatal(err)
	}
	return n
}

func (e *env) agentFailed(machine string) bool {
	e.t.Helper()
	var checks []struct{ Node, CheckID string }
	e.decode(e.request(http.MethodGet, "/v1/health/state/critical", nil), &checks)
	for _, c := range checks {
		if c.Node == machine && c.CheckID == "serfHealth" {
			return true
		}
	}
	return false
}

func (e *env) availableAll(id string, n int) error {
	st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
	if err == nil && st.Value.Available != n {
		err = fmt.Errorf("status %+v", st.Value)
	}
	return err
}

// preparerGone: only a node's preparer dies. The node's pod continues to run and counts as available, and the status
// reports that the preparer is away. No new pod is placed on the node. When the preparer returns, nothing has changed.
// If the preparer is away for node_loss.unmanaged_after, the pod is replaced.
func preparerGone(e *env) {
	e.startConsul("")
	preparers := map[string]*daemon{}
	for n := range 3 {
		preparers[fmt.Sprintf("n%d", n+1)] = e.preparer(n + 1)
	}
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	id := e.rcID("hello")
	where := e.placements(id)["main.0"].Value.Node
	processes := e.processes()
	preparers[where].kill()
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
		if err == nil && (!st.Value.Is(rc.NodeLost) || st.Value.Unmanaged != 1 || st.Value.Available != 1) {
			err = fmt.Errorf("status %+v", st.Value)
		}
		return err
	})
	e.apply(e.hello(3, nil))
	e.within(limit, func() error { return e.availableAll(id, 3) })
	for key, p := range e.placements(id) {
		if key != "main.0" && p.Value.Node == where {
			e.t.Errorf("%s was placed on the node without a preparer", key)
		}
	}
	for key, pid := range processes {
		if e.processes()[key] != pid {
			e.t.Errorf("%s was touched", key)
		}
	}
	preparers[where].startAgain()
	e.within(limit, func() error { return e.converged(id, 3) })
	e.applied(e.hello(2, nil))

	var first string
	for key := range e.placements(id) {
		first = key
	}
	where = e.placements(id)[first].Value.Node
	h := e.hello(2, nil)
	h.NodeLoss = "{unmanaged_after: 2s}"
	e.applied(h)
	preparers[where].kill()
	e.within(limit, func() error {
		if now := e.placements(id)[first].Value.Node; now == where {
			return fmt.Errorf("%s is still on %s", first, now)
		}
		return nil
	})
	preparers[where].startAgain()
	e.within(limit, func() error { return e.alone(id, 2) })
	e.oneCopyEach()
}

// transfer: a node's label changes, and the selector does not match the node any more. The node's pod moves, and at
// least the minimum is available all the time.
func transfer(e *env) {
	e.startConsul("")
	for n := range 4 {
		e.preparer(n + 1) // racks a, b, c, a
	}
	e.farm("f1", "")
	h := e.hello(2, nil)
	h.Selector = "rack in (a,b)"
	e.applied(h)
	id := e.rcID("hello")
	leaver := e.placements(id)["main.0"].Value.Node
	stayer := e.placements(id)["main.1"].Value.Node
	stayerPID := e.processes()[id+"/main.1@"+stayer]
	e.rcctl("", "label", "node", leaver, "rack=z")
	least := e.leastAvailable(id, func() error {
		if p := e.placements(id)["main.0"].Value; p.Node == leaver || len(p.Ghosts) > 0 {
			return fmt.Errorf("main.0 is on %s with ghosts %+v", p.Node, p.Ghosts)
		}
		return e.converged(id, 2)
	})
	e.t.Logf("at least %d pods were available while one of 2 moved", least)
	if least < 1 {
		e.t.Errorf("only %d pods were available, the minimum is 1", least)
	}
	if e.processes()[id+"/main.1@"+stayer] != stayerPID {
		e.t.Error("the pod that could stay was touched")
	}
	e.oneCopyEach()
}

// drain: a node is emptied without going below the minimum. After the drain it takes pods again.
func drain(e *env) {
	e.startConsul("")
	for n := range 4 {
		e.preparer(n + 1)
	}
	e.farm("f1", "")
	e.applied(e.hello(3, nil))
	id := e.rcID("hello")
	node := e.placements(id)["main.0"].Value.Node
	done := make(chan error, 1)
	go func() {
		_, err := e.tryRcctl("", "node", "drain", node, "--wait")
		done <- err
	}()
	least := e.leastAvailable(id, func() error {
		select {
		case err := <-done:
			if err != nil {
				e.t.Error(err)
			}
			return nil
		default:
			return errors.New("the drain is not done")
		}
	})
	e.t.Logf("at least %d of 3 pods were available during the drain", least)
	if least < 2 {
		e.t.Errorf("only %d pods were available, the minimum is 2", least)
	}
	for key := range e.processes() {
		if strings.HasSuffix(key, "@"+node) {
			e.t.Errorf("%s still runs on the drained node", key)
		}
	}
	h := e.hello(4, nil)
	e.apply(h)
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
		if err == nil && !st.Value.Is(rc.InsufficientNodes) {
			err = fmt.Errorf("a fourth pod found a node: %+v", st.Value)
		}
		return err
	})
	e.rcctl("", "node", "undrain", node)
	e.within(limit, func() error { return e.converged(id, 4) })
	e.oneCopyEach()
	if !slices.ContainsFunc(e.intents(), func(in pod.Intent) bool { return in.RCID == id }) {
		e.t.Error("no intent is left")
	}
}

// drainForce: a static pod continues to run after the deadline of a drain, and is stopped at the deadline of a forced
// drain. When the drain ends, the pod starts on its node again.
func drainForce(e *env) {
	e.startConsul("")
	e.preparer(1)
	e.preparer(2)
	e.farm("f1", "")
	h := e.hello(1, nil)
	h.Selector = "rack=a"
	spec := func() string { return "strategy: static\n" + cluster.HelloSpec(h) }
	e.applyText(spec(), "--wait", "--timeout", limit.String())
	id := e.rcID("hello")
	before := e.processes()

	e.rcctl("", "node", "drain", "n1", "--deadline", "1s")
	e.within(limit, func() error { return e.blocked(id, "its controller is static") })
	e.within(limit, func() error {
		if left := time.Until(e.deadline("n1")); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	h.NodeLoss = "{after: 1h}" // a change that concerns no pod, so the owner decides again, after the deadline
	e.applyText(spec())
	e.within(limit, func() error { return e.blocked(id, "its controller is static") })
	e.sameProcesses(before, "after the deadline of a drain without --force")
	if err := e.availableAll(id, 1); err != nil {
		e.t.Error(err)
	}
	out, err := e.tryRcctl("", "node", "drain", "n1", "--wait", "--timeout", "1s")
	if err == nil || !strings.Contains(out, "1 pod left: hello-main-0") {
		e.t.Errorf("waiting for the drain: %v, %s", err, out)
	}

	e.rcctl("", "node", "drain", "n1", "--deadline", "1h", "--force")
	e.within(limit, func() error {
		return e.blocked(id, "it is stopped at "+e.deadline("n1").UTC().Format(time.RFC3339))
	})
	e.sameProcesses(before, "before the deadline of a forced drain")
	e.rcctl("", "node", "drain", "n1", "--deadline", "3s")
	at := e.deadline("n1")
	e.within(limit, func() error {
		if n := len(e.processes()); n > 0 {
			return fmt.Errorf("%d processes run", n)
		}
		return nil
	})
	if early := time.Until(at); early > 0 {
		e.t.Errorf("the pod was stopped %s before the deadline", early)
	}
	e.rcctl("", "node", "drain", "n1", "--wait", "--timeout", limit.String())
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
		if err == nil && !st.Value.Is(rc.InsufficientNodes) {
			err = fmt.Errorf("the pod found another node, or waits for nothing: %+v", st.Value)
		}
		return err
	})
	e.sameProcessCount(0)

	e.rcctl("", "node", "undrain", "n1")
	e.within(limit, func() error { return e.converged(id, 1) })
	for key, pid := range e.processes() {
		if before[key] == 0 || before[key] == pid {
			e.t.Errorf("%s has pid %d after the drain; the processes before were %v", key, pid, before)
		}
	}
	e.oneCopyEach()
}

func (e *env) blocked(rcID, why string) error {
	rec, err := e.store.RCs.Get(e.t.Context(), store.Consistent, rcID)
	if err != nil {
		return err
	}
	st, err := e.store.Statuses.Get(e.t.Context(), store.Default, rcID)
	if err == nil && st.Value.ObservedGeneration != rec.Value.Generation {
		err = fmt.Errorf("generation %d, status %+v", rec.Value.Generation, st.Value)
	}
	return errors.Join(err, e.says(rcID, rc.Blocked, why))
}

func (e *env) deadline(node string) time.Time {
	e.t.Helper()
	ops, err := e.store.NodeOps.Get(e.t.Context(), store.Consistent, node)
	if err != nil {
		e.t.Fatal(err)
	}
	if ops.Value.Drain == nil || ops.Value.Drain.Deadline == nil {
		e.t.Fatalf("%s has no drain with a deadline: %+v", node, ops.Value)
	}
	return *ops.Value.Drain.Deadline
}

func (e *env) intents() []pod.Intent {
	e.t.Helper()
	var all []pod.Intent
	for _, p := range e.saved() {
		var in pod.Intent
		if strings.Contains(p.Key, "/intent/") && !strings.HasSuffix(p.Key, "/") &&
			json.Unmarshal(p.Value, &in) == nil {
			all = append(all, in)
		}
	}
	return all
}
