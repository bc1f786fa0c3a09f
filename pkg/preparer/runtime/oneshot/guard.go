package oneshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/stub"
)

// Descriptors that a guard inherits besides 0 to 2; Command.LockFile follows them.
const (
	orderFD  = 3 // read end: one order as JSON; at its end the guard kills all processes
	answerFD = 4 // write end: the result
)

// The pause between two rounds of killing is killGap while rounds find new processes. Then it doubles up to
// lastKillGap, for example for a process in uninterruptible sleep.
const (
	killGap     = 2 * time.Millisecond
	lastKillGap = time.Second
)

// Exec runs the guard, and never returns. The main of a binary that uses Run calls it first if os.Args[1] is Arg.
func Exec() {
	goruntime.LockOSThread()  // the kernel kills the program when the thread that starts it ends
	_ = confine.CloseOnExec() // if this fails, the stub still does it
	order := os.NewFile(orderFD, "order")
	var c Command
	if err := json.NewDecoder(order).Decode(&c); err != nil {
		os.Exit(1) // no process is left to report to
	}
	data, err := json.Marshal(guard(c, order))
	if err == nil {
		_, err = os.NewFile(answerFD, "answer").Write(data)
	}
	if err != nil {
		syscall.Exit(1)
	}
	syscall.Exit(0) // not os.Exit, which waits a second in a binary with the race detector
}

// guard returns when no process of the program is left.
func guard(c Command, order io.Reader) result {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return result{Error: fmt.Sprintf("become a child subreaper: %v", err)}
	}
	// This begins before the start of the stub, because a pod can stop the stub of its command by a signal. Then only
	// the guard can end it.
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = io.Copy(io.Discard, order) // only the end of order matters
	}()
	started, err := stub.Start([3]*os.File{os.Stdin, os.Stdout, os.Stderr}, syscall.SIGKILL)
	if err != nil {
		return result{Error: err.Error()}
	}
	defer started.Close()
	_ = unix.Close(started.PIDFD) // not needed, because a pid is not used again before its process is reaped
	ended := make(chan result, 1)
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		reap(started.PID, ended)
	}()
	var r result
	err = started.Release(stub.Order{Command: c.Argv, Env: c.Env, Dir: c.Dir, Isolation: c.Isolation, Guarded: true},
		left)
	if err != nil {
		var missing *stub.NoProgramError
		r = result{Error: err.Error(), NoProgram: errors.As(err, &missing)}
	} else {
		select {
		case r = <-ended:
		case <-left:
		}
	}
	killAll(reaped)
	<-reaped
	return r
}

// reap waits until no child is left, own or inherited.
func reap(program int, ended chan<- result) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return // ECHILD: no child is left
		case pid == program && ws.Signaled():
			ended <- result{Exit: runtime.Exit{Code: -1, Signal: unix.SignalName(ws.Signal())}}
		case pid == program:
			ended <- result{Exit: runtime.Exit{Code: ws.ExitStatus()}}
		}
	}
}

func killAll(reaped <-chan struct{}) {
	killed := map[int]uint64{}
	for gap := killGap; ; {
		gap = nextGap(gap, killRound(killed))
		select {
		case <-reaped:
			return
		case <-time.After(gap):
		}
	}
}

// found: the round found a new process.
func nextGap(last time.Duration, found bool) time.Duration {
	if found {
		return killGap
	}
	return min(2*last, lastKillGap)
}

// killRound kills all descendants that exist now. found: it killed one that no earlier round had killed. killed has the
// start times by pid.
func killRound(killed map[int]uint64) (found bool) {
	var scanner proc.Scanner
	table, _ := scanner.Scan() // after an error, the next round finds the processes
	family := map[int]bool{os.Getpid(): true}
	for grown := true; grown; {
		grown = false
		for _, p := range table {
			if family[p.PPID] && !family[p.PID] {
				family[p.PID], grown = true, true
			}
		}
	}
	for _, p := range table {
		if family[p.PID] && p.PID != os.Getpid() {
			_ = p.Signal(unix.SIGKILL) // the next round tries again
			found = found || killed[p.PID] != p.Start
			killed[p.PID] = p.Start
		}
	}
	return found
}
