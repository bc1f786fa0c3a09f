package isolate_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

// A normal directory has the files that Relimit writes. Conformance tests try the effect, if the host has the
// controllers.
func TestRelimit(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	held := map[string]string{
		"cpu.max": "50000 100000", "memory.max": "67108864", "memory.swap.max": "0",
		"memory.oom.group": "1", "memory.current": "33554432",
	}
	without := func(files ...string) map[string]string {
		out := maps.Clone(held)
		for _, file := range files {
			delete(out, file)
		}
		return out
	}
	with := func(file, text string) map[string]string {
		out := without()
		out[file] = text
		return out
	}
	for name, tt := range map[string]struct {
		has    map[string]string
		iso    confine.Isolation
		want   string // cpu.max memory.max memory.swap.max memory.oom.group; "-": missing
		inUse  bool
		broken string // a file that cannot be written
	}{
		"more": {
			has: held, iso: confine.Isolation{CPU: 1500, Memory: 128 * mib},
			want: "150000 100000|134217728|0|1",
		},
		"less": {
			has: held, iso: confine.Isolation{CPU: 100, Memory: 40 * mib},
			want: "10000 100000|41943040|0|1",
		},
		"the same": {
			has: held, iso: confine.Isolation{CPU: 500, Memory: 64 * mib},
			want: "50000 100000|67108864|0|1",
		},
		"none any more": {has: held, iso: confine.Isolation{}, want: "max 100000|max|max|0"},
		"below what is used": {
			has: held, iso: confine.Isolation{CPU: 100, Memory: 16 * mib},
			want: "50000 100000|67108864|0|1", inUse: true,
		},
		"just above the use": {
			has: held, iso: confine.Isolation{CPU: 100, Memory: 34 * mib},
			want: "50000 100000|67108864|0|1", inUse: true,
		},
		"files can be dropped": {
			has: with("memory.stat", "anon 1\ninactive_file 25165824\n"),
			iso: confine.Isolation{CPU: 500, Memory: 16 * mib}, want: "50000 100000|16777216|0|1",
		},
		"a first limit": {
			has: with("memory.max", "max"), iso: confine.Isolation{CPU: 500, Memory: 16 * mib},
			want: "50000 100000|max|0|1", inUse: true,
		},
		"more, and little left": {
			has: with("memory.current", "67000000"),
			iso: confine.Isolation{CPU: 500, Memory: 65 * mib}, want: "50000 100000|68157440|0|1",
		},
		"no memory controller": {
			has: without("memory.max", "memory.swap.max", "memory.oom.group", "memory.current"),
			iso: confine.Isolation{CPU: 100, Memory: 1}, want: "10000 100000|-|-|-",
		},
		"no CPU controller": {
			has: without("cpu.max"), iso: confine.Isolation{CPU: 100, Memory: 40 * mib},
			want: "-|41943040|0|1",
		},
		"an old kernel": {
			has: without("memory.oom.group"), iso: confine.Isolation{CPU: 500},
			want: "50000 100000|max|max|-",
		},
		"gone": {has: nil, iso: confine.Isolation{CPU: 500}, want: "-|-|-|-"},
		"refused half way": {
			has: with("memory.current", "no number"),
			iso: confine.Isolation{
				CPU:    100,
				Memory: 16 * mib,
			}, want: "50000 100000|67108864|0|1", broken: "memory.current",
		},
	} {
		dir := filepath.Join(t.TempDir(), "group")
		if tt.has != nil {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for file, text := range tt.has {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := isolate.Relimit(dir, tt.iso)
		if (err != nil) != (tt.inUse || tt.broken != "") || errors.Is(err, isolate.ErrInUse) != tt.inUse ||
			err != nil && !strings.Contains(err.Error(), tt.broken) {
			t.Errorf("%s: %v", name, err)
		}
		wants := strings.Split(tt.want, "|")
		for i, file := range []string{"cpu.max", "memory.max", "memory.swap.max", "memory.oom.group"} {
			got, want := "-", wants[i]
			if text, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
				got = strings.TrimSpace(string(text))
				// a normal file keeps the rest of a longer text
				want += tt.has[file][min(len(want), len(tt.has[file])):]
			}
			if got != want {
				t.Errorf("%s: %s holds %q, want %q", name, file, got, want)
			}
		}
	}
}
