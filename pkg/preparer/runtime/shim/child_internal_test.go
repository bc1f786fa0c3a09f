package shim

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

// An exit has OutOfMemory only if the process was killed, and MemoryLimit only if its own limit was the reason.
func TestStarved(t *testing.T) {
	t.Parallel()
	const limit = 512 << 20
	killed := pod.Exit{Launchable: "web", Code: -1, Signal: "SIGKILL"}
	adopted := pod.Exit{Launchable: "web", Code: -1, Unknown: true}
	for name, tt := range map[string]struct {
		exit    pod.Exit
		counted isolate.Memory
		limit   int64
		want    string
	}{
		"its own limit": {
			killed,
			isolate.Memory{Kills: 1, Own: 1},
			limit,
			"was killed by the kernel at its memory limit of 536870912 bytes",
		},
		"its own, of an adopted": {
			adopted,
			isolate.Memory{Kills: 2, Own: 1},
			limit,
			"was killed by the kernel at its memory limit of 536870912 bytes",
		},
		"the node's": {
			killed,
			isolate.Memory{Kills: 1},
			limit,
			"was killed by the kernel for want of memory",
		},
		"the node's, no limit":    {killed, isolate.Memory{Kills: 1}, 0, "was killed by the kernel for want of memory"},
		"somebody killed it":      {killed, isolate.Memory{}, limit, "ended by SIGKILL"},
		"refused, and not killed": {killed, isolate.Memory{Own: 1}, limit, "ended by SIGKILL"},
		"a child was killed": {
			pod.Exit{Code: 1},
			isolate.Memory{Kills: 1, Own: 1},
			limit,
			"ended with exit status 1",
		},
		"another signal": {
			pod.Exit{Code: -1, Signal: "SIGSEGV"},
			isolate.Memory{Kills: 1, Own: 1},
			limit,
			"ended by SIGSEGV",
		},
		"an adopted one": {adopted, isolate.Memory{}, limit, adopted.String()},
	} {
		exit := tt.exit
		starved(&exit, tt.counted, tt.limit)
		if got := exit.String(); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
