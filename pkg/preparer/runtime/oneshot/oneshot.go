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
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

// Arg is the first argument of a process that is to call Exec before anything else.
const Arg = "oneshot-exec"

// DefaultOutputBytes bounds what one program may write into its output.
const DefaultOutputBytes = 1 << 20

// killWait bounds how long the caller waits for the guard's last word after it has asked it to kill everything. A
// process in uninterruptible sleep must not hold it up.
const killWait = 10 * time.Second

// clearWait bounds how long the removal of a cgroup waits for what was killed in it.
const clearWait = time.Second

// Errors that a caller may test for.
var (
	// ErrInvalid is returned for a command that cannot be run as it is; nothing was started.
	ErrInvalid = errors.New("not a valid command")
	// ErrNotStarted is returned when the program could not be executed.
	ErrNotStarted = errors.New("not started")
	// ErrSurvived is returned when something of the program did not end although it was killed.
	ErrSurvived = errors.New("not dead yet after " + killWait.String())
)

// Command is one program to run.
type Command struct {
	Argv        []string           `json:"argv"` // absolute path of the program, then its arguments
	Env         []string           `json:"env"`  // KEY=value; nothing else is inherited
	Dir         string             `json:"dir"`  // working directory, absolute
	Isolation   *runtime.Isolation `json:"isolation,omitempty"`
	OutputBytes int64              `json:"output_bytes"` // of stdout and stderr together; more is dropped. Zero: DefaultOutputBytes

	// Direct gives the program Input, Output and Errors themselves, so that nothing is bounded, mixed or dropped.
	Direct bool `json:"direct,omitempty"`

	Input  *os.File `json:"-"` // stdin of a direct program; nil: nothing to read
	Output *os.File `json:"-"` // where stdout and stderr go; nil: nowhere
	Errors *os.File `json:"-"` // stderr of a direct program; nil: Output

	// OwnCgroup says that Isolation.Cgroup is this program's alone: what its guard has left in it is killed, and it is removed.
	OwnCgroup bool `json:"own_cgroup,omitempty"`

	// LockFile is kept open until nothing of the program is left, by who runs it and not by the program: a lock on it is held that
	// long, also where the caller dies. Run closes it in this process.
	LockFile *os.File `json:"-"`
}

// Exit is how a program ended.
type Exit struct {
	Code   int    `json:"code"`             // exit status; -1 when a signal ended it
	Signal string `json:"signal,omitempty"` // such as SIGKILL
}

// OK reports whether the program succeeded.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == "" }

// String says in words how it ended.
func (e Exit) String() string {
	if e.Signal != "" {
		return "was ended by " + e.Signal
	}
	return fmt.Sprintf("ended with exit status %d", e.Code)
}

// result is the guard's last word.
type result struct {
	Exit
	Error string `json:"error,omitempty"` // why the program was not started
}

// Run runs the program and returns how it ended. When ctx ends first, everything of it is killed and the cause of ctx's
// end comes back. Nothing of the program runs when Run returns, unless it returns ErrSurvived. The binary's main calls Exec.
func Run(ctx context.Context, c Command) (Exit, error) {
	if err := c.validate(); err != nil {
		return Exit{}, err
	}
	defer c.clearCgroup()
	if ctx.Err() != nil {
		return Exit{}, context.Cause(ctx)
	}
	order, answer, wait, err := startGuard(c)
	if c.LockFile != nil {
		_ = c.LockFile.Close() // the guard has it, or nothing runs
	}
	if err != nil {
		return Exit{}, fmt.Errorf("%w: %w", ErrNotStarted, err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = order.Close() // the guard takes that for the end
		_ = answer.SetReadDeadline(time.Now().Add(killWait))
	})
	said, readErr := io.ReadAll(answer)
	cut := !stop()
	_, _ = order.Close(), answer.Close()
	if errors.Is(readErr, os.ErrDeadlineExceeded) {
		go wait() // whenever that may be
		return Exit{}, fmt.Errorf("%s: %w: %w", c.Argv[0], ErrSurvived, context.Cause(ctx))
	}
	wait()
	if cut {
		return Exit{}, context.Cause(ctx)
	}
	var r result
	if err := json.Unmarshal(said, &r); err != nil {
		return Exit{}, fmt.Errorf("run %s: its guard ended without a result", c.Argv[0])
	}
	if r.Error != "" {
		return Exit{}, fmt.Errorf("%w: %s", ErrNotStarted, r.Error)
	}
	return r.Exit, nil
}

// clearCgroup ends what is left of a program whose guard was killed, and removes its cgroup. One that stays costs next to
// nothing, and the next run of the program has it again.
func (c *Command) clearCgroup() {
	if !c.OwnCgroup || c.Isolation == nil || c.Isolation.Cgroup == "" {
		return
	}
	_ = isolate.Kill(c.Isolation.Cgroup)
	for deadline := time.Now().Add(clearWait); ; {
		if isolate.Remove(c.Isolation.Cgroup) == nil || time.Now().After(deadline) {
			break
		}
		<-time.After(killGap)
	}
	isolate.Prune(filepath.Dir(c.Isolation.Cgroup))
}

func (c *Command) validate() error {
	switch {
	case len(c.Argv) == 0 || !filepath.IsAbs(c.Argv[0]):
		return fmt.Errorf("%w: argv: %q; allowed: the absolute path of a program, then its arguments", ErrInvalid, c.Argv)
	case !filepath.IsAbs(c.Dir):
		return fmt.Errorf("%w: dir: %q; allowed: an absolute path", ErrInvalid, c.Dir)
	}
	return nil
}

// startGuard starts the guard and sends it its order. wait returns when the guard is gone.
func startGuard(c Command) (order, answer *os.File, wait func(), err error) {
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
	if c.Output != nil {
		cmd.Stdout, cmd.Stderr = c.Output, c.Output
	}
	if c.Direct && c.Input != nil {
		cmd.Stdin = c.Input
	}
	if c.Direct && c.Errors != nil {
		cmd.Stderr = c.Errors
	}
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
