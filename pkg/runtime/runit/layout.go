package runit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/durable"
)

// layout is the runtime's directory.
type layout string

// Names in it.
const (
	servicesName = "sv"      // one directory per process
	scannedName  = "service" // what runsvdir looks at: links to those that it is to serve
	stubName     = "stub"    // link to our own binary, which the scripts start
	keeperName   = "runsvdir.json"
	keeperLog    = "runsvdir.log"
	reserveName  = "reserve" // room for records
)

// Prefixes of directories in sv/ that are not services: one being made, and one being removed.
const (
	newPrefix  = ".new-"
	gonePrefix = ".gone-"
	// staleAfter is when such a directory counts as left by a crash.
	staleAfter = time.Minute
)

func (l layout) path(name string) string { return filepath.Join(string(l), name) }

func (l layout) service(id string) service {
	return service(filepath.Join(string(l), servicesName, id))
}

// reserve is the room for records on a full disk.
func (l layout) reserve() *durable.Reserve { return &durable.Reserve{Dir: l.path(reserveName)} }

func (l layout) link(s service) string { return filepath.Join(string(l), scannedName, s.id()) }

// make makes the directory and points the scripts to this build's stub.
func (l layout) make(exe string) error {
	for _, name := range []string{servicesName, scannedName} {
		if err := os.MkdirAll(l.path(name), 0o700); err != nil {
			return fmt.Errorf("make runit directory: %w", err)
		}
	}
	return replaceLink(exe, l.path(stubName))
}

func replaceLink(target, path string) error {
	temp := path + durable.TempSuffix
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("link %s: %w", path, err)
	}
	if err := errors.Join(os.Symlink(target, temp), os.Rename(temp, path)); err != nil {
		return fmt.Errorf("link %s: %w", path, err)
	}
	return durable.SyncDir(filepath.Dir(path))
}

// script starts the stub. It names a link, so that another build of the preparer takes over without touching it.
func (l layout) script(mode string) string {
	quoted := "'" + strings.ReplaceAll(l.path(stubName), "'", `'\''`) + "'"
	return "#!/bin/sh\nexec " + quoted + " " + StubArg + " " + mode + " \"$@\"\n"
}

// build makes a service under a hidden name and puts it into place when it is complete. It returns errGone when
// another call was faster.
func (l layout) build(s service, rec record) (err error) {
	temp, err := os.MkdirTemp(l.path(servicesName), newPrefix+"*")
	if err != nil {
		return fmt.Errorf("make service %s: %w", s.id(), err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(temp)
		}
	}()
	for mode, name := range map[string]string{runMode: "run", finishMode: "finish"} {
		if err := os.WriteFile(filepath.Join(temp, name), []byte(l.script(mode)), 0o700); err != nil {
			return fmt.Errorf("make service %s: %w", s.id(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(temp, lockName), nil, 0o600); err != nil {
		return fmt.Errorf("make service %s: %w", s.id(), err)
	}
	if err := service(temp).save(rec); err != nil { // the directory becomes durable with it
		return err
	}
	if err := os.Rename(temp, string(s)); err != nil {
		if errors.Is(err, fs.ErrExist) || s.exists() {
			err = errGone
		}
		return fmt.Errorf("make service %s: %w", s.id(), err)
	}
	return durable.SyncDir(l.path(servicesName))
}

// remove carries out a removal that the record says: the link, then the runsv, then the directory. It may be called again
// at any point. The lock is free while runsv ends: a stub may want it.
func (l layout) remove(ctx context.Context, s service) error {
	for look := firstLook; ; look = min(2*look, lastLook) {
		done, err := l.removeStep(ctx, s)
		if done {
			return nil
		}
		if err != nil {
			return fmt.Errorf("remove service %s: %w", s.id(), err)
		}
		timer := time.NewTimer(look)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("remove service %s: its runsv has not ended: %w", s.id(), ctx.Err())
		}
	}
}

func (l layout) removeStep(ctx context.Context, s service) (done bool, err error) {
	lock, err := s.lock(ctx)
	if errors.Is(err, errGone) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer lock.release()
	rec, err := s.load()
	if err != nil || !rec.Removed {
		return err == nil, err // another call has done it, and a third has made a new one
	}
	if err := os.Remove(l.link(s)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if s.served() {
		return false, s.control(commandExit)
	}
	gone, err := os.MkdirTemp(l.path(servicesName), gonePrefix+"*")
	if err != nil {
		return false, err
	}
	err = os.Rename(string(s), filepath.Join(gone, s.id()))
	err = errors.Join(err, durable.SyncDir(l.path(servicesName)), os.RemoveAll(gone))
	return err == nil, err
}

// services lists the services.
func (l layout) services() ([]service, error) {
	names, err := l.names()
	if err != nil {
		return nil, err
	}
	list := make([]service, 0, len(names))
	for _, name := range names {
		if !strings.HasPrefix(name, ".") {
			list = append(list, l.service(name))
		}
	}
	return list, nil
}

func (l layout) names() ([]string, error) {
	dir, err := os.Open(l.path(servicesName))
	if err != nil {
		return nil, fmt.Errorf("read runit directory: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read runit directory: %w", err)
	}
	return names, nil
}

// sweep removes what a crash left of services that were being made or removed.
func (l layout) sweep() error {
	names, err := l.names()
	for _, name := range names {
		path := filepath.Join(l.path(servicesName), name)
		if !strings.HasPrefix(name, ".") {
			continue
		}
		if info, e := os.Stat(path); e == nil && time.Since(info.ModTime()) > staleAfter {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	if err != nil {
		return fmt.Errorf("remove what a crash left: %w", err)
	}
	return nil
}

// serve makes runsvdir serve the directory unless a runsv does already.
func (l layout) serve(s service) error {
	if s.served() {
		return nil
	}
	err := os.Symlink(filepath.Join("..", servicesName, s.id()), l.link(s))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("hand service %s to runsvdir: %w", s.id(), err)
	}
	return nil
}

// keeper returns the runsvdir that was last started here.
func (l layout) keeper() (run, error) {
	var k run
	data, err := os.ReadFile(l.path(keeperName))
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return k, fmt.Errorf("read which runsvdir runs: %w", err)
	}
	if err := json.Unmarshal(data, &k); err != nil {
		k = run{} // one more runsvdir does no harm: it serves only what nobody serves
	}
	return k, nil
}

// InUse reports whether the directory holds processes, running or not.
func InUse(dir string) (bool, error) {
	services, err := layout(dir).services()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(services) > 0, err
}
