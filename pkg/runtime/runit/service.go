package runit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/durable"
)

// service is the directory that one runsv serves.
type service string

// Names in a service directory. All but the first three are runit's (runsv(8)).
const (
	recordName  = "record.json"
	lockName    = "lock"
	whyNotName  = "why-not" // why the last start failed, once its pid was recorded; empty: it did not
	downName    = "down"    // while it exists a new runsv starts nothing
	controlName = "supervise/control"
	okName      = "supervise/ok"
	statusName  = "supervise/status"
)

// errGone says that there is no such service, or not any more.
var errGone = errors.New("no such service")

func (s service) path(name string) string { return filepath.Join(string(s), name) }

func (s service) id() string { return filepath.Base(string(s)) }

// byHand is what to do about a service whose record cannot be read: it may run, and nothing is known that could end it.
func (s service) byHand() string {
	return fmt.Sprintf("make sure that nothing of it runs (sv exit %s) and remove that directory", s)
}

func (s service) exists() bool {
	_, err := os.Lstat(string(s))
	return !errors.Is(err, fs.ErrNotExist)
}

func (s service) load() (record, error) {
	data, err := os.ReadFile(s.path(recordName))
	var rec record
	if err == nil {
		rec, err = parseRecord(data, s.id())
	}
	if err != nil {
		return rec, fmt.Errorf("read record of %s: %w", s.id(), err)
	}
	return rec, nil
}

// layout is the directory that the service is in.
func (s service) layout() layout { return layout(filepath.Dir(filepath.Dir(string(s)))) }

// save replaces the record, on a full disk with room of the reserve. The caller holds the lock.
func (s service) save(rec record) error {
	data, err := json.Marshal(rec)
	if err == nil {
		err = s.layout().reserve().WriteFile(s.path(recordName), data) // Env may hold secrets: owner only
	}
	if err != nil {
		return fmt.Errorf("write record of %s: %w", s.id(), err)
	}
	return nil
}

// held is a lock on a service. The kernel releases it when its process ends or becomes another program.
type held struct{ f *os.File }

func (h *held) release() { _ = h.f.Close() }

// Between two attempts to take a lock that another process holds.
const (
	firstTry = time.Millisecond
	lastTry  = 50 * time.Millisecond
)

// lock waits for the service's lock. It returns errGone when there is no such service.
func (s service) lock(ctx context.Context) (*held, error) {
	for try := firstTry; ; try = min(2*try, lastTry) {
		h, err := s.tryLock()
		if h != nil || err != nil {
			return h, err
		}
		timer := time.NewTimer(try)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("lock service %s: %w", s.id(), ctx.Err())
		}
	}
}

// tryLock returns nothing when another process has the lock.
func (s service) tryLock() (*held, error) {
	f, err := os.OpenFile(s.path(lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errGone
	}
	if err != nil {
		return nil, fmt.Errorf("lock service %s: %w", s.id(), err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil && s.owns(f) {
		return &held{f}, nil
	}
	_ = f.Close()
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock service %s: %w", s.id(), err)
	}
	return nil, nil
}

// owns reports whether the open lock file still is the service's: it may have been removed while we waited.
func (s service) owns(f *os.File) bool {
	there, err := os.Stat(s.path(lockName))
	if err != nil {
		return false
	}
	here, err := f.Stat()
	return err == nil && os.SameFile(here, there)
}

// busy reports whether somebody holds the lock.
func (s service) busy() bool {
	f, err := os.Open(s.path(lockName))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// served reports whether a runsv serves the directory: it keeps a named pipe open for reading.
func (s service) served() bool {
	fd, err := unix.Open(s.path(okName), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// control sends one of runsv's commands. Without a runsv it does nothing: the next one reads the record.
func (s service) control(command byte) error {
	fd, err := unix.Open(s.path(controlName), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		_, err = unix.Write(fd, []byte{command})
		_ = unix.Close(fd)
	}
	if err != nil && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("tell runsv of %s: %w", s.id(), err)
	}
	return nil
}

// Commands of runsv (runsv(8)).
const (
	commandUp   = 'u'
	commandDown = 'd'
	commandExit = 'x'
)

// putDown keeps the next runsv from starting what is not wanted. The record decides; this only spares some work, and may fail
// on a full disk.
func (s service) putDown() error {
	f, err := os.OpenFile(s.path(downName), os.O_WRONLY|os.O_CREATE, 0o644)
	if durable.Full(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("put service %s down: %w", s.id(), err)
	}
	return f.Close()
}

// rest makes runsv start nothing more. It ends a stub that waits for a restart, so nothing of the program may run.
func (s service) rest() error {
	if err := s.putDown(); err != nil {
		return err
	}
	return s.control(commandDown)
}

// wake makes runsv start the service.
func (s service) wake() error {
	if err := os.Remove(s.path(downName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take service %s up: %w", s.id(), err)
	}
	return s.control(commandUp)
}

// quiet reports whether runsv has nothing of the service running, neither run nor finish, or is not there.
func (s service) quiet() bool {
	up, _ := s.status()
	return !up || !s.served()
}

// status reads what runsv says: whether run or finish runs, and whether it is to be up.
func (s service) status() (runs, wanted bool) {
	data, err := os.ReadFile(s.path(statusName))
	// 20 bytes: when (12), pid (4), paused, wanted ('u' or 'd'), term sent, state (0: down).
	const size, wantedAt, stateAt = 20, 17, 19
	if err != nil || len(data) != size {
		return false, false
	}
	return data[stateAt] != 0, data[wantedAt] == 'u'
}
