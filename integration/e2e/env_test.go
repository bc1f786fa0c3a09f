// Package e2e tests the built programs with a real Consul, real processes and real signals. `make e2e RUN=name` runs
// only one scenario.
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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/stub"
	"github.com/rcfarm/rcfarm/pkg/store"
)

var scenarios = map[string]func(*env){
	"paused-owner":          pausedOwner,
	"old-tenure":            oldTenure,
	"late-write":            lateWrite,
	"fast-restart":          fastRestart,
	"wipe":                  wipe,
	"wipe-large":            wipeLarge,
	"restore":               restore,
	"restore-scale":         restoreScale,
	"blind-token":           blindToken,
	"acl":                   aclPolicies,
	"token-rotation":        tokenRotation,
	"change-manifest":       changeManifest,
	"two-first-farms":       twoFirstFarms,
	"quiet-failover":        quietFailover,
	"handover":              handover,
	"many-rcs":              manyRCs,
	"corrupt-record":        corruptRecord,
	"corrupt-node":          corruptNode,
	"first-pod":             firstPod,
	"image":                 image,
	"bad-image":             badImage,
	"container-users":       containerUsers,
	"image-digests":         imageDigests,
	"private-registry":      privateRegistry,
	"registry-slow":         registrySlow,
	"registry-away":         registryAway,
	"name-prefix":           namePrefix,
	"breaker":               breaker,
	"mass-stop-allowed":     massStopAllowed,
	"node-loss":             nodeLoss,
	"agent-rebooted":        agentRebooted,
	"lost-stays-lost":       lostStaysLost,
	"forget-late":           forgetLate,
	"site-lost":             siteLost,
	"node-forget":           nodeForget,
	"preparer-gone":         preparerGone,
	"transfer":              transfer,
	"drain":                 drain,
	"drain-force":           drainForce,
	"drain-ended":           drainEnded,
	"runit":                 leftByRunit,
	"readyz":                readyz,
	"unclaimed":             unclaimed,
	"preparer-crash":        preparerCrash,
	"preparer-upgrade":      preparerUpgrade,
	"supervisor-crash":      supervisorCrash,
	"oom-told":              oomTold,
	"hung-supervisor":       hungSupervisor,
	"full-disk-stop":        fullDiskStop,
	"hung-process":          hungProcess,
	"consul-away":           consulAway,
	"bad-artifacts":         badArtifacts,
	"logs-exec":             logsExec,
	"log-rotation":          logRotation,
	"exec-stop":             execStop,
	"push":                  pushScenario,
	"stopped-stub":          stoppedStub,
	"hostile-pod":           hostilePod,
	"hostile-node":          hostileNode,
	"reboot":                reboot,
	"hooks":                 hooks,
	"upgrade":               upgrade,
	"upgrade-in-place":      upgradeInPlace,
	"signatures":            signatures,
	"revoked":               revoked,
	"dynamic-ports":         dynamicPorts,
	"services":              services,
	"roles":                 roles,
	"ordered":               ordered,
	"default-install":       defaultInstall,
	"two-hosts":             twoHosts,
	"name-refused":          nameRefused,
	"no-health":             noHealth,
	"variables":             variables,
	"sick-move":             sickMove,
	"bad-machine":           badMachine,
	"misplaced":             misplaced,
	"volume-redeploy":       volumeRedeploy,
	"pod-labels":            podLabels,
	"deploy-waits":          deployWaits,
	"plan-nodes":            planNodes,
	"mode-change":           modeChange,
	"mode-stages":           modeStages,
	"drain-volume":          drainVolume,
	"relabel":               relabel,
	"crash-loop":            crashLoop,
	"drained":               drained,
	"owner-killed":          ownerKilled,
	"no-room":               noRoom,
	"advice-works":          adviceWorks,
	"retarget":              retarget,
	"restore-rollout":       restoreRollout,
	"stale-plan":            stalePlan,
	"saved-plan":            savedPlan,
	"domain":                domain,
	"rollout":               rollOut,
	"rollback":              rollBack,
	"rollback-keeps-counts": rollbackKeepsCounts,
	"scaled-in-mid-course":  scaledInMidCourse,
	"pre-deploy":            preDeploy,
	"pre-deploy-static":     preDeployStatic,
	"hopeless":              hopeless,
	"canary":                canary,
	"canary-sick":           canarySick,
	"why-it-failed":         whyItFailed,
	"rollback-waits":        rollbackWaits,
	"blue-green":            blueGreen,
	"in-place":              inPlace,
	"resize-live":           resizeLive,
	"gates":                 gates,
	"turned-back":           turnedBack,
	"in-place-back":         backInPlace,
	"deploy-terminal":       deployTerminal,
	"remote-scheduler":      remoteScheduler,
	"own-scheduler":         ownScheduler,
	"election-sample":       electionSample,
	"leader-loss":           leaderLoss,
	"janitor":               janitorDuties,
	"legacy-scale":          legacyScale,
	"local-service":         localService,
	"each-node":             eachNode,
	"dev-port-taken":        devPortTaken,
	"front-door":            frontDoor,
	"real-cluster":          realCluster,
	"token-refused":         tokenRefused,
	"alert-webhook":         alertWebhook,
}

func TestMain(m *testing.M) { os.Exit(consultest.Main(m)) }

func TestScenario(t *testing.T) {
	for name, run := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(newEnv(t))
		})
	}
}

// limit is how long a step may take on a busy machine.
const limit = 2 * time.Minute

type env struct {
	t       *testing.T
	root    string
	dir     string
	net     int // third byte of the node addresses
	consul  *consultest.Server
	client  *consul.Client
	store   *store.Store
	line    *app.LifelineServer
	token   string   // of the scenario itself and of rcctl
	environ []string // variables of daemons, in addition to this process's
	daemons []*daemon
	rcIDs   map[string]string // see remember
	dirs    []string          // removed at the end, besides dir

	credentials *cluster.Credentials // see opens
}

// Each scenario has its own addresses, because static ports of scenarios that run together would collide.
var nets atomic.Int32

func newEnv(t *testing.T) *env {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rcf-") // short: sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { // pods have users of their own
		t.Fatal(err)
	}
	e := &env{t: t, root: root, dir: dir, net: int(nets.Add(1))}
	if e.line, err = app.ListenLifeline(filepath.Join(dir, "life.sock")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.cleanup)
	return e
}

// cleanup ends every process of the scenario, and checks that none is left. After a failure it kills what is left,
// because without a supervisor, nothing ends pods when the lifeline breaks.
func (e *env) cleanup() {
	failed := e.t.Failed()
	for _, d := range e.daemons {
		d.signal(syscall.SIGCONT) // a stopped process would not see the end of its lifeline
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	endErr := e.line.End(ctx)
	if endErr != nil {
		e.t.Error(endErr)
	}
	for _, d := range e.daemons {
		if d.foreign || endErr != nil {
			d.signal(syscall.SIGKILL)
		}
	}
	for _, d := range e.daemons {
		<-d.current().ended
	}
	if e.consul != nil {
		e.consul.Stop()
	}
	if err := cluster.Until(ctx, func() error {
		left, err := cluster.ProcessesUnder(e.dir)
		if failed {
			killAll(left)
		}
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("processes are left: %v", left)
		}
		return err
	}); err != nil {
		e.t.Error(err)
	}
	if e.t.Failed() {
		for _, d := range e.daemons {
			e.t.Logf("log of %s:\n%s", d.name, d.logTail(60))
		}
	}
	for _, dir := range append(e.dirs, e.dir) {
		if err := consultest.RemoveAll(dir); err != nil {
			e.t.Errorf("%.300s", err)
		}
	}
}

func killAll(found []string) {
	for _, text := range found {
		var pid int
		if _, err := fmt.Sscanf(text, "%d:", &pid); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// config is JSON.
func (e *env) startConsul(config string) {
	e.t.Helper()
	var err error
	if e.consul, err = consultest.Start(config); err != nil {
		e.t.Fatalf("end-to-end tests need a real Consul: %v", err)
	}
	e.connect("")
}

func (e *env) startConsulOnDisk() {
	e.t.Helper()
	var err error
	if e.consul, err = consultest.StartOnDisk(""); err != nil {
		e.t.Fatalf("end-to-end tests need a real Consul: %v", err)
	}
	e.connect("")
}

func (e *env) connect(token string) {
	e.t.Helper()
	var err error
	if e.client, err = consul.New(consul.Config{Address: e.consul.Addr, Token: token, CallTimeout: limit}); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(e.client.Close)
	keys, err := store.NewKeys(store.DefaultPrefix)
	if err != nil {
		e.t.Fatal(err)
	}
	e.store, e.token = store.New(e.client, keys), token
}

// network depends on the test process and on the scenario, so that static ports do not collide with other scenarios or
// runs.
func (e *env) network() string { return fmt.Sprintf("127.%d.%d.", 2+os.Getpid()%250, e.net) }

func (e *env) address(n int) string { return fmt.Sprintf("%s%d", e.network(), n) }

type daemon struct {
	e       *env
	name    string
	path    string
	args    []string
	foreign bool

	mu  sync.Mutex
	run *process
}

type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// start starts a program of bin/ by its name, any other by its path.
func (e *env) start(name, program string, args ...string) *daemon {
	e.t.Helper()
	if !filepath.IsAbs(program) {
		program = filepath.Join(e.root, "bin", program)
	}
	d := &daemon{e: e, name: name, path: program, args: args}
	e.daemons = append(e.daemons, d)
	d.startAgain()
	return d
}

func (e *env) example(name string) string {
	e.t.Helper()
	program := filepath.Join(e.dir, "example-"+name)
	build := exec.CommandContext(e.t.Context(), "go", "build", "-trimpath", "-o", program, "./docs/examples/"+name)
	build.Dir = e.root
	if out, err := build.CombinedOutput(); err != nil {
		e.t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// farm starts a farm; an empty addr is the scenario's Consul.
func (e *env) farm(id, addr string, more ...string) *daemon {
	e.t.Helper()
	return e.start(id, "farm", append(e.common(id, addr), append([]string{"--id", id}, more...)...)...)
}

// preparer starts the agent of node n<n>, with rack a, b or c.
func (e *env) preparer(n int, more ...string) *daemon {
	e.t.Helper()
	return e.preparerAt(n, "", more...)
}

func (e *env) preparerAt(n int, addr string, more ...string) *daemon {
	e.t.Helper()
	name := fmt.Sprintf("n%d", n)
	rack := "rack=" + string(rune('a'+(n-1)%3))
	return e.start(name, "preparer", append(e.common(name, addr),
		append([]string{"--node", name, "--address", e.address(n), "--label", rack}, more...)...)...)
}

func (e *env) common(name, addr string) []string {
	if addr == "" {
		addr = e.consul.Addr
	}
	return []string{
		"--consul-addr", addr, "--data-dir", filepath.Join(e.dir, name), "--lifeline",
		filepath.Join(e.dir, "life.sock"), "--debug-addr", "127.0.0.1:0",
	}
}

func (d *daemon) startAgain() {
	d.e.t.Helper()
	log, err := os.OpenFile(d.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.e.t.Fatal(err)
	}
	defer log.Close()
	p := &process{cmd: exec.Command(d.path, d.args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), d.e.environ...)
	if err := consultest.StartTied(p.cmd, func(error) { close(p.ended) }); err != nil {
		d.e.t.Fatalf("start %s (run `make build` first): %v", d.name, err)
	}
	d.mu.Lock()
	d.run = p
	d.mu.Unlock()
}

func (d *daemon) current() *process {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.run
}

func (d *daemon) log() string { return filepath.Join(d.e.dir, d.name+".log") }

func (d *daemon) logText() string {
	text, _ := os.ReadFile(d.log()) // it exists since the start
	return string(text)
}

func (d *daemon) logTail(n int) string {
	lines := strings.Split(d.logText(), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (d *daemon) signal(sig syscall.Signal) { _ = d.current().cmd.Process.Signal(sig) } // it may have ended

func (d *daemon) kill() {
	d.signal(syscall.SIGKILL)
	<-d.current().ended
}

func (e *env) rcctl(stdin string, args ...string) string {
	e.t.Helper()
	out, err := e.tryRcctl(stdin, args...)
	if err != nil {
		e.t.Fatal(err)
	}
	return out
}

func (e *env) tryRcctl(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit) // rcctl's own --timeout is shorter
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(e.root, "bin", "rcctl"),
		append([]string{"--consul-addr", e.consul.Addr}, args...)...)
	cmd.Env = append(os.Environ(), "CONSUL_HTTP_TOKEN="+e.token)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("rcctl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func (e *env) hello(replicas int, env map[string]string) cluster.Hello {
	e.t.Helper()
	a, err := cluster.HelloArtifact(e.root)
	if err != nil {
		e.t.Fatal(err)
	}
	return cluster.Hello{
		Name: "hello", Replicas: replicas, Port: 8080, Env: env,
		HealthTimeout: 5 * time.Second, Artifact: a,
	}
}

func (e *env) apply(h cluster.Hello) {
	e.t.Helper()
	e.rcctl(cluster.HelloSpec(h), "apply", "-f", "-")
}

func (e *env) applied(h cluster.Hello) {
	e.t.Helper()
	e.rcctl(cluster.HelloSpec(h), "apply", "-f", "-", "--wait", "--timeout", limit.String())
}

func (e *env) within(d time.Duration, condition func() error) {
	e.t.Helper()
	consultest.Eventually(e.t, d, condition)
}

func (e *env) rcID(name string) string {
	e.t.Helper()
	id, err := e.store.RCIDByName(e.t.Context(), name)
	if err != nil {
		e.t.Fatal(err)
	}
	return id
}

// processes returns the sample program's processes from /proc, not from reports: pids by <rc-id>/<role>.<index>@<node>.
func (e *env) processes() map[string]int {
	e.t.Helper()
	found, err := e.scan()
	if err != nil {
		e.t.Fatal(err)
	}
	return found
}

// scan is processes for other goroutines. An identity that runs twice on one node is an error.
func (e *env) scan() (map[string]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}
	found := map[string]int{}
	for _, file := range files {
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/environ", &pid); err != nil {
			return nil, err
		}
		vars := environOf(pid) // empty: it has ended
		if !strings.HasPrefix(vars["NODE_ADDRESS"], e.network()) || isZombie(pid) || isStub(pid) {
			continue
		}
		key := fmt.Sprintf("%s/%s.%s@%s", vars["RC_ID"], vars["POD_ROLE"], vars["POD_INDEX"], vars["NODE_NAME"])
		if other, twice := found[key]; twice {
			return nil, fmt.Errorf("%s runs twice on one node: pids %d and %d", key, other, pid)
		}
		found[key] = pid
	}
	return found, nil
}

func environOf(pid int) map[string]string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // it may have ended
	vars := map[string]string{}
	for v := range strings.SplitSeq(string(data), "\x00") {
		key, value, _ := strings.Cut(v, "=")
		vars[key] = value
	}
	return vars
}

func isZombie(pid int) bool { return processState(pid) == "Z" || processState(pid) == "" }

// processState returns a letter of proc(5), or "" if there is no such process.
func processState(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	state, _, _ := strings.Cut(rest, " ")
	return state
}

// stop waits until every thread is stopped.
func (e *env) stop(pid int) {
	e.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		e.t.Fatal(err)
	}
	e.within(limit, func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid))
		if err != nil || len(threads) == 0 {
			return fmt.Errorf("process %d has no threads: %w", pid, err)
		}
		for _, thread := range threads {
			var tid int
			if _, err := fmt.Sscan(filepath.Base(thread), &tid); err != nil {
				return err
			}
			if state := processState(tid); state != "T" && state != "" {
				return fmt.Errorf("thread %d of process %d is in state %q", tid, pid, state)
			}
		}
		return nil
	})
}

// isStub reports whether the process has not executed the pod's program yet.
func isStub(pid int) bool {
	cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // one that has ended is filtered by isZombie
	return strings.Contains(string(cmdline), stub.Arg)
}

func (e *env) sameProcesses(want map[string]int, when string) {
	e.t.Helper()
	got := e.processes()
	gotText, _ := json.Marshal(got) // maps of strings always encode
	wantText, _ := json.Marshal(want)
	if string(gotText) != string(wantText) {
		e.t.Fatalf("%s: the processes were %s, now %s", when, wantText, gotText)
	}
}

func (e *env) placements(rcID string) map[string]store.Rec[pod.Placement] {
	e.t.Helper()
	recs, corrupt, err := e.store.Pods.List(e.t.Context(), store.Consistent, rcID)
	if err := errors.Join(append(corrupt, err)...); err != nil {
		e.t.Fatal(err)
	}
	out := map[string]store.Rec[pod.Placement]{}
	for _, r := range recs {
		out[fmt.Sprintf("%s.%d", r.Value.Role, r.Value.Identity.Index)] = r
	}
	return out
}

func (e *env) nodes() map[string]store.Rec[node.Node] {
	e.t.Helper()
	recs, corrupt, err := e.store.Nodes.List(e.t.Context(), store.Default)
	if err := errors.Join(append(corrupt, err)...); err != nil {
		e.t.Fatal(err)
	}
	out := map[string]store.Rec[node.Node]{}
	for _, r := range recs {
		out[r.Value.Name] = r
	}
	return out
}

// oneCopyEach fails if an identity runs on two nodes, or is to run there.
func (e *env) oneCopyEach() {
	e.t.Helper()
	pairs, err := e.client.List(e.t.Context(), store.DefaultPrefix+"intent/", consul.Consistent)
	if err != nil {
		e.t.Fatal(err)
	}
	told := map[pod.Identity][]string{}
	for _, p := range pairs {
		var in pod.Intent
		if strings.HasSuffix(p.Key, "/") {
			continue
		}
		if err := json.Unmarshal(p.Value, &in); err != nil {
			e.t.Fatal(err)
		}
		if in.State == pod.Running {
			told[in.Identity] = append(told[in.Identity], p.Key)
		}
	}
	for id, keys := range told {
		if len(keys) > 1 {
			e.t.Errorf("%s is to run in %v", id, keys)
		}
	}
	runs := map[string][]string{}
	for key := range e.processes() {
		id, at, _ := strings.Cut(key, "@")
		runs[id] = append(runs[id], at)
	}
	for id, at := range runs {
		if len(at) > 1 {
			slices.Sort(at)
			e.t.Errorf("%s runs on %v", id, at)
		}
	}
}
