package preparer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/shim"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// defaultFaults is how many times TestKilledAnywhere kills the preparer, unless FAULTS is set.
const defaultFaults = 20

// victim is a preparer in a process of its own that kills itself.
type victim struct {
	Consul, Prefix string
	Node           node.Node
	Dir            string // data directory
	Store          string // of artifacts
	Certificate    []byte // of the server that has the artifacts
	Shim           string
	HooksDir       string
	KillAt         int           // number of the step at which the preparer dies; zero: never
	Late           time.Duration // how long after a loose step the preparer dies
	Steps          string        // file with the name of each step
}

func runVictim(path string) error {
	var v victim
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		return err
	}
	dir, err := app.OpenDataDir(context.Background(), v.Dir)
	if err != nil {
		return err
	}
	client, err := consul.New(consul.Config{Address: v.Consul})
	if err != nil {
		return err
	}
	keys, err := store.NewKeys(v.Prefix)
	if err != nil {
		return err
	}
	supervisor, err := shim.Dial(shim.ClientConfig{Dir: v.Shim})
	if err != nil {
		return err
	}
	log, err := obs.NewLogger(os.Stderr, "info", "text")
	if err != nil {
		return err
	}
	steps, err := os.OpenFile(v.Steps, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	var (
		mu    sync.Mutex
		count int
	)
	step := func(name string) {
		mu.Lock()
		defer mu.Unlock() // not if it dies, so that no further step is recorded
		if v.KillAt > 0 && count >= v.KillAt {
			return // the preparer dies soon, after a loose step
		}
		fmt.Fprintln(steps, name)
		switch count++; {
		case count != v.KillAt:
		case loose(name):
			time.AfterFunc(v.Late, die)
		default:
			die()
			select {}
		}
	}
	fetched, err := v.open(step)
	if err != nil {
		return err
	}
	s := store.New(client, keys)
	p, err := preparer.New(preparer.Config{
		Host: install.Host{Dir: v.Dir, Artifacts: fetched, HooksDir: v.HooksDir, Runtime: supervisor, Step: step},
		Node: v.Node, Store: s, Cache: fetched, Services: client.Services, Log: log,
		BusyPoll: 30 * time.Millisecond, IdlePoll: 60 * time.Millisecond,
		RetryMin: 20 * time.Millisecond, RetryMax: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	parts, ctx := errgroup.WithContext(context.Background())
	parts.Go(func() error { return p.Run(ctx) })
	parts.Go(func() error {
		return client.RunSession(ctx, consul.SessionConfig{Kind: "preparer", Name: v.Node.Name, Journal: dir},
			func(ctx context.Context, sess *consul.Session) error {
				return p.Serve(ctx, s.NodeSession(sess, v.Node.Name))
			})
	})
	return parts.Wait()
}

type faultRun struct {
	*bench
	rnd       *rand.Rand
	v         victim
	mirror    *mirror
	cmd       *exec.Cmd
	ended     chan struct{}
	manifests []manifest.Manifest // of different versions; versions with odd numbers have hooks
	digests   []string            // of the manifests
	running   int                 // number of the version that must run; -1: none
	standby   bool                // the pod must be a standby
	revision  int64
	diedAt    map[string]int
	notes     string      // directory for victim.json and the steps; never on the full disk
	disturb   disturbance // a second fault
}

// disturbance is a second fault.
type disturbance struct {
	begin func() // called before the start of a preparer that will die
	end   func() // called before the start of a preparer that must reach the desired state; not before a stop
	// full: hooks cannot write, and versions are not installed.
	full bool
}

// alone writes to the file trouble if a second copy of the process runs.
const alone = `exec 9>"$VOLUME_STATE/lock-$LAUNCHABLE"
flock -n 9 || echo "$LAUNCHABLE runs twice" >> "$VOLUME_STATE/trouble"
exec sleep 1000`

func newFaultRun(t *testing.T, rnd *rand.Rand) *faultRun {
	t.Helper()
	b := newBench(t)
	f := &faultRun{bench: b, rnd: rnd, mirror: newMirror(t), running: -1, diedAt: map[string]int{}, notes: t.TempDir()}
	for i := range 4 {
		m := f.publish(f.manifest(i))
		f.manifests, f.digests = append(f.manifests, m), append(f.digests, b.upload(m))
	}
	dir := filepath.Dir(b.cfg.Dir)
	f.v = victim{
		Consul: consultest.Shared(t).Addr, Prefix: b.keys.Prefix(), Node: b.cfg.Node, Dir: b.cfg.Dir,
		Store: filepath.Join(dir, "store"), Certificate: f.mirror.certificate(),
		Shim: filepath.Join(dir, "shim"), Steps: filepath.Join(f.notes, "steps"),
	}
	t.Cleanup(f.kill)
	return f
}

func (f *faultRun) manifest(n int) manifest.Manifest {
	version := strconv.Itoa(n)
	m := f.pod("# "+version+"\n"+alone, version)
	side := f.pod("# side "+version+"\n"+alone, version).Launchables[0]
	side.Name = "side"
	m.Launchables = append(m.Launchables, side)
	m.Volumes = []manifest.Volume{{Name: "state"}}
	m.Config = config(f.t, `{"version": `+version+`}`)
	grace := field.Duration(time.Second)
	for i := range m.Launchables {
		m.Launchables[i].StopGrace = &grace
	}
	if n%2 == 0 {
		return m
	}
	f.addProgram(m, "bin/hook", `echo "$POD_DIGEST $HOOK" >> "$VOLUME_STATE/hooks"`)
	h := &manifest.Hook{Path: "bin/hook", Required: true}
	m.Hooks = &manifest.Hooks{
		BeforeInstall: h, AfterInstall: h, BeforeLaunch: h, AfterLaunch: h, BeforeStop: h, AfterStop: h,
	}
	return m
}

// maxLate is about how long the store makes an artifact durable and renames it.
const maxLate = 20 * time.Millisecond

// begin starts a preparer that dies at step killAt, if not zero.
func (f *faultRun) begin(killAt int) {
	f.t.Helper()
	f.v.KillAt, f.v.Late = killAt, time.Duration(f.rnd.Int64N(int64(maxLate)))
	data, err := json.Marshal(f.v)
	if err != nil {
		f.t.Fatal(err)
	}
	file := filepath.Join(f.notes, "victim.json")
	if err := errors.Join(os.WriteFile(file, data, 0o600), os.WriteFile(f.v.Steps, nil, 0o600)); err != nil {
		f.t.Fatal(err)
	}
	f.cmd = exec.Command(os.Args[0], victimArg, file)
	f.cmd.Stdout, f.cmd.Stderr = f.log, f.log
	ended := make(chan struct{})
	f.ended = ended
	if err := consultest.StartTied(f.cmd, func(error) { close(ended) }); err != nil {
		f.t.Fatal(err)
	}
}

func (f *faultRun) kill() {
	if f.cmd != nil {
		_ = f.cmd.Process.Kill() // the process may have ended
		<-f.ended
	}
}

func (f *faultRun) dead() bool {
	select {
	case <-f.ended:
		return true
	default:
		return false
	}
}

func (f *faultRun) steps() []string {
	return strings.Split(strings.TrimSpace(f.text(f.v.Steps)), "\n")
}

func (f *faultRun) state(name string) string {
	return f.inNode("volumes", "rc1.main.0", "state", name)
}

func (f *faultRun) converged() error {
	r, _, err := f.reality(0)
	if err != nil {
		return err
	}
	want, state := "", pod.StateStopped
	if f.running >= 0 {
		want, state = f.digests[f.running], pod.StateReady
	}
	if r.Revision != f.revision || r.State != state || f.running >= 0 && r.Standby != f.standby ||
		want != "" && r.Digest != want {
		return fmt.Errorf("want %s %.12s at %d, reality %+v: %s", state, want, f.revision, r, r.Message)
	}
	return nil
}

// trial writes another intent, kills the preparer up to three times meanwhile, and checks the outcome.
func (f *faultRun) trial(limit int) {
	f.t.Helper()
	before, procs := f.running, f.onMachine()
	f.choose()
	if f.running >= 0 && f.running != before {
		f.spoil(f.running)
	}
	_ = os.Remove(f.state("hooks")) // the file may not exist
	for range 1 + f.rnd.IntN(3) {
		f.disturb.begin()
		f.begin(1 + f.rnd.IntN(f.disturb.limit(limit)))
		f.eventually(func() error {
			if err := f.converged(); err != nil && !f.dead() && !f.stuck() {
				return err
			}
			return nil
		})
		if f.dead() {
			steps := f.steps()
			f.diedAt[steps[len(steps)-1]]++
			f.mustNotBeLost(before)
		}
		f.kill()
	}
	if f.running >= 0 {
		f.disturb.end()
	}
	f.begin(0)
	f.eventually(f.converged)
	f.disturb.end()
	if !f.disturb.full {
		f.mustHaveRun(before)
	}
	f.mustBeOne()
	if now := f.onMachine(); before >= 0 && f.running == before && !maps.Equal(now, procs) {
		f.t.Errorf("processes %v, before the change of standby %v", now, procs)
	}
	f.mustBeRegistered()
	f.awaitArtifacts()
	f.kill()
	f.mustBeOne()
	f.mustHaveWholeArtifacts()
}

func (f *faultRun) stuck() bool {
	r, _, err := f.reality(0)
	return f.disturb.full && f.running >= 0 && err == nil && r.State == pod.StateFailed
}

// limit returns how many steps a preparer takes until it is stuck. steps is the number without a full disk.
func (d *disturbance) limit(steps int) int {
	if d.full {
		return steps / 5
	}
	return steps
}

func (f *faultRun) choose() {
	f.t.Helper()
	if f.running >= 0 && f.rnd.IntN(3) == 0 {
		f.want(-1)
		return
	}
	if f.running >= 0 && f.rnd.IntN(3) == 0 { // only standby changes
		f.standby = !f.standby
		f.want(f.running)
		return
	}
	f.standby = f.rnd.IntN(3) == 0
	f.want((max(f.running, 0) + 1 + f.rnd.IntN(len(f.digests)-1)) % len(f.digests))
}

// want writes an intent to run version n, or to stop if negative.
func (f *faultRun) want(n int) {
	f.t.Helper()
	digest, state := f.digests[max(n, 0)], pod.Running
	if n < 0 {
		state = pod.Stopped
	}
	f.running = n
	f.revision++
	in := intent(0, digest, state, f.revision)
	in.Standby = f.standby
	f.write(in)
}

// mustBeRegistered: the pod has exactly one name, its usual one or the standby's.
func (f *faultRun) mustBeRegistered() {
	f.t.Helper()
	want := map[string]bool{register.ServiceID(f.cfg.Node.Name, identity(9)): true}
	switch {
	case f.running < 0:
	case f.standby:
		want[register.StandbyServiceID(f.cfg.Node.Name, identity(0))] = true
	default:
		want[register.ServiceID(f.cfg.Node.Name, identity(0))] = true
	}
	f.eventually(func() error {
		if local := f.services(); !maps.Equal(local, want) {
			return fmt.Errorf("services %v, want %v", local, want)
		}
		return nil
	})
}

// mustNotBeLost: the old version runs if no newer one is installed. The preparer is dead.
func (f *faultRun) mustNotBeLost(before int) {
	f.t.Helper()
	if before < 0 {
		return
	}
	var rec preparer.Record
	if err := json.Unmarshal([]byte(f.text(f.inNode("pods", "rc1.main.0.json"))), &rec); err != nil {
		f.t.Fatal(err)
	}
	if rec.Intent.State != pod.Running || rec.Installed == nil || rec.Installed.Digest != f.digests[before] ||
		rec.Intent.Digest == rec.Installed.Digest {
		return
	}
	procs := f.procs(0)
	for _, proc := range procs {
		if proc.Phase != runtime.Running || proc.Spec.Revision != rec.Installed.Revision {
			f.t.Errorf("died at %v with the old version installed, and it does not run: %+v", f.steps(), proc)
		}
	}
	if len(procs) != 2 {
		f.t.Errorf("died at %v with the old version installed; processes %+v", f.steps(), procs)
	}
}

func (f *faultRun) mustHaveRun(before int) {
	f.t.Helper()
	var want []string
	if before == f.running {
		return
	}
	if before >= 0 && before%2 == 1 {
		want = append(want, f.digests[before]+" before_stop", f.digests[before]+" after_stop")
	}
	if f.running >= 0 && f.running%2 == 1 {
		for _, hook := range []string{"before_install", "after_install", "before_launch", "after_launch"} {
			want = append(want, f.digests[f.running]+" "+hook)
		}
	}
	data, _ := os.ReadFile(f.state("hooks")) // missing if no hook ran
	for _, line := range want {
		if !slices.Contains(strings.Split(string(data), "\n"), line) {
			f.t.Errorf("hook did not run: %s; those that did:\n%s", line, data)
		}
	}
}

// mustBeOne: one copy of the wanted version runs, and the supervisor has it.
func (f *faultRun) mustBeOne() {
	f.t.Helper()
	if data, err := os.ReadFile(f.state("trouble")); err == nil {
		f.t.Fatalf("%s", data)
	}
	f.eventually(func() error { // some shells may not have executed their programs yet
		supervised := map[int]string{}
		for _, proc := range f.procs(0) {
			if proc.Phase != runtime.Running {
				return fmt.Errorf("process %+v", proc)
			}
			supervised[proc.PID] = proc.Spec.Name
		}
		found := f.onMachine()
		if !maps.Equal(found, supervised) {
			return fmt.Errorf("running %v, supervised %v", found, supervised)
		}
		if want := 2; f.running < 0 && len(found) > 0 || f.running >= 0 && len(found) != want {
			return fmt.Errorf("running %v, version %d is wanted", found, f.running)
		}
		return nil
	})
}

// onMachine returns the pod's launchables by pid, from /proc.
func (f *faultRun) onMachine() map[int]string {
	f.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		f.t.Fatal(err)
	}
	found := map[int]string{}
	for _, file := range files {
		data, _ := os.ReadFile(file) // the process may have ended
		vars := strings.Split(string(data), "\x00")
		if !slices.Contains(vars, "NODE_NAME="+f.v.Node.Name) || !slices.Contains(vars, "POD_INDEX=0") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			f.t.Fatal(err)
		}
		for _, v := range vars {
			if name, is := strings.CutPrefix(v, "LAUNCHABLE="); is {
				found[pid] = name
			}
		}
	}
	return found
}

// The preparer is killed at random steps of fetches, installations, upgrades, stops and changes of standby. No pod is
// lost or runs twice, the supervisor knows each process, every hook runs, and the pod matches its intent in the end.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	killedAnywhere(t, defaultFaults, func(*faultRun) disturbance {
		return disturbance{begin: func() {}, end: func() {}}
	})
}

// Like TestKilledAnywhere, with the supervisor suspended for a random time in two of three runs.
func TestKilledAnywhereBesideAStoppedSupervisor(t *testing.T) {
	t.Parallel()
	const longest = 600 * time.Millisecond
	killedAnywhere(t, defaultFaults/4, func(f *faultRun) disturbance {
		supervisor := parentOf(f.t, f.pid(9))
		goOn := func() { _ = syscall.Kill(supervisor, syscall.SIGCONT) } // the supervisor lives until the test ends
		var mu sync.Mutex
		life := 0 // a late timer of an earlier run must not suspend the supervisor
		hold := func(of int, length time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if life == of {
				_ = syscall.Kill(supervisor, syscall.SIGSTOP)
				time.AfterFunc(length, goOn) // set here, so that SIGCONT comes after SIGSTOP
			}
		}
		end := func() {
			mu.Lock()
			defer mu.Unlock()
			life++
			goOn()
		}
		f.t.Cleanup(end)
		return disturbance{end: end, begin: func() {
			end()
			if f.rnd.IntN(3) == 0 {
				return
			}
			random := func() time.Duration { return time.Duration(f.rnd.Int64N(int64(longest))) }
			at, length, of := random(), random(), life
			time.AfterFunc(at, func() { hold(of, length) })
		}}
	})
}

// Like TestKilledAnywhere, but the disk is full while a preparer runs that is killed. Stops are confirmed even then.
func TestKilledAnywhereOnAFullDisk(t *testing.T) {
	consultest.Shared(t) // its own files are elsewhere
	disktest.Run(t, 32<<20, func(t *testing.T, disk string) {
		elsewhere := os.TempDir()
		t.Setenv("TMPDIR", disk)
		killedAnywhere(t, defaultFaults/4, func(f *faultRun) disturbance {
			f.t.Setenv("TMPDIR", elsewhere)
			filler := filepath.Join(disk, "filler")
			return disturbance{
				full:  true,
				begin: func() { disktest.Fill(t, disk) },
				end: func() {
					if err := os.Remove(filler); err != nil && !errors.Is(err, fs.ErrNotExist) {
						t.Fatal(err)
					}
				},
			}
		})
	})
}

func killedAnywhere(t *testing.T, faults int, disturbed func(*faultRun) disturbance) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	for name, set := range map[string]func(uint64){
		"FAULTS": func(n uint64) { faults = int(n) },
		"SEED":   func(n uint64) { seed = n },
	} {
		if text := os.Getenv(name); text != "" && text != "0" {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatalf("%s: %q; allowed: a whole number", name, text)
			}
			set(n)
		}
	}
	f := newFaultRun(t, rand.New(rand.NewPCG(seed, 0)))
	t.Logf("seed %d", seed)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})

	// A run without faults shows the number of steps. The pod beside must not be disturbed.
	f.begin(0)
	bystander := f.upload(f.publish(f.sleeper("bystander")))
	f.write(intent(9, bystander, pod.Running, 1))
	f.awaitReady(9, bystander, 1)
	pid := f.pid(9)
	limit := 0
	for _, n := range []int{1, 3, 1} { // versions with hooks, because these take the most steps
		f.kill()
		f.want(n)
		f.begin(0)
		f.eventually(f.converged)
		limit = max(limit, len(f.steps()))
	}
	f.kill()
	f.disturb = disturbed(f)
	deaths, trials := 0, 0
	for ; deaths < faults; trials++ {
		f.trial(limit)
		f.mustKeepPID(9, pid)
		if t.Failed() {
			t.Fatalf("trial %d", trials)
		}
		deaths = 0
		for _, n := range f.diedAt {
			deaths += n
		}
	}
	t.Logf("%d deaths in %d trials, of up to %d steps: %v", deaths, trials, limit, f.diedAt)
}
