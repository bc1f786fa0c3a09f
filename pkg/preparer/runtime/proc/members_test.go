package proc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// daemon runs with this variable in a session whose leader has ended.
func daemon(t *testing.T, variable string) (st Stat) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "setsid", "-w", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
	cmd.Env = []string{"PATH=/usr/bin:/bin", variable}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	var pid int
	if err == nil {
		line, _ := bufio.NewReader(out).ReadString('\n') // on an error, Sscan below fails
		_, err = fmt.Sscan(strings.TrimSpace(line), &pid)
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		st, err = ReadStat(pid)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Signal(unix.SIGKILL) })
	// The process begins as a copy of the shell. When it executes sleep, the kernel sets the name before the variables.
	consultest.Eventually(t, time.Minute, func() error {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			return err
		}
		variables, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && (string(name) != "sleep\n" || !strings.Contains(string(variables), variable)) {
			err = fmt.Errorf("process %d is %q and has the variables %q", pid, name, variables)
		}
		return err
	})
	return st
}

// After a session's leader has ended, another process may have its number.
func TestSessionNumberAloneProvesNothing(t *testing.T) {
	t.Parallel()
	foreign := daemon(t, "WHO=somebody")
	p, err := Find(foreign.SID, foreign.Start-1) // a process that had this pid before
	if err != nil {
		t.Fatal(err)
	}
	p.Mark = "WHO=me"
	if live, err := p.Signal(&Scanner{}, unix.SIGKILL); live != 0 || err != nil {
		t.Errorf("%d processes are taken for members, %v", live, err)
	}
	if now, err := ReadStat(foreign.PID); err != nil || now.Dead() || now.Start != foreign.Start {
		t.Errorf("the foreign process was ended: %+v, %v", now, err)
	}
}

// A process with the mark is a member, in any session.
func TestMarkedIsAMember(t *testing.T) {
	t.Parallel()
	mark := fmt.Sprintf("WHO=test-%d-of-members", os.Getpid()) // unique for each run of this test
	own := daemon(t, mark)
	p, err := Find(noSuchPID, 1)
	if err != nil {
		t.Fatal(err)
	}
	p.Mark = strings.TrimSuffix(mark, "s")
	if live, err := p.Signal(&Scanner{}, 0); live != 0 || err != nil {
		t.Errorf("%d bear the beginning of it, %v", live, err)
	}
	p.Mark = mark
	if live, err := p.Signal(&Scanner{}, unix.SIGKILL); live != 1 || err != nil {
		t.Errorf("%d members, %v; want one", live, err)
	}
	consultest.Eventually(t, time.Minute, func() error {
		if now, err := ReadStat(own.PID); err == nil && !now.Dead() {
			return fmt.Errorf("it lives: %+v", now)
		}
		return nil
	})
}

const noSuchPID = 1 << 30

// For kill(2), numbers below 1 mean whole groups.
func TestNoSignalBelowOne(t *testing.T) {
	t.Parallel()
	for _, pid := range []int{0, -1} {
		if err := (Stat{PID: pid}).Signal(unix.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}
