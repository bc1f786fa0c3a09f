package oneshot

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inheritArg makes the test binary change its own limits and levels, and run a program that prints the program's limits
// and levels.
const inheritArg = "inherit"

// inherited has, by the name in docs/running.md, the shell command that prints what a program inherits, and the
// caller's value. Values that are reset are in reset.
func inherited() map[string][2]string {
	return map[string][2]string{
		"limits (`ulimit -a`)":    {"ulimit -n", "333"},
		"CPU affinity":            {"sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status", "0"},
		"scheduling policy":       {"sed 's/.*) //' /proc/self/stat | cut -d' ' -f39", "3"},
		"I/O priority (`ionice`)": {"ionice | tr -d ' '", "idle"},
		"umask":                   {"umask", "0027"},
		"session keyring": {"sed -n 's/.*_ses: .*/1/p; s/.* keyring *\\(rcfarm-test\\):.*/\\1/p' /proc/keys " +
			"| sort -u | tail -n 1", "rcfarm-test"},
		"timer slack":                          {"cat /proc/self/timerslack_ns", "77777"},
		"namespaces, and cgroups of version 1": {"readlink /proc/self/ns/uts", ""},
	}
}

func reset() map[string][2]string {
	return map[string][2]string{
		"`oom_score_adj`": {"cat /proc/self/oom_score_adj", "0"},
		"`nice`":          {"nice", "0"},
	}
}

func runInherited() error {
	goruntime.LockOSThread() // most settings belong to a thread, and its child inherits them
	var cpus unix.CPUSet
	cpus.Set(0)
	for name, err := range map[string]error{
		"limits": unix.Setrlimit(unix.RLIMIT_NOFILE,
			&unix.Rlimit{Cur: 333, Max: 333}), "affinity": unix.SchedSetaffinity(0, &cpus),
		"oom": os.WriteFile("/proc/self/oom_score_adj", []byte("300"),
			0), "nice": unix.Setpriority(unix.PRIO_PROCESS, 0, 7),
		"policy": unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH, Nice: 7},
			0),
		"slack": unix.Prctl(unix.PR_SET_TIMERSLACK, 77777, 0, 0, 0),
	} {
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	const whoProcess, idle = 1, 3 << 13 // ioprio_set(2)
	if _, _, no := unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, idle); no != 0 {
		return fmt.Errorf("ionice: %w", no)
	}
	if _, err := unix.KeyctlJoinSessionKeyring("rcfarm-test"); err != nil {
		return fmt.Errorf("keyring: %w", err)
	}
	unix.Umask(0o027)
	var script strings.Builder
	for _, all := range []map[string][2]string{inherited(), reset()} {
		for name, what := range all {
			fmt.Fprintf(&script, "printf '%%s\t%%s\n' '%s' \"$(%s)\"\n", name, what[0])
		}
	}
	c := Command{Argv: []string{"/bin/sh", "-c", script.String()}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}
	c.Streams.Output, c.Streams.Errors = os.Stdout, os.Stderr
	_, err := Run(context.Background(), c)
	return err
}

// Programs inherit from the preparer exactly what docs/running.md describes.
func TestWhatIsInherited(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	caller := exec.Command(os.Args[0], inheritArg)
	caller.Stderr = &errs
	out, _ := caller.Output() // it prints the values and exits with 1
	got := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		got[name] = value
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "running.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "| inherited from the preparer |")
	table, _, _ = strings.Cut(table, "\n\n")
	var named []string
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); len(cells) > 1 && cells[0] != "| ---" {
			named = append(named, strings.TrimPrefix(cells[0], "| "))
		}
	}
	for _, all := range []map[string][2]string{inherited(), reset()} {
		for name, what := range all {
			if want := what[1]; want != "" && got[name] != want {
				t.Errorf("%s is %q, want %q", name, got[name], want)
			}
			if !slices.Contains(named, name) {
				t.Errorf("docs/running.md does not name %q among %q", name, named)
			}
		}
	}
	if n := len(inherited()) + len(reset()); len(named) != n {
		t.Errorf("docs/running.md names %d, want %d: %q", len(named), n, named)
	}
	if t.Failed() {
		t.Logf("%s", errs.Bytes())
	}
}
