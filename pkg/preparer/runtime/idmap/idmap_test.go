package idmap_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/idmap"
)

// The mount shows other owners, and new files get the owners that were asked for on the disk.
func TestBind(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	for name, uid := range map[string]int{"root": 0, "app": 33, "far": 70_000} {
		file := filepath.Join(source, name)
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(file, uid, uid+1); err != nil {
			t.Fatal("this test needs root:", err)
		}
	}
	mount(t, source, target, []idmap.Range{{OnDisk: 0, Shown: 100_000, Size: 65_536}})
	for name, want := range map[string][2]int{
		"root": {100_000, 100_001}, "app": {100_033, 100_034}, "far": {65_534, 65_534},
	} {
		if got := owner(t, filepath.Join(target, name)); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
	if err := os.Chown(filepath.Join(target, "root"), 100_007, 100_008); err != nil {
		t.Fatal(err)
	}
	if got := owner(t, filepath.Join(source, "root")); got != [2]int{7, 8} {
		t.Errorf("on the disk: %d, want 7 and 8", got)
	}
	if err := os.WriteFile(filepath.Join(target, "new"), nil, 0o644); !errors.Is(err, unix.EOVERFLOW) {
		t.Errorf("user 0 of this machine has no number there, and made a file: %v", err)
	}
}

// One owner on the disk is shown as one other.
func TestBindOneOwner(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	if err := os.Chown(source, 5000, 5000); err != nil {
		t.Fatal("this test needs root:", err)
	}
	mount(t, source, target, []idmap.Range{{OnDisk: 5000, Shown: 100_033, Size: 1}})
	if got := owner(t, target); got != [2]int{100_033, 100_033} {
		t.Errorf("%d", got)
	}
	file := filepath.Join(source, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := owner(t, filepath.Join(target, "file")); got != [2]int{65_534, 65_534} {
		t.Errorf("a file of root is shown as a file of %d", got)
	}
}

func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	whole := []idmap.Range{{OnDisk: 0, Shown: 100_000, Size: 65_536}}
	for name, tt := range map[string]struct {
		source, target string
		ranges         []idmap.Range
		want           error
	}{
		"no source":     {dir + "/no", dir, whole, unix.ENOENT},
		"no target":     {dir, dir + "/no", whole, unix.ENOENT},
		"overlapping":   {dir, dir, append(whole, whole...), unix.EINVAL},
		"a kernel's":    {"/proc/self", dir, whole, errors.ErrUnsupported},
		"empty mapping": {dir, dir, nil, unix.EINVAL},
	} {
		err := idmap.Bind(tt.source, tt.target, tt.ranges)
		if !errors.Is(err, tt.want) || !strings.HasPrefix(err.Error(), "mount "+tt.source+" on "+tt.target) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("a mount is left: %v", err)
	}
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(lists) == 0 {
		t.Fatal("no lists of children: ", err)
	}
	for _, list := range lists {
		if children, err := os.ReadFile(list); len(children) > 0 {
			t.Errorf("children are left: %q, %v", children, err)
		}
	}
}

func mount(t *testing.T, source, target string, ranges []idmap.Range) {
	t.Helper()
	if err := idmap.Bind(source, target, ranges); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, 0); err != nil {
			t.Error(err)
		}
	})
}

func owner(t *testing.T, file string) [2]int {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return [2]int{int(st.Uid), int(st.Gid)}
}

// What is mounted below the source later is not visible at the target, although systemd makes all mounts shared.
func TestLaterMounts(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and with it the namespace
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			if err := unix.Mount("tmpfs", source, "tmpfs", 0, ""); err != nil {
				return err
			}
			if err := unix.Mount("", source, "", unix.MS_SHARED, ""); err != nil {
				return err
			}
			if err := os.Mkdir(filepath.Join(source, "later"), 0o755); err != nil {
				return err
			}
			if err := idmap.Bind(source, target, []idmap.Range{{OnDisk: 0, Shown: 100_000, Size: 65_536}}); err != nil {
				return err
			}
			if err := unix.Mount("tmpfs", filepath.Join(source, "later"), "tmpfs", 0, ""); err != nil {
				return err
			}
			if got := owner(t, filepath.Join(target, "later")); got != [2]int{100_000, 100_000} {
				return fmt.Errorf("the mount is visible: the owner is %d", got)
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
