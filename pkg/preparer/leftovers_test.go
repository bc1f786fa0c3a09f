package preparer_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

// plantDeep makes a tree with more levels than a process may have descriptors.
func plantDeep(t *testing.T, path string) {
	t.Helper()
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	levels := min(int(files.Max)+1000, 200_000)
	dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for n := 0; n < levels && err == nil; n++ {
		var next int
		if err = unix.Mkdirat(dir, "d", 0o755); err == nil {
			next, err = unix.Openat(dir, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		_ = unix.Close(dir)
		dir = next
	}
	if err = errors.Join(err, unix.Close(dir)); err != nil {
		t.Fatal(err)
	}
}

// The node deletes a stopped pod's files, even a hostile tree. Another pod's stop and deletion do not wait for that.
func TestHostileLeftoversAreDeleted(t *testing.T) {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		t.Setenv("TMPDIR", "/dev/shm") // some file systems take milliseconds to remove a directory
	}
	b := newBench(t)
	host := b.isolated()
	if !host.Mapped(b.cfg.Isolation.Users.First, b.cfg.Isolation.Users.Last) {
		b.cfg.Isolation.Users = install.UserRange{}
	}
	b.cfg.KeepStopped, b.cfg.CollectEvery = 1, b.cfg.BusyPoll
	b.start()
	digest := b.upload(b.sleeper("1"))
	for i := range 2 {
		b.write(intent(i, digest, pod.Running, 10))
		b.awaitReady(i, digest, 10)
	}
	home, kept := b.inNode("homes", "rc1.main.0"), b.inNode("kept")
	plantDeep(t, home)
	if err := errors.Join(
		os.WriteFile(kept, []byte("precious"), 0o600),
		os.Link(kept, filepath.Join(home, "hard")),
		os.Symlink(b.cfg.Dir, filepath.Join(home, "link")),
		unix.Mkfifo(filepath.Join(home, "pipe"), 0o600),
		os.Mkdir(filepath.Join(home, "closed"), 0),
		os.WriteFile(filepath.Join(home, "sparse"), nil, 0o600),
		os.Truncate(filepath.Join(home, "sparse"), 1<<40),
		os.Chmod(filepath.Join(home, "sparse"), 0o400),
	); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		b.write(intent(i, digest, pod.Stopped, 20))
		b.awaitState(i, pod.StateStopped, 20, "")
	}
	for _, name := range []string{"rc1.main.0", "rc1.main.1", ".removed"} {
		b.eventually(func() error {
			if _, err := os.Lstat(b.inNode("homes", name)); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s is there: %w", name, err)
			}
			return nil
		})
	}
	if text := b.text(kept); text != "precious" {
		t.Errorf("the target of the pod's link has the text %q", text)
	}
	b.write(intent(0, digest, pod.Running, 30))
	b.awaitReady(0, digest, 30)
}

// A forgotten pod's user number is given again when no file of the pod is left.
func TestUserNumbersOfForgottenPodsAreUsedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.isolated()
	if !host.Mapped(b.cfg.Isolation.Users.First, b.cfg.Isolation.Users.Last) {
		b.cfg.Isolation.Users = install.UserRange{} // the host has no numbers
	} else {
		b.cfg.Isolation.Users.Last = b.cfg.Isolation.Users.First // one number
	}
	b.cfg.KeepStopped, b.cfg.KeepTombstones, b.cfg.CollectEvery = 1, 1, b.cfg.BusyPoll
	b.start()
	digest := b.upload(b.sleeper("1"))
	for i := range 3 {
		b.write(intent(i, digest, pod.Running, 10))
		b.awaitReady(i, digest, 10)
		b.write(intent(i, digest, pod.Stopped, 20))
		b.awaitState(i, pod.StateStopped, 20, "")
		b.deleteIntent(i)
		b.awaitNoReality(i)
		b.eventually(func() error {
			if got := b.names("pods"); len(got) > 0 {
				return fmt.Errorf("records %v", got)
			}
			return nil
		})
	}
}

// stallingState removes a record when the test lets it.
type stallingState struct {
	preparer.State
	begun, over chan struct{}
}

func (s *stallingState) Forget(name string) error {
	s.begun <- struct{}{}
	<-s.over
	return s.State.Forget(name)
}

// While a tombstone's removal is slow, the node starts and reports other pods.
func TestSlowRemovalOfATombstoneDelaysNoOtherPod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	disk, err := preparer.NewDisk(b.inNode("pods"))
	if err != nil {
		t.Fatal(err)
	}
	state := &stallingState{State: disk, begun: make(chan struct{}, 1), over: make(chan struct{})}
	t.Cleanup(func() { close(state.over) })
	b.cfg.State = state
	b.cfg.KeepStopped, b.cfg.KeepTombstones, b.cfg.CollectEvery = 1, 1, b.cfg.BusyPoll
	b.start()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.write(intent(0, digest, pod.Stopped, 20))
	b.awaitState(0, pod.StateStopped, 20, "")
	b.deleteIntent(0)
	select {
	case <-state.begun:
	case <-time.After(patience):
		t.Fatal("the tombstone was not removed")
	}
	b.write(intent(1, digest, pod.Running, 10))
	b.awaitReady(1, digest, 10)
	// The tombstone's pod starts after the removal, with a new record.
	b.write(intent(0, digest, pod.Running, 30))
	state.over <- struct{}{}
	b.awaitReady(0, digest, 30)
}
