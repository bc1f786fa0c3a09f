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

// daemon starts a process in a session whose leader has ended, with that variable, and returns it and the session's
// number.
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
		line, _ := bufio.NewReader(out).ReadString('\n') // the number is missing then
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
	consultest.Eventually(t, time.Minute, func() error { // first it is a copy of the shell, then it has no variables
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err == nil && string(name) != "sleep\n" {
			err = fmt.Errorf("process %d is %q", pid, name)
		}
		return err
	})
	return st
}

// The number of a session says nothing once its leader has gone: another process may have had it since.
func TestSessionNumberAloneIsNobodys(t *testing.T) {
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

// What bears the mark is the process's, wherever it went.
func TestMarkedIsAMember(t *testing.T) {
	t.Parallel()
	mark := fmt.Sprintf("WHO=test-%d-of-members", os.Getpid()) // another run of this test may be under way
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

// noSuchPID is larger than any pid.
const noSuchPID = 1 << 30

// Numbers below 1 are whole groups to kill(2).
func TestNoSignalBelowOne(t *testing.T) {
	t.Parallel()
	for _, pid := range []int{0, -1} {
		if err := (Stat{PID: pid}).Signal(unix.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}
