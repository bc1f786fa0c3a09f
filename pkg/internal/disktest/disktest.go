// Package disktest gives a test its own small disk.
package disktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const insideEnv = "RCFARM_DISKTEST"

// Run runs the test with an empty directory on a file system of this size, in another process with its own mount
// namespace, so that no mount outlives the test. The caller must be a test, not a subtest, and do nothing else. Run
// needs root, or a kernel that lets users make namespaces.
func Run(t *testing.T, bytes int64, test func(t *testing.T, dir string)) {
	t.Helper()
	if os.Getenv(insideEnv) == t.Name() {
		test(t, mount(t, bytes))
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1",
		"-test.timeout=30m")
	cmd.Env = append(os.Environ(), insideEnv+"="+t.Name())
	// The kernel sends Pdeathsig when the thread that started the process ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: gid, Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("on a small disk (this needs root, or user namespaces): %v\n%s", err, out)
	}
	if testing.Verbose() {
		t.Logf("on a small disk:\n%s", out)
	}
}

func mount(t *testing.T, bytes int64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatalf("keep mounts to ourselves: %v", err)
	}
	if err := unix.Mount("disktest", dir, "tmpfs", 0, "size="+strconv.FormatInt(bytes, 10)); err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Fill writes a file that leaves no space in the file system, and returns its path.
func Fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2 // smaller and smaller writes, until no byte is free
		}
	}
	return path
}
