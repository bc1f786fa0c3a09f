package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
)

// DataDir is a directory that belongs to one running daemon (R11). When the daemon starts again, it deregisters the
// incarnations in it.
type DataDir struct {
	path string
	made []string // the directories that this start has made: none, or the data directory, its parent, and so on
	lock *os.File

	mu sync.Mutex
}

// OpenDataDir makes a missing directory and locks it. It fails if another daemon uses the directory.
func OpenDataDir(ctx context.Context, path string) (*DataDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	made, err := makeDataDir(path)
	if err != nil {
		discard(made)
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := takeLock(ctx, lock); err != nil {
		_ = lock.Close() // it was never written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("data directory %s is in use by another daemon; give each its own with --data-dir",
				path)
		}
		return nil, fmt.Errorf("lock data directory %s: %w", path, err)
	}
	return &DataDir{path: path, made: made, lock: lock}, nil
}

// lockWait is how long the lock can outlive a killed daemon: a process that it was starting has the lock's descriptor
// until it executes its program.
const lockWait = time.Second

func takeLock(ctx context.Context, lock *os.File) (err error) {
	_ = wait.PollUntilContextTimeout(ctx, lockWait/100, lockWait, true, func(context.Context) (bool, error) {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		return !errors.Is(err, unix.EWOULDBLOCK), nil
	})
	return err
}

// makeDataDir makes a directory that only its owner can enter. Everybody can pass through the parents that it makes,
// because a preparer opens its directory to the users of pods. Existing directories keep their mode.
func makeDataDir(path string) (made []string, err error) {
	missing := []string{path}
	for above := filepath.Dir(path); ; above = filepath.Dir(above) {
		if _, err := os.Stat(above); !errors.Is(err, os.ErrNotExist) {
			break
		}
		missing = append(missing, above)
	}
	for i, dir := range slices.Backward(missing) {
		mode := os.FileMode(0o755)
		if i == 0 {
			mode = 0o700
		}
		switch err = os.Mkdir(dir, mode); {
		case err == nil:
			made = slices.Insert(made, 0, dir)
		case errors.Is(err, os.ErrExist):
			made, err = nil, nil // another program uses the directories above it, too
		}
		if err == nil && i > 0 {
			err = os.Chmod(dir, mode) // despite the umask
		}
		if err != nil {
			return made, err
		}
	}
	return made, nil
}

// discard removes the directories that a failed start has made.
func discard(made []string) {
	for i, dir := range made {
		if i == 0 {
			_ = os.RemoveAll(dir) // on an error an unused directory is left
		} else {
			_ = os.Remove(dir) // fails if another program uses it by now
		}
	}
}

// Discard removes the directories that this start has made, after it failed.
func (d *DataDir) Discard() { discard(d.made) }

// Path returns the absolute path of a file or directory inside.
func (d *DataDir) Path(name string) string { return filepath.Join(d.path, name) }

// Close lets another daemon use the directory.
func (d *DataDir) Close() { _ = d.lock.Close() } // closing releases the lock; the file holds nothing

// Incarnations implements consul.Journal. An invalid file is taken for an empty one, because the incarnations in it end
// within the TTL anyway.
func (d *DataDir) Incarnations() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.read()
}

// Add implements consul.Journal.
func (d *DataDir) Add(incarnation string) error {
	return d.change(func(list []string) []string { return append(list, incarnation) })
}

// Remove implements consul.Journal.
func (d *DataDir) Remove(incarnation string) error {
	return d.change(func(list []string) []string {
		return slices.DeleteFunc(list, func(id string) bool { return id == incarnation })
	})
}

func (d *DataDir) change(with func([]string) []string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	list, err := d.read()
	if err != nil {
		return err
	}
	data, err := json.Marshal(with(list))
	if err != nil {
		return err
	}
	return durable.ReplaceFile(d.Path("incarnations.json"), data)
}

func (d *DataDir) read() ([]string, error) {
	data, err := os.ReadFile(d.Path("incarnations.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []string
	if json.Unmarshal(data, &list) != nil {
		list = nil
	}
	return list, nil
}
