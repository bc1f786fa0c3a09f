package runit

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// notifier is told by the kernel when a record is replaced, so that nobody has to look at all of them several times a
// second. Without one, where the kernel's limits allow no more of them, the directory is looked at all the same.
type notifier struct {
	file *os.File // inotify(7)
	fd   int
}

func newNotifier(dir string) (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch runit directory: %w", err)
	}
	n := &notifier{file: os.NewFile(uintptr(fd), "inotify"), fd: fd}
	if err := n.add(dir); err != nil {
		_ = n.file.Close()
		return nil, err
	}
	return n, nil
}

// add watches a directory for files that are renamed into place, or removed. The kernel forgets it with the directory.
func (n *notifier) add(dir string) error {
	_, err := unix.InotifyAddWatch(n.fd, dir, unix.IN_MOVED_TO|unix.IN_MOVED_FROM|unix.IN_ONLYDIR)
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	return nil
}

// run calls changed after every change until ctx ends, at most once in so long.
func (n *notifier) run(ctx context.Context, gap time.Duration, changed func()) {
	stop := context.AfterFunc(ctx, func() { _ = n.file.Close() })
	defer stop()
	buf := make([]byte, 16<<10)
	tick := time.NewTicker(gap)
	defer tick.Stop()
	for {
		if _, err := n.file.Read(buf); err != nil { // which directory it was does not matter
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		changed()
	}
}
