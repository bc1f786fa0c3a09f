package tree_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/tree"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == tree.Arg {
		fmt.Fprintln(os.Stderr, "what a child says beside its answer does not spoil it")
		tree.Exec()
	}
	os.Exit(consultest.NoLeaks(m.Run()))
}

// limit is long because the machine may be busy.
const limit = 10 * time.Minute

// The users of these tests if they run as root.
const podUID, otherUID = 1_900_200_001, 1_900_200_002

func self() tree.Owner { return tree.Owner{UID: os.Getuid(), GID: os.Getgid()} }

// podUser owns the trees to delete: a pod's user if the tests run as root, else the user that runs the tests.
func podUser() tree.Owner {
	if os.Getuid() == 0 {
		return tree.Owner{UID: podUID, GID: podUID}
	}
	return self()
}

// scene is a directory that all users can enter, with a pod's home.
type scene struct {
	t         *testing.T
	dir, home string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	// Other users cannot enter t.TempDir, and it cannot delete deep trees. Some file systems need milliseconds to
	// remove a directory, but memory does not.
	const memory = "/dev/shm"
	parent := ""
	if info, err := os.Stat(memory); err == nil && info.IsDir() {
		parent = memory
	}
	base, err := os.MkdirTemp(parent, "tree-")
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{t: t, dir: base, home: filepath.Join(base, "home")}
	t.Cleanup(func() {
		root := open(t, base)
		defer root.Close()
		if left, err := tree.Delete(context.Background(), root, self(), limit); err != nil || !left.Empty {
			t.Errorf("clear up: %+v, %v", left, err)
		}
		if err := os.Remove(base); err != nil {
			t.Error(err)
		}
	})
	s.must(os.Chmod(base, 0o755))
	s.must(os.Mkdir(s.home, 0o700))
	return s
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) path(parts ...string) string {
	return filepath.Join(append([]string{s.home}, parts...)...)
}

func (s *scene) write(path string) {
	s.t.Helper()
	s.must(os.WriteFile(path, []byte("precious"), 0o600))
}

// chown does nothing unless the tests run as root.
func (s *scene) chown(uid int, paths ...string) {
	s.t.Helper()
	for _, path := range paths {
		if os.Getuid() == 0 {
			s.must(os.Lchown(path, uid, uid))
		}
	}
}

func (s *scene) owner(path string) int {
	s.t.Helper()
	info, err := os.Lstat(path)
	s.must(err)
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (s *scene) delete(as tree.Owner) (tree.Left, error) {
	s.t.Helper()
	home := open(s.t, s.home)
	defer home.Close()
	return tree.Delete(s.t.Context(), home, as, limit)
}

// deep makes nested directories with a file each.
func (s *scene) deep(levels int, as tree.Owner) {
	s.t.Helper()
	s.must(inThread(as, func() error {
		dir, err := unix.Open(s.home, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		for range levels {
			if err != nil {
				return err
			}
			var next, file int
			if err = unix.Mkdirat(dir, "d", 0o755); err == nil {
				next, err = unix.Openat(dir, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
			}
			if err == nil {
				file, err = unix.Openat(next, "f", unix.O_WRONLY|unix.O_CREAT, 0o600)
				_ = unix.Close(file)
			}
			_ = unix.Close(dir)
			dir = next
		}
		return errors.Join(err, unix.Close(dir))
	}))
}

// Deleting takes seconds, even for a tree deeper than the number of descriptors, or than the longest path.
func TestDeleteDeepTree(t *testing.T) {
	s := newScene(t)
	s.chown(podUID, s.home)
	s.deep(200_000, podUser())
	if left, err := s.delete(podUser()); err != nil || !left.Empty {
		t.Errorf("left: %+v, %v", left, err)
	}
	if names, err := os.ReadDir(s.home); err != nil || len(names) > 0 {
		t.Errorf("%d entries are left, %v", len(names), err)
	}
}

// All that a pod has put into its home is deleted, and nothing outside.
func TestDeleteLeavesOutsideAlone(t *testing.T) {
	s := newScene(t)
	outside, kept := filepath.Join(s.dir, "outside"), filepath.Join(s.dir, "outside", "kept")
	s.must(os.Mkdir(outside, 0o755))
	s.write(kept)
	s.must(os.MkdirAll(s.path("a", "b", "c"), 0o755))
	s.write(s.path("a", "b", "file"))
	s.must(os.Link(kept, s.path("a", "hard")))
	s.must(os.Symlink(outside, s.path("a", "b", "link")))
	s.must(os.Symlink(outside, s.path("link")))
	s.must(unix.Mkfifo(s.path("a", "pipe"), 0o600))
	s.must(os.WriteFile(s.path("a", "b", "c", "big"), nil, 0o600))
	s.must(os.Truncate(s.path("a", "b", "c", "big"), 1<<40))
	s.chown(podUID, s.home, s.path("a"), s.path("a", "b"), s.path("a", "b", "c"))
	s.must(os.Chmod(s.path("a", "b", "c"), 0))
	s.must(os.Chmod(s.path("a", "b"), 0o500))
	if left, err := s.delete(podUser()); err != nil || !left.Empty {
		t.Errorf("left: %+v, %v", left, err)
	}
	if names, err := os.ReadDir(s.home); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
	if text, err := os.ReadFile(kept); err != nil || string(text) != "precious" {
		t.Errorf("what a link led to: %q, %v", text, err)
	}
}

// Files of another user need another call as that user.
func TestDeleteOfTwoUsers(t *testing.T) {
	if os.Getuid() != 0 {
		s := newScene(t)
		if _, err := s.delete(tree.Owner{UID: podUID, GID: podUID}); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("as another user: %v; want nothing done", err)
		}
		return
	}
	s := newScene(t)
	s.must(os.MkdirAll(s.path("mine", "theirs", "mine"), 0o755))
	for _, dir := range []string{"mine", "mine/theirs", "mine/theirs/mine"} {
		s.write(s.path(dir, "file"))
	}
	s.chown(podUID, s.home, s.path("mine"), s.path("mine", "theirs", "mine"))
	s.chown(otherUID, s.path("mine", "theirs"))
	rounds := 0
	as := podUser()
	for {
		rounds++
		left, err := s.delete(as)
		if err != nil {
			t.Fatal(err)
		}
		if left.Empty {
			break
		}
		if rounds == 1 && (left.UID != otherUID || left.Why == "") {
			t.Errorf("the first round left %+v, want what is user %d's", left, otherUID)
		}
		if rounds > 5 {
			t.Fatalf("%+v is left after %d rounds", left, rounds)
		}
		as = tree.Owner{UID: left.UID, GID: podUID}
		s.chown(as.UID, s.home)
	}
	if rounds < 2 {
		t.Error("one user removed what was another's")
	}
}

// Out of time, Delete ends, and the next call continues.
func TestDeleteTakesItsTime(t *testing.T) {
	s := newScene(t)
	s.chown(podUID, s.home)
	s.deep(20_000, podUser())
	home := open(t, s.home)
	defer home.Close()
	left, err := tree.Delete(t.Context(), home, podUser(), time.Nanosecond)
	if !errors.Is(err, tree.ErrTime) {
		t.Errorf("after its time: %+v, %v", left, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tree.Delete(ctx, home, podUser(), limit); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if left, err := s.delete(podUser()); err != nil || !left.Empty {
		t.Errorf("at last: %+v, %v", left, err)
	}
}

func (s *scene) give(from, to int) error {
	s.t.Helper()
	home := open(s.t, s.home)
	defer home.Close()
	return tree.Give(s.t.Context(), home, tree.Owner{UID: from, GID: from}, tree.Owner{UID: to, GID: to}, limit)
}

// If the owner of a home changes, the owner's files in it change too, except files that have a name elsewhere.
func TestGive(t *testing.T) {
	if os.Getuid() != 0 {
		s := newScene(t)
		if err := s.give(podUID, otherUID); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("not root: %v, want a refusal", err)
		}
		return
	}
	s := newScene(t)
	elsewhere := filepath.Join(s.dir, "elsewhere")
	s.must(os.MkdirAll(s.path("deep", "root", "deeper"), 0o700))
	for _, name := range []string{"file", "deep/file", "deep/root/deeper/file", "roots", "twice"} {
		s.write(s.path(name))
	}
	s.write(elsewhere)
	s.must(os.Link(elsewhere, s.path("hard")))                // has a name elsewhere
	s.must(os.Link(s.path("twice"), s.path("deep", "twice"))) // has all its names here
	s.must(os.Link(s.path("roots"), s.path("deep", "roots"))) // belongs to another user
	s.must(os.Symlink(elsewhere, s.path("deep", "link")))
	s.must(unix.Mkfifo(s.path("pipe"), 0o600))
	mine := []string{
		s.home, s.path("file"), s.path("deep"), s.path("deep", "file"), s.path("deep", "root", "deeper"), s.path("deep",
			"root", "deeper", "file"),
		s.path("twice"), s.path("deep", "link"), s.path("pipe"),
	}
	s.chown(podUID, append(mine, elsewhere)...)
	s.must(os.Chmod(s.path("deep"), 0o300))
	if err := s.give(podUID, otherUID); err != nil {
		t.Fatal(err)
	}
	for _, path := range mine {
		if uid := s.owner(path); uid != otherUID {
			t.Errorf("%s belongs to %d, want %d", path, uid, otherUID)
		}
	}
	for path, want := range map[string]int{elsewhere: podUID, s.path("roots"): 0, s.path("deep", "root"): 0} {
		if uid := s.owner(path); uid != want {
			t.Errorf("%s belongs to %d, want %d as before", path, uid, want)
		}
	}
	if err := s.give(podUID, otherUID); err != nil || s.owner(s.path("roots")) != 0 {
		t.Errorf("once more: %v", err)
	}
}

// If a tree is too deep, Give returns an error, and the root of the tree keeps its owner.
func TestGiveIsBounded(t *testing.T) {
	if os.Getuid() != 0 {
		return // Give needs root; see TestGive
	}
	s := newScene(t)
	s.chown(podUID, s.home)
	s.deep(900, podUser())
	if err := s.give(podUID, otherUID); err != nil {
		t.Errorf("900 deep: %v", err)
	}
	s.chown(podUID, s.home)
	s.must(os.Rename(s.path("d"), s.path("e")))
	s.deep(5000, podUser())
	if err := s.give(podUID, otherUID); err == nil || !strings.Contains(err.Error(), "more than 1000 deep") {
		t.Errorf("5000 deep: %v, want what is allowed", err)
	}
	if uid := s.owner(s.home); uid != podUID {
		t.Errorf("the top belongs to %d already", uid)
	}
}

// Delete needs an open directory.
func TestDeleteRefusesWhatIsNoOpenDirectory(t *testing.T) {
	s := newScene(t)
	home := open(t, s.home)
	if err := home.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Delete(t.Context(), home, self(), limit); err == nil {
		t.Error("a closed directory was deleted")
	}
	file := s.path("file")
	s.write(file)
	f := open(t, file)
	defer f.Close()
	if left, err := tree.Delete(t.Context(), f, self(), limit); err == nil {
		t.Errorf("a file was taken for a directory: %+v", left)
	}
}

// inThread runs as a user, in a thread that ends afterwards.
func inThread(as tree.Owner, run func() error) error {
	if as == self() {
		return run()
	}
	done := make(chan error)
	go func() {
		done <- func() error {
			if err := lockAs(as); err != nil {
				return err
			}
			return run()
		}()
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("as user %d: %w", as.UID, err)
	}
	return nil
}

// lockAs changes the thread's access to files (setfsuid(2)).
func lockAs(as tree.Owner) error {
	goruntime.LockOSThread() // never unlocked
	return errors.Join(unix.Setfsgid(as.GID), unix.Setfsuid(as.UID))
}
