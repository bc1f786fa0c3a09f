package oneshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	rt "github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
)

// The roles of this binary, behind Arg.
const (
	guardRole   = "guard"
	programRole = "program"
)

// Descriptors that both roles inherit besides 0 to 2.
const (
	orderFD  = 3 // read end: one order as JSON; for the guard its end means that everything must end
	answerFD = 4 // write end: the guard's result; of the program why it could not be executed, or nothing
	holdFD   = 5 // Command.Hold, of the guard only
)

// The pause between two rounds of killing, in which the dead are reaped and the newly born found: the first while anything new is
// found, doubling up to the last while it is only waited for, as for a process in uninterruptible sleep.
const (
	killGap     = 2 * time.Millisecond
	lastKillGap = time.Second
)

// Exec is the whole life of a guard, and of a program until it is executed. A binary that uses Runner calls it first
// thing in main when os.Args[1] is Arg. isolate puts the calling process under isolation before it becomes the program;
// nil: a command that asks for isolation is refused. Exec never returns.
func Exec(isolate func(*rt.Isolation) error) {
	if len(os.Args) > 2 && os.Args[2] == programRole {
		become(isolate)
	}
	runtime.LockOSThread() // the kernel ties the program to the thread that starts it
	closeOnExec()
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

// closeOnExec marks every descriptor from 3 on, so that the program gets nothing but 0 to 2, whatever was inherited.
func closeOnExec() {
	if unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) != nil { // before Linux 5.11
		unix.CloseOnExec(orderFD)
		unix.CloseOnExec(answerFD)
		unix.CloseOnExec(holdFD)
	}
}

// guard runs the program and returns when nothing of it is left.
func guard(c Command, order io.Reader) result {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return result{Error: fmt.Sprintf("become a child subreaper: %v", err)}
	}
	pid, copied, err := startFor(c)
	if err != nil {
		return result{Error: err.Error()}
	}
	ended := make(chan result, 1)
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		reap(pid, ended)
	}()
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = io.Copy(io.Discard, order) // its end is all that matters
	}()
	var r result
	select {
	case r = <-ended:
	case <-left:
	}
	killAll(reaped)
	<-reaped
	<-copied
	return r
}

// startFor starts the program with what it is to read and write. copied is closed when its output has been handed on.
func startFor(c Command) (pid int, copied <-chan struct{}, err error) {
	done := make(chan struct{})
	if c.Direct {
		close(done)
		pid, err = startProgram(c, [3]*os.File{os.Stdin, os.Stdout, os.Stderr})
		return pid, done, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	output, outputEnd, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	pid, err = startProgram(c, [3]*os.File{null, outputEnd, outputEnd})
	_, _ = null.Close(), outputEnd.Close()
	if err != nil {
		return 0, nil, err
	}
	go func() {
		defer close(done)
		copyOutput(output, os.Stdout, c.OutputBytes)
	}()
	return pid, done, nil
}

// startProgram starts the other role, which becomes the program, and returns once it has.
func startProgram(c Command, stdio [3]*os.File) (pid int, err error) {
	orderEnd, order, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	complaint, complaintEnd, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	pid, err = syscall.ForkExec("/proc/self/exe", []string{os.Args[0], Arg, programRole}, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: []uintptr{stdio[0].Fd(), stdio[1].Fd(), stdio[2].Fd(), orderEnd.Fd(), complaintEnd.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	_, _ = orderEnd.Close(), complaintEnd.Close()
	if err != nil {
		return 0, err
	}
	err = json.NewEncoder(order).Encode(c)
	_ = order.Close()
	text, _ := io.ReadAll(complaint) // nothing when the program runs
	if len(text) > 0 {
		err = errors.New(string(text))
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // our child, so the number is its
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
	return pid, err
}

// become turns this process into the program.
func become(isolate func(*rt.Isolation) error) {
	complain := func(format string, args ...any) {
		fmt.Fprintf(os.NewFile(answerFD, "answer"), format, args...)
		os.Exit(1)
	}
	runtime.LockOSThread() // what is asked of the kernel below is a thread's
	parent := os.Getppid() // the guard: where it is gone already, so is this process
	closeOnExec()
	var c Command
	if err := json.NewDecoder(os.NewFile(orderFD, "order")).Decode(&c); err != nil {
		os.Exit(1)
	}
	switch {
	case c.Isolation == nil:
	case isolate == nil:
		complain("this program cannot isolate what it runs")
	default:
		if err := isolate(c.Isolation); err != nil {
			complain("isolate: %v", err)
		}
	}
	// A change of the user has undone what startProgram asked for (prctl(2)); the guard may have been killed meanwhile.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
		complain("ask to be killed with the guard: %v", err)
	}
	if os.Getppid() != parent {
		os.Exit(1)
	}
	if err := os.Chdir(c.Dir); err != nil {
		complain("change to the working directory: %v", err)
	}
	complain("%v", confine.ExecError(c.Argv[0], syscall.Exec(c.Argv[0], c.Argv, c.Env)))
}

// copyOutput hands on what the program writes, up to the bound; the rest is read and dropped, so that nobody blocks.
func copyOutput(from io.Reader, to io.Writer, bound int64) {
	if bound <= 0 {
		bound = DefaultOutputBytes
	}
	_, err := io.CopyN(to, from, bound)
	if dropped, _ := io.Copy(io.Discard, from); dropped > 0 && err == nil {
		fmt.Fprintf(to, "\n[%d more bytes of output were dropped]\n", dropped)
	}
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
			ended <- result{Exit: Exit{Code: -1, Signal: unix.SignalName(ws.Signal())}}
		case pid == program:
			ended <- result{Exit: Exit{Code: ws.ExitStatus()}}
		}
	}
}

// killAll kills every descendant, again and again, until all are reaped.
func killAll(reaped <-chan struct{}) {
	killed := map[int]uint64{}
	for gap := killGap; ; {
		gap = nextGap(gap, killRound(killed))
		timer := time.NewTimer(gap)
		select {
		case <-reaped:
			timer.Stop()
			return
		case <-timer.C:
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
