package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// commandsWait bounds how long a stop waits for commands that were told to end, before it says so and tries again.
const commandsWait = 10 * time.Second

// ErrStopping says that a command cannot run, as the processes that it would run beside are being stopped.
var ErrStopping = errors.New("the pod is stopping")

// Commands are those that run beside the processes of one pod. The zero value has none.
type Commands struct {
	mu      sync.Mutex
	ending  bool                             // none may begin
	running map[*context.CancelFunc]struct{} // what ends each
}

// Begin notes a command, which cancel ends, unless the pod's processes are being stopped.
func (c *Commands) Begin(cancel context.CancelFunc) (over func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return nil, ErrStopping
	}
	if c.running == nil {
		c.running = map[*context.CancelFunc]struct{}{}
	}
	c.running[&cancel] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.running, &cancel)
	}, nil
}

// End tells all commands to end, and keeps others from beginning until reopen is called.
func (c *Commands) End() (reopen func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending = true
	for cancel := range c.running {
		(*cancel)()
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ending = false
	}
}

// LockCommands takes the shared lock on a file that a command is to hold.
func LockCommands(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("note that a command runs: %w", err)
	}
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("note that a command runs: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return f, nil
		}
		_ = f.Close()
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, ErrStopping
		case err != nil:
			return nil, fmt.Errorf("note that a command runs: %w", err)
		}
	}
}

// sameFile reports whether an open file still has its name.
func sameFile(f *os.File, path string) bool {
	now, err := os.Lstat(path)
	if err != nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && os.SameFile(now, info)
}

// AwaitCommands returns nil when no command holds the file, so that nothing of any is left.
func AwaitCommands(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there never was one
	}
	if err != nil {
		return fmt.Errorf("find out whether commands run in the pod: %w", err)
	}
	defer func() { _ = f.Close() }()
	const firstLook, lastLook = 2 * time.Millisecond, 200 * time.Millisecond
	deadline := time.Now().Add(commandsWait)
	for look := firstLook; ; look = min(2*look, lastLook) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("find out whether commands run in the pod: %w", err)
		case time.Now().After(deadline):
			return fmt.Errorf("a command that was run in the pod is not dead yet %s after it was killed", commandsWait)
		}
		if err := wait.Pause(ctx, look); err != nil {
			return err
		}
	}
}
