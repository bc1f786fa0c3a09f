package isolate_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

func TestMemoryOf(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		events, local string // empty: the file is missing
		want          isolate.Memory
	}{
		"no controller": {},
		"nothing": {
			events: "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
			local:  "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
		},
		"its own limit": {
			events: "low 0\nhigh 0\nmax 37\noom 1\noom_kill 3\noom_group_kill 1\n",
			local:  "low 0\nhigh 0\nmax 37\noom 1\noom_kill 3\noom_group_kill 1\n", want: isolate.Memory{
				Kills: 3,
				Own:   1,
			},
		},
		"that of another": {
			events: "low 0\nhigh 0\nmax 12\noom 0\noom_kill 1\noom_group_kill 1\n",
			local:  "low 0\nhigh 0\nmax 12\noom 0\noom_kill 1\noom_group_kill 1\n", want: isolate.Memory{Kills: 1},
		},
		"one below it": {
			events: "oom 1\noom_kill 1\n", local: "oom 0\noom_kill 0\n",
			want: isolate.Memory{Kills: 1},
		},
		"an old kernel": {
			events: "low 0\nhigh 0\nmax 5\noom 1\noom_kill 1\n",
			want:   isolate.Memory{Kills: 1, Own: 1},
		},
		"no kernel's": {events: "oom_kill\noom_kill x\n\noom 99999999999999999999\n"},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"memory.events": tt.events, "memory.events.local": tt.local} {
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := isolate.MemoryOf(dir); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
	got, want := (isolate.Memory{Kills: 5, Own: 2}).Since(isolate.Memory{Kills: 3, Own: 2}), (isolate.Memory{Kills: 2})
	if got != want {
		t.Errorf("since an earlier run: %+v, want %+v", got, want)
	}
	if got := isolate.MemoryOf(filepath.Join(t.TempDir(), "gone")); got != (isolate.Memory{}) {
		t.Errorf("a cgroup that is gone: %+v", got)
	}
}
