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

// Descriptors that a guard inherits besides 0 to 2, and behind them Command.LockFile.
const (
	orderFD  = 3 // read end: one order as JSON; its end means that everything must end
	answerFD = 4 // write end: the result
)

// The pause between two rounds of killing, in which the dead are reaped and the newly born found: the first while anything new is
// found, doubling up to the last while it is only waited for, as for a process in uninterruptible sleep.
const (
	killGap     = 2 * time.Millisecond
	lastKillGap = time.Second
)

// Exec is the whole life of a guard. A binary that uses Run calls it first thing in main when os.Args[1] is Arg. It never returns.
func Exec() {
	goruntime.LockOSThread()  // the kernel ties the program to the thread that starts it
	_ = confine.CloseOnExec() // the stub does so too
	order := os.NewFile(orderFD, "order")
	var c Command
	if err := json.NewDecoder(order).Decode(&c); err != nil {
		os.Exit(1) // nobody is left to be told
	}
	data, err := json.Marshal(guard(c, order))
	if err == nil {
		_, err = os.NewFile(answerFD, "answer").Write(data)
	}
	if err != nil {
		syscall.Exit(1)
	}
	syscall.Exit(0) // at once: os.Exit of a binary built with the race detector waits a second
}

// guard runs the program and returns when nothing of it is left. The end of order ends it at any moment.
func guard(c Command, order io.Reader) result {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return result{Error: fmt.Sprintf("become a child subreaper: %v", err)}
	}
	// From before the start on: a pod can stop the stub of its command, and then only the guard can end it.
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = io.Copy(io.Discard, order) // its end is all that matters
	}()
	started, err := stub.Start([3]*os.File{os.Stdin, os.Stdout, os.Stderr}, syscall.SIGKILL)
	if err != nil {
		return result{Error: err.Error()}
	}
	defer started.Close()
	_ = unix.Close(started.PIDFD) // whoever is not reaped has its number
	ended := make(chan result, 1)
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		reap(started.PID, ended)
	}()
	var r result
	err = started.Release(stub.Order{Command: c.Argv, Env: c.Env, Dir: c.Dir, Isolation: c.Isolation, Guarded: true}, left)
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

// reap waits for every child, its own and inherited ones, until there is none. How the program ended is sent.
func reap(program int, ended chan<- result) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return // ECHILD: nothing is left
		case pid == program && ws.Signaled():
			ended <- result{Exit: runtime.Exit{Code: -1, Signal: unix.SignalName(ws.Signal())}}
		case pid == program:
			ended <- result{Exit: runtime.Exit{Code: ws.ExitStatus()}}
		}
	}
}

// killAll kills every descendant, again and again, until all are reaped.
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

// nextGap returns the pause after a round of killing. found says that there was something new.
func nextGap(last time.Duration, found bool) time.Duration {
	if found {
		return killGap
	}
	return min(2*last, lastKillGap)
}

// killRound kills all descendants that are there. It reports whether one of them was not among those killed before, which are known by
// pid with their start.
func killRound(killed map[int]uint64) (found bool) {
	var scanner proc.Scanner
	table, _ := scanner.Scan() // what is missing is found in the next round
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
