// Package health runs the health script of a pod and counts what it says.
package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// MaxOutput bounds how much of a script's output is kept, in bytes: what Consul keeps of a check.
const MaxOutput = 4096

// killWait bounds how long a killed script's output is waited for, which a descendant of its may hold open.
const killWait = 2 * time.Second

// Script is a program whose exit status says how a pod is.
type Script struct {
	Command  []string // absolute path of the program, then its arguments
	Env      []string // KEY=value; nothing else is inherited
	Dir      string   // working directory
	Interval time.Duration
	Timeout  time.Duration // of one run; the whole process group is killed then
	// SuccessThreshold and FailureThreshold are how many equal answers in a row change the verdict; zero means one.
	SuccessThreshold, FailureThreshold int
	// Prepare may change the command before it is started, as to run it as another user. It may be nil.
	Prepare func(*exec.Cmd) error
}

// Verdict is what the answers so far amount to.
type Verdict struct {
	Passing bool
	Output  string // of the last run, or why there was none; at most MaxOutput bytes
}

// Watch runs the script again and again until ctx ends, and tells every verdict. passing is what is known to begin with.
func Watch(ctx context.Context, s Script, passing bool, tell func(Verdict)) {
	count := counter{passing: passing, success: s.SuccessThreshold, failure: s.FailureThreshold}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		output, err := Check(ctx, s)
		if ctx.Err() != nil {
			return // it was killed for no fault of its own
		}
		if err != nil {
			output = clip(err.Error() + "\n" + output)
		}
		tell(Verdict{Passing: count.add(err == nil), Output: output})
		timer.Reset(max(0, s.Interval-time.Since(began)))
	}
}

// Check runs the script once and returns its output and why it does not pass.
func Check(ctx context.Context, s Script) (output string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	cmd.Env, cmd.Dir = s.Env, s.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killWait
	var out head
	cmd.Stdout, cmd.Stderr = &out, &out
	if s.Prepare != nil {
		if err := s.Prepare(cmd); err != nil {
			return "", err
		}
	}
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left behind; mostly nothing
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("the health script took longer than %s", s.Timeout)
	} else if err != nil {
		err = fmt.Errorf("the health script does not pass: %w", err)
	}
	return out.kept.String(), err
}

// head keeps the first bytes that are written to it.
type head struct{ kept bytes.Buffer }

func (h *head) Write(p []byte) (int, error) {
	h.kept.Write(p[:min(len(p), MaxOutput-h.kept.Len())])
	return len(p), nil
}

func clip(s string) string { return s[:min(len(s), MaxOutput)] }

// counter turns answers into a verdict, as Consul does for the checks that it runs itself.
type counter struct {
	passing          bool
	success, failure int // thresholds
	run              int // answers in a row that contradict the verdict
}

func (c *counter) add(pass bool) (passing bool) {
	if pass == c.passing {
		c.run = 0
		return c.passing
	}
	threshold := c.failure
	if pass {
		threshold = c.success
	}
	if c.run++; c.run >= threshold {
		c.passing, c.run = pass, 0
	}
	return c.passing
}
