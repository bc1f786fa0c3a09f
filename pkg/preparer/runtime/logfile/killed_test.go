package logfile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
)

// rotatorArg makes the test binary rotate the log at a path, and kill itself at a step, after it has passed the step so
// often.
const rotatorArg = "rotator"

// So small that several rotated files are due at once.
const (
	testLimit = 1000
	testKeep  = 20
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == rotatorArg {
		passes, _ := strconv.Atoi(os.Args[4])
		Step = func(name string) {
			if name == os.Args[3] {
				if passes--; passes < 0 {
					_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				}
			}
		}
		if err := Rotate(os.Args[2], testLimit, testKeep); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// numbered returns the next number.
func numbered(t *testing.T, path string, from, lines int) int {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	for range lines {
		if err == nil {
			_, err = fmt.Fprintf(f, "line %d\n", from)
		}
		from++
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return from
}

func everything(t *testing.T, path string) string {
	t.Helper()
	text := live(t, path)
	pending, _, err := Pending(path)
	if err != nil {
		t.Fatal(err)
	}
	before := func(name string) {
		data, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		text = string(data) + text
	}
	if pending != "" {
		before(pending)
	}
	for n := 1; n <= testKeep+1; n++ {
		before(fmt.Sprintf("%s.%d", path, n))
	}
	return text
}

func wantNumbered(t *testing.T, path string, lines int) {
	t.Helper()
	if first := wantLast(t, path, lines); first > 0 {
		t.Fatalf("line %d is the first one", first)
	}
}

// wantLast: the files have the last of lines, each once and in order. It returns the first number in them.
func wantLast(t *testing.T, path string, lines int) (first int) {
	t.Helper()
	text := everything(t, path)
	if _, err := fmt.Sscanf(text, "line %d\n", &first); err != nil {
		t.Fatalf("%.40q: %v", text, err)
	}
	n := first
	for line := range strings.Lines(text) {
		if line != fmt.Sprintf("line %d\n", n) {
			t.Fatalf("%.40q is there, want line %d", line, n)
		}
		n++
	}
	if n != lines {
		t.Fatalf("line %d is the last one, want %d", n-1, lines-1)
	}
	return first
}

// A rotation that is killed at any step loses and doubles no line, before and after another process finishes it.
func TestKilledWhileRotating(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"half", "copied", "given back", "moving", "moved"} {
		for passes := range 4 {
			t.Run(fmt.Sprint(point, passes), func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "log")
				if point == "moved" && passes > 0 {
					return // this step comes only once
				}
				next := numbered(t, path, 0, 300)
				if err := Rotate(path, testLimit, testKeep); err != nil {
					t.Fatal(err)
				}
				next = numbered(t, path, next, 600)
				cmd := exec.Command(os.Args[0], rotatorArg, path, point, strconv.Itoa(passes))
				if err := cmd.Run(); err == nil || err.Error() != "signal: killed" {
					t.Fatal("it was not killed:", err)
				}
				wantNumbered(t, path, next)
				next = numbered(t, path, next, 10)
				wantNumbered(t, path, next)
				if err := Settle(path, testKeep); err != nil {
					t.Fatal(err)
				}
				wantNumbered(t, path, next)
				next = numbered(t, path, next, 200)
				if err := Rotate(path, testLimit, testKeep); err != nil {
					t.Fatal(err)
				}
				wantNumbered(t, path, next)
			})
		}
	}
}

// A rotation drops the oldest text if it would not be kept. A kill during that leaves no gap between lines.
func TestKilledWhileLeavingOut(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"half", "removing", "copied", "given back", "moving"} {
		for passes := range 2 {
			t.Run(fmt.Sprint(point, passes), func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "log")
				next := 0
				for range 3 {
					next = numbered(t, path, next, 200)
					if err := Rotate(path, testLimit, testKeep); err != nil {
						t.Fatal(err)
					}
				}
				next = numbered(t, path, next, 3000)
				cmd := exec.Command(os.Args[0], rotatorArg, path, point, strconv.Itoa(passes))
				if err := cmd.Run(); err == nil || err.Error() != "signal: killed" {
					t.Fatal("it was not killed:", err)
				}
				wantLast(t, path, next)
				if err := Rotate(path, testLimit, testKeep); err != nil {
					t.Fatal(err)
				}
				if first := wantLast(t, path, next); first == 0 {
					t.Error("nothing was left out")
				}
			})
		}
	}
}

// A rotation finishes an earlier rotation that was killed, even if there is nothing else to rotate.
func TestRotateFinishesAnInterruptedRotation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	next := numbered(t, path, 0, 300)
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(pendingPath(path, int64(len(text))), text, 0o600)
	}
	if err = errors.Join(err, Rotate(path, testLimit, testKeep)); err != nil {
		t.Fatal(err)
	}
	wantNumbered(t, path, next)
	if pending, _, err := Pending(path); pending != "" || err != nil {
		t.Errorf("%q was not ended, %v", pending, err)
	}
}

// A program that writes without a pause loses no line to rotations.
func TestNoLineIsLost(t *testing.T) {
	t.Parallel()
	const lines = 500_000
	path := filepath.Join(t.TempDir(), "log")
	next := numbered(t, path, 0, 1)
	var program sync.WaitGroup
	program.Go(func() { next = numbered(t, path, next, lines) })
	written := make(chan struct{})
	go func() { program.Wait(); close(written) }()
	rotations := 0
	for running := true; running; {
		select {
		case <-written:
			running = false
		default:
		}
		before, _ := os.Stat(path + ".1")
		if err := Rotate(path, 512<<10, testKeep); err != nil {
			t.Fatal(err)
		}
		if after, err := os.Stat(path + ".1"); err == nil && (before == nil || !os.SameFile(before, after)) {
			rotations++
		}
	}
	wantNumbered(t, path, next)
	if rotations < 5 {
		t.Errorf("%d rotations", rotations)
	}
}

// Without holes in the file system, the log is copied and truncated, with ErrCut.
func TestRotateWithoutHoles(t *testing.T) {
	disktest.Run(t, 1<<20, func(t *testing.T, disk string) {
		ram := filepath.Join(disk, "ram")
		if err := errors.Join(os.Mkdir(ram, 0o755), unix.Mount("ram", ram, "ramfs", 0, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(ram, unix.MNT_DETACH) })
		path := filepath.Join(ram, "log")
		next := numbered(t, path, 0, 1500)
		if err := Rotate(path, testLimit, testKeep); !errors.Is(err, ErrCut) {
			t.Errorf("got %v, want ErrCut", err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != 0 {
			t.Errorf("the log is %v, %v; want it cut", info, err)
		}
		next = numbered(t, path, next, 10)
		wantNumbered(t, path, next)
	})
}

// Where a file can be shortened, a log's length does not grow for ever.
func TestRotateShortens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	numbered(t, path, 0, 300)
	if err := os.Truncate(path, longHole); err != nil { // as if so much text was rotated out
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = errors.Join(punch(f, 0, longHole), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	next := numbered(t, path, 0, 300)
	if err := Rotate(path, testLimit, testKeep); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		t.Fatal(err)
	}
	if can := fs.Type == unix.EXT4_SUPER_MAGIC || fs.Type == unix.XFS_SUPER_MAGIC; can != (info.Size() < longHole) {
		t.Errorf("the log seems %d bytes long", info.Size())
	}
	wantNumbered(t, path, next)
	next = numbered(t, path, next, 300)
	wantNumbered(t, path, next)
	if info.Sys().(*syscall.Stat_t).Blocks > 16 {
		t.Errorf("it takes %d blocks", info.Sys().(*syscall.Stat_t).Blocks)
	}
}

// A rotation that drops text does not shorten the log. The next rotation does.
func TestRotateLeavesOutOrShortens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	numbered(t, path, 0, 0)
	if err := os.Truncate(path, longHole); err != nil { // as if so much text was rotated out
		t.Fatal(err)
	}
	next := numbered(t, path, 0, 3000)
	before, err := os.Stat(path)
	if err = errors.Join(err, Rotate(path, testLimit, testKeep)); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(path)
	if err != nil || after.Size() != before.Size() {
		t.Errorf("it was made shorter: %v, %v", after, err)
	}
	if first := wantLast(t, path, next); first == 0 {
		t.Error("nothing was left out")
	}
	next = numbered(t, path, next, 300)
	if err := Rotate(path, testLimit, testKeep); err != nil {
		t.Fatal(err)
	}
	wantLast(t, path, next)
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		t.Fatal(err)
	}
	after, err = os.Stat(path)
	can := fs.Type == unix.EXT4_SUPER_MAGIC || fs.Type == unix.XFS_SUPER_MAGIC
	if err != nil || can != (after.Size() < longHole) {
		t.Errorf("the log seems %d bytes long, %v", after.Size(), err)
	}
}
