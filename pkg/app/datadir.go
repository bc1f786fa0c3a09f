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

// DataDir is a directory that belongs to one running daemon (R11). It remembers the daemon's incarnations, so that the
// next start deregisters exactly its own.
type DataDir struct {
	path string
	made []string // what this start has made: nothing, or the directory, its parent, and so on
	lock *os.File

	mu sync.Mutex
}

// OpenDataDir makes the directory if it is missing and locks it. It fails when another daemon works in it.
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
			return nil, fmt.Errorf("data directory %s is in use by another daemon; give each its own with --data-dir", path)
		}
		return nil, fmt.Errorf("lock data directory %s: %w", path, err)
	}
	return &DataDir{path: path, made: made, lock: lock}, nil
}

// lockWait is how long the lock of a daemon that was killed may outlive it: what it was about to start has the lock's descriptor
// until it has become another program.
const lockWait = time.Second

func takeLock(ctx context.Context, lock *os.File) (err error) {
	_ = wait.PollUntilContextTimeout(ctx, lockWait/100, lockWait, true, func(context.Context) (bool, error) {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		return !errors.Is(err, unix.EWOULDBLOCK), nil
	})
	return err
}

// makeDataDir makes a directory that only its owner can enter, below ones that everybody can pass through: pods have users of
// their own, and a preparer opens its directory for them. What is there keeps its mode.
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
			made, err = nil, nil // what is above it is not ours alone any more
		}
		if err == nil && i > 0 {
			err = os.Chmod(dir, mode) // whatever the umask is
		}
		if err != nil {
			return made, err
		}
	}
	return made, nil
}

// discard removes what a start that failed has made. Nothing else than its own is in the first directory.
func discard(made []string) {
	for i, dir := range made {
		if i == 0 {
			_ = os.RemoveAll(dir) // what stays is a directory that nobody needs
		} else {
			_ = os.Remove(dir) // somebody else may use it by now
		}
	}
}

// Discard removes the directory if this start has made it, with the parents that it made. It is for a start that failed.
func (d *DataDir) Discard() { discard(d.made) }

// Path returns the absolute path of a file or directory inside.
func (d *DataDir) Path(name string) string { return filepath.Join(d.path, name) }

// Close lets another daemon use the directory.
func (d *DataDir) Close() { _ = d.lock.Close() } // closing releases the lock; the file holds nothing

// Incarnations implements consul.Journal. A file that cannot be read counts as empty: what it named dies by itself within
// the TTL.
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
