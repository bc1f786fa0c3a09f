package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/logfile"
	"github.com/rcfarm/rcfarm/pkg/runtime/stub"
)

// stubTimeout bounds how long a stub may take to become its program. It has next to nothing to do: a stub that takes
// longer is stopped or cannot read its binary.
const stubTimeout = 30 * time.Second

// maxReport bounds what a stub may say about its failure, in bytes.
const maxReport = 4096

// stubFiles are the descriptors of one start: five for the stub and two ends of pipes for the supervisor.
type stubFiles struct {
	stub   []*os.File // in the order of their numbers in the stub
	order  *os.File   // write end: sending the order lets the stub go, closing it without makes it exit
	result *os.File   // read end: the stub's complaint, or nothing when the program runs
}

func openStubFiles(spec runtime.Spec) (*stubFiles, error) {
	f := &stubFiles{}
	if err := f.open(spec); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *stubFiles) open(spec runtime.Spec) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	f.stub = append(f.stub, null)
	log, err := os.OpenFile(spec.LogPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	f.stub = append(f.stub, log, log)
	if err := logfile.Share(log, spec.Isolation); err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	logfile.MarkStart(log, time.Now())
	orderEnd, order, err := os.Pipe()
	if err != nil {
		return err
	}
	f.stub, f.order = append(f.stub, orderEnd), order
	result, resultEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	f.stub, f.result = append(f.stub, resultEnd), result
	return nil
}

func (f *stubFiles) closeStub() {
	for _, file := range f.stub {
		_ = file.Close() // the log is there twice: the second close does nothing
	}
	f.stub = nil
}

func (f *stubFiles) close() {
	f.closeStub()
	for _, file := range []*os.File{f.order, f.result} {
		if file != nil {
			_ = file.Close()
		}
	}
}

// release sends the order and returns nil once the program runs in place of the stub.
func (f *stubFiles) release(o stub.Order) error {
	deadline := time.Now().Add(stubTimeout)
	if err := errors.Join(f.order.SetDeadline(deadline), f.result.SetDeadline(deadline)); err != nil {
		return fmt.Errorf("start the program: %w", err)
	}
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("start the program: %w", err)
	}
	_, err = f.order.Write(data)
	err = errors.Join(err, f.order.Close())
	complaint, readErr := io.ReadAll(io.LimitReader(f.result, maxReport))
	if len(complaint) > 0 {
		return errors.New(string(complaint))
	}
	if err = errors.Join(err, readErr); err != nil {
		return fmt.Errorf("start the program: %w", err)
	}
	return nil
}

// launch starts the program. Before the stub may become the program, its pid is on disk; if anything goes wrong on
// the way, nothing of it runs when launch returns.
func (p *process) launch() (*child, error) {
	spec := p.current().Spec
	files, err := openStubFiles(spec)
	if err != nil {
		return nil, err
	}
	defer files.close()
	c, err := p.sup.family.fork(files.stub)
	files.closeStub() // ours would keep the pipes open beyond the stub's life
	if err != nil {
		return nil, err
	}
	c.Cgroup = spec.Cgroup()
	err = p.commit(runtime.Starting, "", func(r *record) {
		r.PID, r.Start, r.Boot, r.StartedAt = c.PID, c.Start, p.sup.boot, time.Now().UTC()
		r.Starts++
	})
	if err == nil {
		err = files.release(stub.Order{Command: spec.Command, Env: spec.Env, Dir: spec.Dir, Isolation: spec.Isolation})
	}
	if err != nil {
		p.discard(c)
		return nil, err
	}
	return c, nil
}

// discard ends a stub that did not become its program. Nobody else knows of it, so this need not be interruptible.
func (p *process) discard(c *child) {
	_ = unix.Kill(-c.PID, unix.SIGKILL)
	_ = c.Wait(context.Background())
	c.status("")
	p.sup.family.forget(c.PID)
	c.Close()
	p.removeCgroup(c)
}
