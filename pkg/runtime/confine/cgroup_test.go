package confine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Apply itself is tested by the conformance suite of the runtimes, in real processes.

// What a cgroup is given, in a directory that has the files of one.
func TestApplyLimits(t *testing.T) {
	const all = "cpu memory pids"
	for name, tt := range map[string]struct {
		iso    Isolation
		usable string
		want   string
		passed string // to the groups above it, last: each is written over the one before
	}{
		"none":              {Isolation{}, all, "", ""},
		"all":               {Isolation{CPU: 1500, Memory: 512 << 20, PIDs: 64}, all, "cpu.max=150000 100000 memory.max=536870912 pids.max=64", "+pids"},
		"least CPU":         {Isolation{CPU: 1}, all, "cpu.max=1000 100000", "+cpu"}, // the kernel takes no less
		"a hundredth":       {Isolation{CPU: 10}, all, "cpu.max=1000 100000", "+cpu"},
		"without memory":    {Isolation{CPU: 1000, Memory: 1, PIDs: 1}, "cpu pids", "cpu.max=100000 100000 pids.max=1", "+pids"},
		"other controllers": {Isolation{CPU: 1000, Memory: 1, PIDs: 1}, "hugetlb io", "", "+pids"},
	} {
		dir := filepath.Join(t.TempDir(), "mount", "above", "group")
		files := []string{"cpu.max", "memory.max", "pids.max"}
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
			if passed := read(t, filepath.Join(above, subtreeFile)); (passed == "") != (tt.passed == "") || !strings.HasPrefix(passed, tt.passed) {
				t.Errorf("%s: %q was written to %s, want %q", name, passed, above, tt.passed)
			}
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
