package proc

import (
	"os"
	"strings"
	"testing"
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
