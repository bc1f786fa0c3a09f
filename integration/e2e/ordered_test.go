package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// register is a directory with a file for each index of ordered groups. A process locks its file while it lives, and
// writes when it starts, when it ends, and if it finds the file locked.
type register struct {
	e   *env
	dir string
}

type said struct {
	what, index, node string
	at                time.Time
}

func (e *env) register(pods ...string) register {
	e.t.Helper()
	r := register{e: e, dir: filepath.Join(e.dir, "register")}
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		e.t.Fatal(err)
	}
	for _, name := range pods {
		file := filepath.Join(r.dir, name)
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o666)); err != nil {
			e.t.Fatal(err)
		}
	}
	return r
}

func (r register) lines(podID string) (lines []said) {
	r.e.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.dir, podID+"-*"))
	if err != nil {
		r.e.t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			r.e.t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			s, milli := said{index: strings.TrimPrefix(filepath.Base(file), podID+"-main-")}, int64(0)
			if _, err := fmt.Sscan(line, &s.what, &s.node, &milli); err != nil {
				r.e.t.Fatalf("%s says %q: %v", file, line, err)
			}
			s.at = time.UnixMilli(milli)
			lines = append(lines, s)
		}
	}
	slices.SortStableFunc(lines, func(a, b said) int { return a.at.Compare(b.at) })
	return lines
}

// told returns lines in the form "start 0, end 0", from the n-th on.
func (r register) told(podID string, n int) string {
	texts := []string{}
	for _, s := range r.lines(podID)[n:] {
		texts = append(texts, s.what+" "+s.index)
	}
	return strings.Join(texts, ", ")
}

// mustTell waits until a pod id's lines from the n-th on are want, and returns the number of all lines.
func (r register) mustTell(podID string, n int, want string) int {
	r.e.t.Helper()
	r.e.within(limit, func() error {
		if got := r.told(podID, n); got != want {
			return fmt.Errorf("%s said %q, want %q", podID, got, want)
		}
		return nil
	})
	return len(r.lines(podID))
}

func (r register) last(podID, index string) (last said) {
	for _, s := range r.lines(podID) {
		if s.index == index {
			last = s
		}
	}
	return last
}

func (r register) orderedSpec(name string, replicas int, more, disconnect string) string {
	return fmt.Sprintf(`name: %s
replica_groups:
- {role: main, count: %d, ordered: true}
min_available: 0
node_loss: {after: 0s, unmanaged_after: 0s}
%spod:
  version: 1
  id: %s
  min_ready: 500ms
  launchables:
  - name: db
    artifact: {kind: exec, path: %q}
    stop_grace: 1s
    env: {HELLO_ALONE: %q}
%s`, name, replicas, more, name, filepath.Join(r.e.dir, "alone"), r.dir, disconnect)
}

// ordered: replicas of an ordered group start and stop one after the other. A replica that moves stops before it starts
// elsewhere. A service is rolled out in place. A replica whose preparer is killed stops by itself, but is not placed
// elsewhere. If a machine is cut off and its preparer is dead, its replica is placed elsewhere when its supervisor has
// surely stopped it. If nothing stops the replica, an operator must forget it first. The lines that the processes write
// show that no index ever had two processes.
func ordered(e *env) {
	program, err := os.ReadFile(filepath.Join(e.root, "bin", "hello"))
	if err == nil {
		err = os.WriteFile(filepath.Join(e.dir, "alone"), program, 0o755)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	r := e.register("db-main-0", "db-main-1", "db-main-2", "lone-main-0", "queue-main-0", "queue-main-1")
	e.startConsul("")
	agents, preparers := e.machines(4)
	e.farm("f1", "")
	e.gateOpen()
	e.rcctl(r.orderedSpec("db", 3, "", "  disconnect: {stop_after: 3s}\n"), "apply", "-f", "-",
		"--wait", "--timeout", limit.String())
	// rack=a: n1 or n4
	e.rcctl(r.orderedSpec("lone", 1, "node_selector: rack=a\n", ""), "apply", "-f", "-",
		"--wait", "--timeout", limit.String())
	id := e.rcID("db")
	n := r.mustTell("db", 0, "start 0, start 1, start 2")
	for i, s := range r.lines("db")[1:] {
		// A process writes its line some time after its start, so half of min_ready is enough. Processes that do not
		// wait for each other would write at the same time.
		if gap := s.at.Sub(r.lines("db")[i].at); gap < 250*time.Millisecond {
			e.t.Errorf("index %s started %s after the one before, which was not available then", s.index, gap)
		}
	}
	e.rcctl("", "rc", "scale", "db", "1", "--wait", "--timeout", limit.String())
	n = r.mustTell("db", n, "end 2, end 1")
	e.rcctl("", "rc", "scale", "db", "3", "--wait", "--timeout", limit.String())
	n = r.mustTell("db", n, "start 1, start 2")

	from := e.placements(id)["main.1"].Value.Node
	e.rcctl("", "node", "drain", from, "--wait", "--timeout", limit.String())
	e.within(limit, func() error { return e.availableAll(id, 3) })
	if now := r.last("db", "1"); now.what != "start" || now.node == from ||
		!strings.Contains(r.told("db", n), "end 1") {
		e.t.Errorf("after the drain of %s: %+v", from, r.lines("db"))
	}
	e.rcctl("", "node", "undrain", from)
	e.within(limit, func() error { // otherwise no index would be given up, after any time
		for name, rec := range e.nodes() {
			if !rec.Value.EnforcesStopAfter {
				return fmt.Errorf("%s does not enforce stop_after", name)
			}
		}
		return nil
	})

	r.deployed()
	r.preparerKilled(id, preparers)
	r.cutOff(id, agents, preparers)
	r.declared(agents, preparers)
	for _, name := range []string{"db", "lone", "queue"} {
		for _, s := range r.lines(name) {
			e.t.Logf("%s %s-%s on %s", s.at.Format("15:04:05.000"), s.what, name+"-"+s.index, s.node)
			if s.what == "twice" {
				e.t.Errorf("%s-main-%s lived twice, the second time on %s", name, s.index, s.node)
			}
		}
	}
}

// deployed: a rollout of a service with an ordered group restarts each index once, on its node. The next index restarts
// when the one before is back.
func (r register) deployed() {
	e := r.e
	e.t.Helper()
	document := func(version, update string) string {
		return fmt.Sprintf(`name: queue
replica_groups:
- {role: main, count: 2, ordered: true}
update: {%s}
pod:
  version: 1
  id: queue
  min_ready: 500ms
  launchables:
  - name: queue
    artifact: {kind: exec, path: %q}
    stop_grace: 1s
    env: {HELLO_ALONE: %q, HELLO_VERSION: %q}
`, update, filepath.Join(e.dir, "alone"), r.dir, version)
	}
	e.rcctl(document("1", ""), "deploy", "-f", "-", "--yes")
	n := r.mustTell("queue", 0, "start 0, start 1")
	id := e.rcID("queue-r1")
	before := e.placements(id)
	out, err := e.tryRcctl(document("2", "strategy: availability"), "deploy", "-f", "-", "--yes")
	if err == nil || !strings.Contains(out+err.Error(), "in-place where a replica group is ordered") {
		e.t.Errorf("a deployment with successors elsewhere: %v\n%s", err, out)
	}
	e.rcctl(document("2", ""), "deploy", "-f", "-", "--yes")
	if got := r.told("queue", n); got != "end 0, start 0, end 1, start 1" && got != "end 1, start 1, end 0, start 0" {
		e.t.Errorf("in the rollout queue said %q", got)
	}
	for key, p := range e.placements(id) {
		if was := before[key].Value; p.Value.Node != was.Node || p.Value.Digest == was.Digest {
			e.t.Errorf("%s was %+v, and is %+v", key, was, p.Value)
		}
	}
	e.rcctl("", "service", "delete", "queue", "--force", "--allow-mass-stop")
}

// preparerKilled: the preparer of the highest index is killed. Its supervisor stops the pod. The pod is not placed
// elsewhere, even if the preparer stays away.
func (r register) preparerKilled(id string, preparers []*daemon) {
	e := r.e
	e.t.Helper()
	where := e.placements(id)["main.2"].Value.Node
	victim := preparers[e.nodeNumber(where)]
	victim.kill()
	e.within(limit, func() error {
		if last := r.last("db", "2"); last.what != "end" {
			return fmt.Errorf("db-main-2 has not stopped: %+v", last)
		}
		return nil
	})
	e.statusIs(id, func(st *rc.Status) bool { return st.Unmanaged == 1 })
	e.rcctl(r.orderedSpec("db", 3, "max_surge: 2\n", "  disconnect: {stop_after: 3s}\n"), "apply", "-f", "-")
	e.statusIs(id, func(st *rc.Status) bool { return st.ObservedGeneration == e.generation(id) })
	if p := e.placements(id)["main.2"].Value; p.Node != where || p.RunState != pod.Running {
		e.t.Errorf("main.2 was on %s, and is %+v", where, p)
	}
	victim.startAgain()
	e.within(limit, func() error {
		if now := r.last("db", "2"); now.what != "start" || now.node != where {
			return fmt.Errorf("db-main-2, which was on %s: %+v", where, now)
		}
		return e.availableAll(id, 3)
	})
}

func (e *env) generation(id string) int64 {
	e.t.Helper()
	rec, err := e.store.RCs.Get(e.t.Context(), store.Consistent, id)
	if err != nil {
		e.t.Fatal(err)
	}
	return rec.Value.Generation
}

// surelyStopped is the sum of docs/design/ordered-groups.md for db: 1.5 TTL, 15 s, stop_after, 10 s, stop_grace.
const surelyStopped = 3*time.Second + 15*time.Second + 3*time.Second + 10*time.Second + time.Second

// cutOff: the machine of index 0 loses its agent and its preparer, while supervisor and pod live.
func (r register) cutOff(id string, agents, preparers []*daemon) {
	e := r.e
	e.t.Helper()
	where := e.placements(id)["main.0"].Value.Node
	victim := e.nodeNumber(where)
	preparers[victim].kill()
	agents[victim].kill()
	var lost time.Time
	e.within(limit, func() error {
		p := e.placements(id)["main.0"].Value
		if p.RunState != pod.Stopped || p.LostSince == nil {
			return fmt.Errorf("main.0 is %+v", p)
		}
		lost = *p.LostSince
		return e.says(id, rc.AwaitsStop,
			"main.0 waits until its copy on "+where+" has stopped; it counts as stopped at ")
	})
	e.within(limit, func() error {
		if now := r.last("db", "0"); now.what != "start" || now.node == where {
			return fmt.Errorf("db-main-0: %+v", now)
		}
		return nil
	})
	lines := slices.DeleteFunc(r.lines("db"), func(s said) bool { return s.index != "0" })
	end, start := lines[len(lines)-2], lines[len(lines)-1]
	if end.what != "end" || end.node != where || start.at.Sub(lost) < surelyStopped {
		e.t.Errorf("%s was lost at %s: %+v, %+v", where, lost, end, start)
	}
	e.t.Logf("after the loss of %s db-main-0 ended in %s, and was started elsewhere in %s", where,
		end.at.Sub(lost), start.at.Sub(lost))
	agents[victim].startAgain()
	preparers[victim].startAgain()
	e.within(limit, func() error { return e.availableAll(id, 3) })
}

// declared: a machine dies with a pod that has no stop_after. The pod's index is placed elsewhere only after an
// operator has declared the pod gone.
func (r register) declared(agents, preparers []*daemon) {
	e := r.e
	e.t.Helper()
	id := e.rcID("lone")
	where := e.placements(id)["main.0"].Value.Node
	victim := e.nodeNumber(where)
	e.powerOff(victim, agents[victim], preparers[victim])
	e.within(limit, func() error { return e.says(id, rc.AwaitsStop, "no disconnect.stop_after") })
	if out, err := e.tryRcctl("", "pod", "forget", "lone-main-0", "--node", where); err == nil ||
		!strings.Contains(err.Error(), "--i-am-sure") {
		e.t.Errorf("forget is not refused: %v\n%s", err, out)
	}
	if p := e.placements(id)["main.0"].Value; p.Node != where || p.RunState != pod.Stopped {
		e.t.Errorf("main.0 was on %s, and is %+v", where, p)
	}
	e.rcctl("", "pod", "forget", "lone-main-0", "--node", where, "--i-am-sure", "--wait", "--timeout", limit.String())
	e.within(limit, func() error {
		if now := r.last("lone", "0"); now.what != "start" || now.node == where {
			return fmt.Errorf("lone-main-0: %+v", now)
		}
		return nil
	})
}
