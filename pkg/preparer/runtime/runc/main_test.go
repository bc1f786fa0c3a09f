package runc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/container"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/idmap"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/runc"
)

// patience bounds the life of each container of the tests.
const patience = time.Minute

// What all tests share: the program of the containers, a directory that other users can pass, and the cgroups below
// which the containers have theirs.
var (
	program string
	scratch string
	parent  = fmt.Sprintf("/rcfarm-test-runc-%d", os.Getpid())
	unified string // of parent, in cgroup v2
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run runs all tests, and fails if a process, mount or cgroup is left.
func run(m *testing.M) (code int, err error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("these tests need root, because runc does")
	}
	if _, err := exec.LookPath(runc.DefaultProgram); err != nil {
		return 1, fmt.Errorf("%w: install Debian's package runc, or call make runc", err)
	}
	// The containers' processes become children of this process, as they do with the supervisor.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, err
	}
	if scratch, err = os.MkdirTemp("", "runc-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if err := os.Chmod(scratch, 0o711); err != nil {
		return 1, err
	}
	program = filepath.Join(scratch, "probe")
	build := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-o", program, "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build the containers' program: %w: %s", err, out)
	}
	unified = isolate.Probe(parent).Cgroup
	if unified == "" {
		return 1, errors.New("cgroup v2 is not mounted")
	}
	code = m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			return 1, err
		}
	}
	return code, errors.Join(noProcess(), noMount(), noCgroup())
}

func noProcess() error {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for pid := range strings.FieldsSeq(string(children)) {
			stat, _ := os.ReadFile("/proc/" + pid + "/stat")
			err = errors.Join(err, fmt.Errorf("a process is left: %s", stat))
		}
	}
	return err
}

func noMount() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil && bytes.Contains(mounts, []byte(scratch)) {
		err = fmt.Errorf("mounts below %s are left", scratch)
	}
	return err
}

// noCgroup removes the parent of the containers' cgroups in all hierarchies. A cgroup that has another in it cannot be
// removed.
func noCgroup() error {
	return filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if "/"+entry.Name() == parent {
			if err := unix.Rmdir(path); err != nil {
				return fmt.Errorf("a cgroup is left: %w", err)
			}
			return fs.SkipDir
		}
		if strings.Count(path, "/") > 4 {
			return fs.SkipDir
		}
		return nil
	})
}

// The three kinds of containers: an image that begins as root, on a node that can idmap; a process with the pod's
// number; the node's root.
type kind int

const (
	mapped kind = iota
	numbered
	nodeRoot
)

func (k kind) String() string { return [...]string{"mapped", "numbered", "node's root"}[k] }

var kinds = []kind{mapped, numbered, nodeRoot}

// The pods' numbers in the tests.
const (
	firstID = 300_000
	sizeIDs = 65_536
	number  = 250_000
)

const passwd = "root:x:0:0::/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/sh\n"

// box is one container of a test.
type box struct {
	*runc.Runc
	id, dir string
	cgroup  string // in cgroup v2
	rootfs  string // on the disk
	in      container.Input
	made    *container.Container
	out     *os.File // the output of its processes
	pid     int
}

var boxes atomic.Int64

// newBox prepares a container that runs the program with these arguments. change may change its input. The container
// is removed at the end of the test.
func newBox(t *testing.T, k kind, change func(*box), args ...string) *box {
	t.Helper()
	b := &box{id: fmt.Sprintf("c%d", boxes.Add(1))}
	b.dir = filepath.Join(scratch, b.id)
	b.cgroup = filepath.Join(unified, b.id)
	b.rootfs = filepath.Join(b.dir, "files")
	for _, dir := range []string{"", "bundle", "root", "files/tmp", "files/etc", "files/proc"} {
		must(t, os.MkdirAll(filepath.Join(b.dir, dir), 0o755))
	}
	must(t, os.Chmod(filepath.Join(b.dir, "files/tmp"), 0o777|fs.ModeSticky))
	must(t, os.Link(program, filepath.Join(b.rootfs, "probe")))
	must(t, os.WriteFile(filepath.Join(b.rootfs, "etc/passwd"), []byte(passwd), 0o644))
	must(t, os.WriteFile(filepath.Join(b.rootfs, "etc/group"), []byte("root:x:0:\nssl:x:44:www-data\n"), 0o644))
	b.in = container.Input{
		Image: imagespec.Image{Config: imagespec.ImageConfig{Entrypoint: []string{"/probe"}, Cmd: args}},
		Node: container.Node{
			Root: b.rootfs, Cgroup: parent + "/" + b.id, Hostname: "box", InitProgram: program,
		},
	}
	switch k {
	case mapped:
		b.in.Node.IDs = &container.IDs{First: firstID, Size: sizeIDs}
		b.in.Node.Root = filepath.Join(b.dir, "root")
	case numbered:
		b.in.Node.Number, b.in.Image.Config.User = number, "www-data"
	case nodeRoot:
		b.in.Node.AllowRoot, b.in.Ask.User = true, "root"
	}
	if change != nil {
		change(b)
	}
	var err error
	b.in.Files, err = container.ReadFiles(b.rootfs, b.in.MountPaths())
	must(t, err)
	b.made, err = container.Build(b.in)
	must(t, err)
	if k == mapped {
		must(t, idmap.Bind(b.rootfs, b.in.Node.Root, []idmap.Range{{OnDisk: 0, Shown: firstID, Size: sizeIDs}}))
		t.Cleanup(func() { must(t, unix.Unmount(b.in.Node.Root, 0)) })
	}
	must(t, runc.WriteBundle(b.bundle(), b.made.Spec))
	b.Runc, err = runc.New(runc.Config{State: filepath.Join(scratch, "state")})
	must(t, err)
	b.out, err = os.OpenFile(filepath.Join(b.dir, "output"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o640)
	must(t, err)
	t.Cleanup(func() { _ = b.out.Close() })
	t.Cleanup(func() { b.remove(t) })
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *box) bundle() string { return filepath.Join(b.dir, "bundle") }

// create creates the container.
func (b *box) create(t *testing.T) error {
	t.Helper()
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer func() { _ = null.Close() }()
	if err := b.Create(t.Context(), b.id, b.bundle(), [3]*os.File{null, b.out, b.out}); err != nil {
		return err
	}
	state, err := b.State(t.Context(), b.id)
	must(t, err)
	if state.Status != runc.Created || state.PID <= 0 || state.Bundle != b.bundle() {
		t.Errorf("the state of a created container: %+v", state)
	}
	b.pid = state.PID
	return nil
}

// start creates and starts the container.
func (b *box) start(t *testing.T) {
	t.Helper()
	must(t, b.create(t))
	must(t, b.Start(t.Context(), b.id))
}

// wait waits for the end of the container's first process, and returns its exit status.
func (b *box) wait(t *testing.T) unix.WaitStatus {
	t.Helper()
	timer := time.AfterFunc(patience, func() { _ = isolate.Kill(b.cgroup) })
	defer timer.Stop()
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(b.pid, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		must(t, err)
		b.pid = 0
		return status
	}
}

// run runs the container to its end, and returns its output.
func (b *box) run(t *testing.T) string {
	t.Helper()
	b.start(t)
	status := b.wait(t)
	if out := b.output(t); status != 0 {
		t.Fatalf("the program ended with %#x: %s", status, out)
	} else {
		return out
	}
	return ""
}

func (b *box) output(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(b.out.Name())
	must(t, err)
	return string(data)
}

// says waits until the output has the text.
func (b *box) says(t *testing.T, text string) {
	t.Helper()
	eventually(t, "output "+text, func() bool { return strings.Contains(b.output(t), text) })
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain for ", what)
		}
	}
}

// remove deletes the container, twice. After that, runc does not know it, and its cgroups are gone.
func (b *box) remove(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for range 2 {
		if err := b.Delete(ctx, b.id, b.in.Node.Cgroup); err != nil {
			t.Error(err)
		}
	}
	if b.pid > 0 {
		b.wait(t)
	}
	if _, err := b.State(ctx, b.id); !errors.Is(err, runc.ErrNotFound) {
		t.Errorf("the state of a deleted container: %v", err)
	}
	left, _ := filepath.Glob("/sys/fs/cgroup/*" + parent + "/" + b.id)
	if len(left) > 0 {
		t.Errorf("cgroups are left: %q", left)
	}
}

// decode decodes a program's output.
func decode[T any](t *testing.T, out string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return v
}
