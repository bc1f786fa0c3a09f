package pod_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// The text shows how a process ended. It names a memory limit only if the record has one.
func TestExitString(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]pod.Exit{
		"ended with exit status 3": {Code: 3},
		"ended by SIGKILL":         {Code: -1, Signal: "SIGKILL"},
		"ended by SIGTERM": {
			Code: -1, Signal: "SIGTERM",
			MemoryLimit: 1 << 20,
		},
		"was killed by the kernel for want of memory": {
			Code: -1, Signal: "SIGKILL",
			OutOfMemory: true,
		},
		"was ended because its check failed": {
			Code: -1, Signal: "SIGTERM",
			Reason: "its check failed",
		},
		"was killed by the kernel at its memory limit of 1048576 bytes": {
			Code: -1, Signal: "SIGKILL",
			OutOfMemory: true, MemoryLimit: 1 << 20,
		},
		"was killed by the kernel at its memory limit of 2097152 bytes": {
			Code: -1, Unknown: true, OutOfMemory: true,
			MemoryLimit: 2 << 20,
		},
	} {
		if got := e.String(); got != want {
			t.Errorf("%+v: %q, want %q", e, got, want)
		}
	}
}

// A limit that no process can have makes a report invalid, and the node cuts it.
func TestExitMemoryLimitIsBounded(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{-1, 0, field.MaxPodMemory, field.MaxPodMemory + 1} {
		r := pod.Reality{
			Identity: pod.Identity{
				RCID: "rc",
				Role: "main",
			}, Node: "n1", State: pod.StateRunning, Since: time.Unix(1, 0),
			LastExit: &pod.Exit{OutOfMemory: true, MemoryLimit: limit, At: time.Unix(1, 0)},
		}
		good := limit >= 0 && limit <= field.MaxPodMemory
		if err := r.Check(); (err == nil) != good {
			t.Errorf("%d: %v, want that it is refused: %t", limit, err, !good)
		}
		cut := r.Fit()
		if err := r.Check(); err != nil || (len(cut) == 0) != good {
			t.Errorf("%d: cut %q, then %v", limit, cut, err)
		}
	}
}

// A reason that is too long makes a report invalid, too, and the node cuts it.
func TestExitReasonIsBounded(t *testing.T) {
	t.Parallel()
	for _, most := range []int{pod.MaxMessage, pod.MaxMessage + 1} {
		r := pod.Reality{
			Identity: pod.Identity{
				RCID: "rc",
				Role: "main",
			}, Node: "n1", State: pod.StateRunning, Since: time.Unix(1, 0),
			LastExit: &pod.Exit{Reason: strings.Repeat("x", most), At: time.Unix(1, 0)},
		}
		good := most == pod.MaxMessage
		if err := r.Check(); (err == nil) != good {
			t.Errorf("%d bytes: %v, want that it is refused: %t", most, err, !good)
		}
		cut := r.Fit()
		if err := r.Check(); err != nil || (len(cut) == 0) != good {
			t.Errorf("%d bytes: cut %q, then %v", most, cut, err)
		}
	}
}
