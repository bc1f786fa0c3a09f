package proc

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	const tail = " S 2 3 4 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 9 0 12345 0 0"
	for _, name := range []string{"sh", "a b", "(x) R 1", ") S 9 9 9", ""} {
		got, err := parseStat([]byte("77 (" + name + ")" + tail + "\n"))
		want := Stat{PID: 77, PPID: 2, PGID: 3, SID: 4, State: 'S', Threads: 9, Start: 12345}
		if err != nil || got != want {
			t.Errorf("name %q: %+v, %v; want %+v", name, got, err, want)
		}
	}
	for _, bad := range []string{"", "77", "77 (sh)", "77 (sh) S 2", "x (sh)" + tail, strings.Replace("77 (sh)"+tail, "12345", "-", 1)} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was read as %+v", bad, got)
		}
	}
}

func TestScannerSeesItself(t *testing.T) {
	var sc Scanner
	table, err := sc.Scan()
	if err != nil {
		t.Fatal(err)
	}
	self, err := ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range table {
		if st.PID == self.PID && st.Start == self.Start && st.PPID == os.Getppid() && !st.Dead() {
			return
		}
	}
	t.Errorf("this process is not among %d", len(table))
}

// A node's processes are ended together, with one look at the table for all of them in each round.
func TestSignalAll(t *testing.T) {
	var sc Scanner
	var procs []*Process
	for range 3 {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "trap '' TERM; sleep 1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Wait() })
		st, err := ReadStat(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Find(st.PID, st.Start)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		procs = append(procs, p)
	}
	live, errs := SignalAll(&sc, procs, 0)
	for i := range procs {
		if live[i] < 1 || errs[i] != nil {
			t.Errorf("process %d: %d alive, %v; want one or more", i, live[i], errs[i])
		}
	}
	rounds := uint64(1)
	for left := true; left && t.Context().Err() == nil; rounds++ {
		left = false
		live, errs = SignalAll(&sc, procs, unix.SIGKILL)
		for i, p := range procs {
			left = left || live[i] > 0 || !p.Exited()
			if errs[i] != nil {
				t.Error(errs[i])
			}
		}
	}
	if looks := sc.begun.Load(); looks != rounds {
		t.Errorf("%d looks at the table of processes in %d rounds", looks, rounds)
	}
}
