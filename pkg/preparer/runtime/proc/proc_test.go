package proc

import (
	"os"
	"os/exec"
	"strings"
	"sync"
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
	for _, bad := range []string{
		"", "77", "77 (sh)", "77 (sh) S 2", "x (sh)" + tail,
		strings.Replace("77 (sh)"+tail, "12345", "-", 1),
	} {
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

// Concurrent callers share one read.
func TestScansAreShared(t *testing.T) {
	const callers = 64
	var sc Scanner
	var entered, done sync.WaitGroup
	sc.mu.Lock() // simulates a read under way
	for range callers {
		entered.Add(1)
		done.Go(func() {
			entered.Done()
			if _, err := sc.Scan(); err != nil {
				t.Error(err)
			}
		})
	}
	entered.Wait()
	sc.mu.Unlock()
	done.Wait()
	if looks := sc.begun.Load(); looks >= callers/2 {
		t.Errorf("%d looks at the table of processes for %d callers", looks, callers)
	}
}

// Several processes can be ended at once.
func TestSignal(t *testing.T) {
	var sc Scanner
	var ending sync.WaitGroup
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
		ending.Go(func() {
			if live, err := p.Signal(&sc, 0); live < 1 || err != nil {
				t.Errorf("%d alive, %v; want one or more", live, err)
			}
			for left := true; left && t.Context().Err() == nil; {
				live, err := p.Signal(&sc, unix.SIGKILL)
				left = live > 0 || !p.Exited()
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	ending.Wait()
}
