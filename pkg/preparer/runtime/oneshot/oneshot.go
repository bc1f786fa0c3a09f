// Package oneshot runs a program once, to its end, and leaves nothing of it behind.
//
// Between the caller and the program stands a guard: this binary, started again. The guard is the subreaper of all that
// the program starts, so that not even a process that made itself a session of its own escapes it, and it kills all of
// them when the program has ended, when the caller asks for it, and when the caller dies, by kill -9 too: its order comes
// through a pipe whose other end the caller holds for as long as the program may run.
package oneshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// Arg is the first argument of a process that is to call Exec before anything else.
const Arg = "oneshot-exec"

// killWait bounds how long the caller waits for the guard's last word after it has asked it to kill everything. A
// process in uninterruptible sleep must not hold it up.
const killWait = 10 * time.Second

// Command is one program to run.
type Command struct {
	Argv      []string             `json:"argv"` // absolute path of the program, then its arguments
	Env       []string             `json:"env"`  // KEY=value; nothing else is inherited
	Dir       string               `json:"dir"`  // working directory, absolute
	Isolation *confine.Confinement `json:"isolation,omitempty"`
	Streams   runtime.Streams      `json:"-"`

	// LockFile is kept open until nothing of the program is left, by who runs it and not by the program: a lock on it is held that
	// long, also where the caller dies. Run closes it in this process.
	LockFile *os.File `json:"-"`
}

// result is the guard's last word.
type result struct {
	runtime.Exit
	Error     string `json:"error,omitempty"` // why the program was not started
	NoProgram bool   `json:"no_program,omitempty"`
}

// Run runs the program and returns how it ended. When ctx ends first, everything of it is killed and the cause of ctx's
// end comes back. Nothing of the program runs when Run returns, unless it returns runtime.ErrSurvived. The binary's main calls Exec.
func Run(ctx context.Context, c Command) (runtime.Exit, error) {
	if err := c.validate(); err != nil {
		return runtime.Exit{}, err
	}
	if ctx.Err() != nil {
		return runtime.Exit{}, context.Cause(ctx)
	}
	out, errs := sinks(c.Streams)
	defer errs.shut()
	defer out.shut()
	order, answer, wait, err := startGuard(c, out, errs)
	if c.LockFile != nil {
		_ = c.LockFile.Close() // the guard has it, or nothing runs
	}
	if err != nil {
		return runtime.Exit{}, fmt.Errorf("%w: %w", runtime.ErrNotStarted, err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = order.Close() // the guard takes that for the end
		_ = answer.SetReadDeadline(time.Now().Add(killWait))
	})
	said, readErr := io.ReadAll(answer)
	cut := !stop()
	_, _ = order.Close(), answer.Close()
	var r result
	noResult := json.Unmarshal(said, &r) != nil
	if noResult {
		go wait() // whenever that may be: something of the program may hold its streams
	} else {
		wait()
	}
	switch {
	case errors.Is(readErr, os.ErrDeadlineExceeded):
		return runtime.Exit{}, fmt.Errorf("%s: %w after %s: %w", c.Argv[0], runtime.ErrSurvived, killWait, context.Cause(ctx))
	case cut:
		return runtime.Exit{}, context.Cause(ctx)
	case noResult:
		return runtime.Exit{}, fmt.Errorf("run %s: its guard ended without a result", c.Argv[0])
	case r.NoProgram:
		return runtime.Exit{}, fmt.Errorf("%w: %s", runtime.ErrNoProgram, r.Error)
	case r.Error != "":
		return runtime.Exit{}, fmt.Errorf("%w: %s", runtime.ErrNotStarted, r.Error)
	}
	return r.Exit, nil
}

func (c *Command) validate() error {
	switch {
	case len(c.Argv) == 0 || !filepath.IsAbs(c.Argv[0]):
		return fmt.Errorf("%w: argv: %q; allowed: the absolute path of a program, then its arguments", runtime.ErrInvalid, c.Argv)
	case !filepath.IsAbs(c.Dir):
		return fmt.Errorf("%w: dir: %q; allowed: an absolute path", runtime.ErrInvalid, c.Dir)
	}
	return nil
}

// startGuard starts the guard and sends it its order. wait returns when the guard is gone.
func startGuard(c Command, out, errs *sink) (order, answer *os.File, wait func(), err error) {
	var files []*os.File
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
		}
	}()
	orderEnd, order, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	files = append(files, orderEnd, order)
	answer, answerEnd, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	files = append(files, answer, answerEnd)
	cmd := exec.Command("/proc/self/exe", Arg) //nolint:noctx // it ends with the pipe
	cmd.Args[0] = os.Args[0]
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.ExtraFiles = []*os.File{orderEnd, answerEnd}
	if c.LockFile != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, c.LockFile)
	}
	if in := c.Streams.Input; in != nil { // a nil *os.File is not a nil reader
		cmd.Stdin = in
	}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's signals are for the caller
	if err := cmd.Start(); err != nil {
		return nil, nil, nil, fmt.Errorf("start a guard: %w", err)
	}
	_, _ = orderEnd.Close(), answerEnd.Close()
	if err := json.NewEncoder(order).Encode(c); err != nil && !errors.Is(err, unix.EPIPE) { // a guard that died says nothing, which is noticed
		_, _ = order.Close(), answer.Close()
		_ = cmd.Wait()
		return nil, nil, nil, fmt.Errorf("send the order: %w", err)
	}
	return order, answer, func() { _ = cmd.Wait() }, nil
}
