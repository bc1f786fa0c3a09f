// Package oneshot runs a program once, to its end, and leaves no process of the program behind.
//
// Between the caller and the program there is a process called the guard: this binary, started again. It is the
// subreaper of all processes that the program starts. So a process cannot escape the guard, even in a session of its
// own. The guard kills all these processes when the program has ended, when the caller asks for it, and when the caller
// dies, even by kill -9. The guard notices the last two because its pipe from the caller ends.
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

// Arg is the first argument of a process that must call Exec before anything else.
const Arg = "oneshot-exec"

// killWait bounds the wait for the guard's kills. A process in uninterruptible sleep can take longer.
const killWait = 10 * time.Second

// Command is one program to run.
type Command struct {
	Argv      []string             `json:"argv"` // absolute path of the program, then its arguments
	Env       []string             `json:"env"`  // KEY=value; nothing else is inherited
	Dir       string               `json:"dir"`  // working directory, absolute
	Isolation *confine.Confinement `json:"isolation,omitempty"`
	Streams   runtime.Streams      `json:"-"`

	// LockFile stays open in the guard until no process of the program is left, even if the caller dies. So a lock on
	// it is held until then. The program does not have it open. Run closes it in this process.
	LockFile *os.File `json:"-"`
}

type result struct {
	runtime.Exit
	Error     string `json:"error,omitempty"` // why the program was not started
	NoProgram bool   `json:"no_program,omitempty"`
}

// Run runs the program. If ctx ends first, Run kills all its processes and returns the cause. When Run returns, no
// process of the program runs, with two exceptions: the error is runtime.ErrSurvived, or something else killed the
// guard of the program. The binary's main must call Exec.
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
		_ = c.LockFile.Close() // the guard has the file open, or nothing was started
	}
	if err != nil {
		return runtime.Exit{}, fmt.Errorf("%w: %w", runtime.ErrNotStarted, err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = order.Close() // for the guard, the order ends
		_ = answer.SetReadDeadline(time.Now().Add(killWait))
	})
	text, readErr := io.ReadAll(answer)
	cut := !stop()
	_, _ = order.Close(), answer.Close()
	var r result
	noResult := json.Unmarshal(text, &r) != nil
	if noResult {
		go wait() // in the background, because a process of the program may keep the streams open
	} else {
		wait()
	}
	switch {
	case errors.Is(readErr, os.ErrDeadlineExceeded):
		return runtime.Exit{}, fmt.Errorf("%s: %w after %s: %w", c.Argv[0], runtime.ErrSurvived, killWait,
			context.Cause(ctx))
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
		return fmt.Errorf("%w: argv: %q; allowed: the absolute path of a program, then its arguments",
			runtime.ErrInvalid, c.Argv)
	case !filepath.IsAbs(c.Dir):
		return fmt.Errorf("%w: dir: %q; allowed: an absolute path", runtime.ErrInvalid, c.Dir)
	}
	return nil
}

// wait returns when the guard has ended.
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
	cmd := exec.Command("/proc/self/exe", Arg) //nolint:noctx // it ends when the pipe is closed
	cmd.Args[0] = os.Args[0]
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.ExtraFiles = []*os.File{orderEnd, answerEnd}
	if c.LockFile != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, c.LockFile)
	}
	if in := c.Streams.Input; in != nil { // a nil *os.File would not be a nil io.Reader
		cmd.Stdin = in
	}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that a terminal's signals reach only the caller
	if err := cmd.Start(); err != nil {
		return nil, nil, nil, fmt.Errorf("start a guard: %w", err)
	}
	_, _ = orderEnd.Close(), answerEnd.Close()
	// If the guard has died, the write fails with EPIPE. Run notices it, because no answer arrives.
	if err := json.NewEncoder(order).Encode(c); err != nil && !errors.Is(err, unix.EPIPE) {
		_, _ = order.Close(), answer.Close()
		_ = cmd.Wait()
		return nil, nil, nil, fmt.Errorf("send the order: %w", err)
	}
	return order, answer, func() { _ = cmd.Wait() }, nil
}
