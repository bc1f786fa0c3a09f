package confine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A normal directory has the files that applyLimits writes. Conformance tests try Apply in real processes.
func TestApplyLimits(t *testing.T) {
	const all = "cpu memory pids"
	for name, tt := range map[string]struct {
		iso    Isolation
		usable string
		want   string
		passed string // last controller written to subtree_control above
	}{
		"none": {Isolation{}, all, "", ""},
		"all": {
			Isolation{CPU: 1500, Memory: 512 << 20, PIDs: 64},
			all,
			"cpu.max=150000 100000 memory.max=536870912 memory.swap.max=0 memory.oom.group=1 pids.max=64", "+pids",
		},
		"least CPU":   {Isolation{CPU: 1}, all, "cpu.max=1000 100000", "+cpu"}, // the kernel's minimum
		"a hundredth": {Isolation{CPU: 10}, all, "cpu.max=1000 100000", "+cpu"},
		"without memory": {
			Isolation{CPU: 1000, Memory: 1, PIDs: 1},
			"cpu pids",
			"cpu.max=100000 100000 pids.max=1", "+pids",
		},
		"other controllers": {Isolation{CPU: 1000, Memory: 1, PIDs: 1}, "hugetlb io", "", "+pids"},
	} {
		dir := filepath.Join(t.TempDir(), "mount", "above", "group")
		files := []string{"cpu.max", "memory.max", "memory.swap.max", "memory.oom.group", "pids.max"}
		makeFiles(t, dir, append(files, controllersFile)...)
		makeFiles(t, filepath.Dir(dir), controllersFile, subtreeFile)
		makeFiles(t, filepath.Dir(filepath.Dir(dir)), controllersFile, subtreeFile)
		if err := os.WriteFile(filepath.Join(dir, controllersFile), []byte(tt.usable+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := applyLimits(dir, limits(tt.iso)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, file := range files {
			if text := read(t, filepath.Join(dir, file)); text != "" {
				got = append(got, file+"="+text)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		for _, above := range []string{filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))} {
			if passed := read(t, filepath.Join(above, subtreeFile)); (passed == "") != (tt.passed == "") ||
				!strings.HasPrefix(passed, tt.passed) {
				t.Errorf("%s: %q was written to %s, want %q", name, passed, above, tt.passed)
			}
		}
	}
}

// Cap limits all processes in and below the cgroup together, without memory.oom.group or a limit of swap. A Cap without
// limits removes an earlier one.
func TestCap(t *testing.T) {
	mount := filepath.Join(t.TempDir(), "mount")
	dir := filepath.Join(mount, "rcfarm", "n1")
	files := []string{"cpu.max", "memory.max", "memory.swap.max", "memory.oom.group"}
	makeFiles(t, dir, append(files, controllersFile)...)
	for _, above := range []string{mount, filepath.Dir(dir)} {
		makeFiles(t, above, controllersFile, subtreeFile)
	}
	if err := os.WriteFile(filepath.Join(dir, controllersFile), []byte("cpu memory pids\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cpu, memory int64
		want        string
	}{
		{3500, 1 << 30, "350000 100000 1073741824  "},
		{0, 0, "max max  "},
	} {
		for _, file := range files { // the kernel replaces the content; a normal file keeps the rest of a longer text
			if err := os.Truncate(filepath.Join(dir, file), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := Cap(dir, tt.cpu, tt.memory); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, file := range files {
			got = append(got, read(t, filepath.Join(dir, file)))
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%d, %d: %q, want %q", tt.cpu, tt.memory, got, tt.want)
		}
	}
}

// If the kernel lacks memory.swap.max or memory.oom.group, the limit is set without them. Without memory.max,
// applyLimits returns an error.
func TestMissingFiles(t *testing.T) {
	for missing, fails := range map[string]bool{
		"memory.swap.max": false, "memory.oom.group": false,
		"memory.max": true,
	} {
		dir := filepath.Join(t.TempDir(), "mount", "group")
		makeFiles(t, dir, "memory.max", "memory.swap.max", "memory.oom.group", controllersFile)
		makeFiles(t, filepath.Dir(dir), controllersFile, subtreeFile)
		err := errors.Join(os.Remove(filepath.Join(dir, missing)),
			os.WriteFile(filepath.Join(dir, controllersFile), []byte("memory\n"), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		if err := applyLimits(dir, limits(Isolation{Memory: 1 << 20})); (err != nil) != fails {
			t.Errorf("without %s: %v", missing, err)
		}
	}
}

func makeFiles(t *testing.T, dir string, files ...string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestSplit(t *testing.T) {
	mount := t.TempDir()
	for _, dir := range []string{mount, filepath.Join(mount, "a")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, controllersFile), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]string{"a": "/a", "a/b": "/a/b", "a/not/there": "/a/not/there"} {
		if at, group, err := SplitCgroup(filepath.Join(mount, dir)); at != mount || group != want || err != nil {
			t.Errorf("%s: %q, %q, %v; want %q below %q", dir, at, group, err, want, mount)
		}
	}
	if at, group, err := SplitCgroup("/no/such/mount"); err == nil {
		t.Errorf("split into %q and %q", at, group)
	}
}
