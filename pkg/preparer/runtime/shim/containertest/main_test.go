// Package containertest tests containers under the supervisor of package shim. The tests need root and runc.
package containertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/container"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/runc"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/shim"
)

// timeout is long because the machine may be busy.
const timeout = time.Minute

const superviseArg = "supervise" // next argument: settings as JSON

// What all tests share: a directory, the image of one layer in it, and the cgroups below which containers have theirs.
var (
	scratch string
	image   string
	parent  = fmt.Sprintf("/rcfarm-test-shim-%d", os.Getpid())
	unified string // of parent, in cgroup v2
)

// The pods' numbers in the tests.
const (
	firstID = 300_000
	sizeIDs = 65_536
	number  = 250_000
)

type settings struct {
	Dir, Runc, State string
	KillAt           string // a step at which the supervisor kills itself, once
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case oneshot.Arg:
			oneshot.Exec()
		case superviseArg:
			if err := supervise(os.Args[2]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("these tests need root, because runc does")
	}
	if _, err := exec.LookPath(runc.DefaultProgram); err != nil {
		return 1, fmt.Errorf("%w: install Debian's package runc, or call make runc", err)
	}
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil { // else each process waits a second at its end
		return 1, err
	}
	if scratch, err = os.MkdirTemp("", "box-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if err := os.Chmod(scratch, 0o711); err != nil {
		return 1, err
	}
	if err := makeImage(); err != nil {
		return 1, err
	}
	if unified = isolate.Probe(parent).Cgroup; unified == "" {
		return 1, errors.New("cgroup v2 is not mounted")
	}
	code = m.Run()
	return code, errors.Join(noProcess(), noCgroup())
}

// makeImage makes a layer with a program, and one below with accounts.
func makeImage() error {
	image = filepath.Join(scratch, "layer")
	accounts := filepath.Join(scratch, "accounts")
	for _, dir := range []string{image, accounts, filepath.Join(accounts, "etc"), filepath.Join(accounts, "tmp")} {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(accounts, "tmp"), 0o777|fs.ModeSticky); err != nil {
		return err
	}
	const passwd = "root:x:0:0::/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/sh\n"
	err := os.WriteFile(filepath.Join(accounts, "etc/passwd"), []byte(passwd), 0o644)
	if err != nil {
		return err
	}
	build := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-o", filepath.Join(image, "guest"),
		"./testdata/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the containers' program: %w: %s", err, out)
	}
	return nil
}

// noProcess finds supervisors by their directory. noCgroup finds what is left of containers.
func noProcess() (err error) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if dir == "/proc/"+strconv.Itoa(os.Getpid()) {
			continue
		}
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		if bytes.Contains(cmdline, []byte(scratch)) {
			err = errors.Join(err, fmt.Errorf("a process is left: %s %q", dir, cmdline))
		}
	}
	return err
}

// noCgroup removes the parent of the containers' cgroups in all hierarchies. A cgroup that has another in it cannot be
// removed.
func noCgroup() error {
	left, err := filepath.Glob("/sys/fs/cgroup/*" + parent)
	for _, dir := range append(left, "/sys/fs/cgroup"+parent) {
		if rmErr := unix.Rmdir(dir); rmErr != nil && rmErr != unix.ENOENT {
			err = errors.Join(err, fmt.Errorf("a cgroup is left in %s: %w", dir, rmErr))
		}
	}
	return err
}

func supervise(arg string) error {
	var set settings
	if err := json.Unmarshal([]byte(arg), &set); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return shim.Serve(ctx, shim.Config{
		Dir: set.Dir, Runc: set.Runc, RuncState: set.State,
		RestartDelay: 20 * time.Millisecond, MaxRestartDelay: 200 * time.Millisecond,
		Step: func(name string) {
			if name != set.KillAt {
				return
			}
			f, err := os.OpenFile(filepath.Join(set.Dir, "killed"), os.O_CREATE|os.O_EXCL, 0o600)
			if err == nil {
				_ = f.Close()
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
		},
		Log: func(msg string, fields map[string]any) {
			fmt.Println(time.Now().Format("15:04:05.000"), os.Getpid(), msg, fields)
		},
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !holds(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain for ", what)
		}
	}
}

// The three kinds of containers: an image that begins as root, on a node that can idmap; a process with the pod's
// number; the node's root.
type kind int

const (
	mapped kind = iota
	numbered
	nodeRoot
)

func (k kind) String() string { return [...]string{"mapped", "numbered", "root"}[k] }

var kinds = []kind{mapped, numbered, nodeRoot}

// node has one container.
type node struct {
	settings
	*shim.Client
	spec runtime.Spec
	root string
}

var nodes atomic.Int64

// newNode prepares a container that runs the program with these arguments. A client's first call starts a supervisor.
// At the end, nothing of the container may be left.
func newNode(t *testing.T, k kind, change func(*node, *container.Input), args ...string) *node {
	t.Helper()
	id := fmt.Sprintf("n%d", nodes.Add(1))
	n := &node{root: filepath.Join(scratch, id)}
	n.settings = settings{
		Dir: filepath.Join(n.root, "shim"), Runc: runc.DefaultProgram, State: filepath.Join(n.root, "runc"),
	}
	for _, dir := range []string{n.root, n.Dir, n.State} {
		must(t, os.Mkdir(dir, 0o711))
	}
	n.spec = runtime.Spec{
		Process: runtime.Process{
			ID: id, Name: "main", Command: []string{"/guest"}, Dir: "/", LogPath: filepath.Join(n.root, "log"),
			StopGrace: timeout, LogBytes: 1 << 20,
		},
		Isolation: &runtime.Isolation{},
		Container: &runtime.Container{
			Dir: filepath.Join(n.root, "box"), Layers: []string{image, filepath.Join(scratch, "accounts")},
		},
	}
	box := n.spec.Container
	in := container.Input{
		Image: imagespec.Image{Config: imagespec.ImageConfig{
			Entrypoint: []string{"/guest"}, Cmd: args, Env: []string{"GUEST=yes"},
		}},
		Node: container.Node{
			Root: box.Rootfs(), Cgroup: parent + "/" + id, Hostname: "box",
			Hosts: filepath.Join(box.Dir, "hosts"), ResolvConf: filepath.Join(box.Dir, "resolv.conf"),
		},
	}
	switch k {
	case mapped:
		in.Node.IDs = &container.IDs{First: firstID, Size: sizeIDs}
		box.IDs = &runtime.IDs{First: firstID, Size: sizeIDs}
	case numbered:
		in.Node.Number, in.Image.Config.User = number, "www-data"
	case nodeRoot:
		in.Node.AllowRoot, in.Ask.User = true, "root"
	}
	if change != nil {
		change(n, &in)
	}
	var err error
	in.Files, err = container.ReadFiles(filepath.Join(scratch, "accounts"), in.MountPaths())
	must(t, err)
	made, err := container.Build(in)
	must(t, err)
	box.UID, box.GID = int(made.UID), int(made.GID)
	box.Config, err = json.Marshal(made.Spec)
	must(t, err)
	n.Client = n.dial(t)
	t.Cleanup(func() { n.end(t) })
	return n
}

func (n *node) dial(t *testing.T) *shim.Client {
	t.Helper()
	c, err := shim.Dial(shim.ClientConfig{Dir: n.Dir, Cgroup: unified, Spawn: n.spawn, ConnectTimeout: timeout})
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

func (n *node) spawn() error {
	data, err := json.Marshal(n.settings)
	if err != nil {
		return err
	}
	return shim.Spawn("/proc/self/exe", []string{superviseArg, string(data)}, n.Dir)
}

// end stops and removes the container. Nothing of it may be left.
func (n *node) end(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := errors.Join(n.Stop(ctx, n.spec.ID), n.Remove(ctx, n.spec.ID)); err != nil {
		t.Error(err)
	}
	n.killSupervisors(t)
	for _, pattern := range []string{
		"/sys/fs/cgroup/*" + parent + "/" + n.spec.ID, "/sys/fs/cgroup/*" + parent + "/" + n.spec.ID + "@*",
		n.spec.Container.Dir, n.State + "/*", n.Dir + "/state/*",
	} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	}
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(n.Dir, "supervisor.log"))
		t.Logf("supervisor's log:\n%s\ncontainer's log:\n%s", log, n.log(t))
	}
}

func (n *node) supervisors() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, _ := os.ReadFile(file) // empty if the process has ended
		args := bytes.Split(line, []byte{0})
		at := slices.IndexFunc(args, func(arg []byte) bool { return string(arg) == superviseArg })
		if at < 0 || at+1 == len(args) || !bytes.Contains(args[at+1], []byte(strconv.Quote(n.Dir))) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (n *node) killSupervisors(t *testing.T) {
	t.Helper()
	eventually(t, "the end of the supervisors", func() bool {
		pids := n.supervisors()
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // the process may have ended
		}
		return len(pids) == 0
	})
}

func (n *node) log(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(n.spec.LogPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	return string(data)
}

func (n *node) says(t *testing.T, text string) {
	t.Helper()
	eventually(t, "output "+text, func() bool { return strings.Contains(n.log(t), text) })
}

func (n *node) start(t *testing.T) {
	t.Helper()
	must(t, n.Start(t.Context(), n.spec))
}

func (n *node) status(t *testing.T) runtime.Status {
	t.Helper()
	list, _, err := n.Watch(t.Context(), 0)
	must(t, err)
	if len(list) != 1 {
		t.Fatalf("%d processes", len(list))
	}
	return list[0]
}

func (n *node) await(t *testing.T, what string, ok func(runtime.Status) bool) (found runtime.Status) {
	t.Helper()
	var last runtime.Status
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for cursor := uint64(0); ; {
		list, next, err := n.Watch(ctx, cursor)
		if err != nil {
			t.Fatalf("waited in vain for %s: %v; last seen: %+v", what, err, last.State)
		}
		cursor = next
		for _, last = range list {
			if ok(last) {
				return last
			}
		}
	}
}

func running(st runtime.Status) bool { return st.Phase == runtime.Running }

// isOne checks that one container runs, with one process.
func (n *node) isOne(t *testing.T) {
	t.Helper()
	st := n.await(t, "running", running)
	eventually(t, "one process", func() bool {
		members, err := isolate.Members(filepath.Join(unified, n.spec.ID))
		return err == nil && slices.Equal(members, []int{st.PID})
	})
	states, err := filepath.Glob(n.State + "/*")
	if err != nil || len(states) != 1 {
		t.Errorf("runc knows %q, %v", states, err)
	}
	if left, _ := filepath.Glob(filepath.Join(unified, n.spec.ID) + "@*"); len(left) > 0 {
		t.Errorf("cgroups of the creation are left: %q", left)
	}
}
