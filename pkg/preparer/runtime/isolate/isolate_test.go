package isolate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

func TestParseIDMap(t *testing.T) {
	got, err := parseIDMap([]byte("         0       1000          1\n    100000     100000      65536\n"))
	want := []idRange{{0, 0}, {100000, 165535}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("read %v, %v; want %v", got, err, want)
	}
	for _, tt := range []struct {
		first, last int
		want        bool
	}{{0, 0, true}, {100000, 165535, true}, {100000, 165536, false}, {0, 100000, false}, {1, 1, false}} {
		if covered(got, tt.first, tt.last) != tt.want {
			t.Errorf("%d to %d covered: %t", tt.first, tt.last, !tt.want)
		}
	}
	for _, bad := range []string{"0 0\n", "a 0 1\n", "0 0 b\n"} {
		if got, err := parseIDMap([]byte(bad)); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}

// Probe offers each part or reports it as missing, on any host.
func TestProbe(t *testing.T) {
	h := Probe("rcfarm-test-probe")
	defer func() {
		if err := Remove(h.Cgroup); h.Cgroup != "" && err != nil {
			t.Error(err)
		}
	}()
	t.Logf("%+v", h)
	offers := map[string]bool{"users": h.Users, "tmp": h.Tmp, "cgroup": h.Cgroup != ""}
	if h.Cgroup != "" {
		for _, c := range confine.Controllers() {
			offers[c+" limit"] = slices.Contains(h.Limits, c)
		}
	}
	for what, offered := range offers {
		said := slices.ContainsFunc(h.Without,
			func(s string) bool { return strings.HasPrefix(s, what+": ") && len(s) > len(what)+10 })
		if said == offered {
			t.Errorf("%s: offered %t, reported as missing %t: %q", what, offered, said, h.Without)
		}
	}
	if root := os.Geteuid() == 0; root != h.Users {
		t.Errorf("root: %t, other users: %t", root, h.Users)
	}
	if h.Mapped(0, 1<<40) {
		t.Error("numbers that no kernel has are mapped")
	}
	if entries, _ := filepath.Glob(filepath.Join(h.Cgroup, "probe-*")); h.Cgroup != "" && len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestCgroupKillAndRemove(t *testing.T) {
	h := Probe("rcfarm-test-kill")
	if h.Cgroup == "" {
		if !slices.ContainsFunc(h.Without, func(s string) bool { return strings.HasPrefix(s, "cgroup: ") }) {
			t.Errorf("no cgroup, and no word about it: %q", h.Without)
		}
		return
	}
	defer func() {
		if err := Remove(h.Cgroup); err != nil {
			t.Error(err)
		}
	}()
	dir := filepath.Join(h.Cgroup, "p")
	if err := confine.MakeCgroup(filepath.Join(dir, "below")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `echo $$ > below/cgroup.procs; exec sleep 1000`)
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var in []int
	for len(in) == 0 && t.Context().Err() == nil {
		var err error
		if in, err = Members(dir); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]int{cmd.Process.Pid}, in); diff != "" {
		t.Errorf("members:\n%s", diff)
	}
	if err := Remove(dir); err == nil {
		t.Error("a cgroup with a process in it was removed")
	}
	if err := Kill(dir); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended with %v, want a kill", err)
	}
	for what, err := range map[string]error{
		"remove": Remove(dir), "remove again": Remove(dir),
		"kill what is gone": Kill(dir),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if in, err := Members(dir); err != nil || len(in) > 0 {
		t.Errorf("members of what is gone: %v, %v", in, err)
	}
}

// Without cgroup.kill, Kill kills the processes one by one.
func TestKillWithoutTheFile(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(dir, "below")
	err := os.Mkdir(below, 0o700)
	for _, group := range []string{dir, below} {
		err = errors.Join(err, os.WriteFile(filepath.Join(group, confine.MembersFile), nil, 0o600))
	}
	err = errors.Join(err,
		os.WriteFile(filepath.Join(below, confine.MembersFile), fmt.Appendln(nil, cmd.Process.Pid), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if err := Kill(dir); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended with %v, want a kill", err)
	}
}

// A member that is ending, or of another pid namespace, has the pid 0, which for kill(2) is the caller's own group.
func TestKillSignalsNoGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // stands for a cgroup of a kernel without cgroup.kill
	if err := os.WriteFile(filepath.Join(dir, confine.MembersFile), []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Kill(dir); err != nil {
		t.Error(err)
	}
	if in, err := Members(dir); err != nil || len(in) != 1 {
		t.Errorf("members %v, %v; it counts", in, err)
	}
}
