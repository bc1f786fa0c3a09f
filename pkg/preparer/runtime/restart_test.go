package runtime_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

func TestRestartPolicyAgain(t *testing.T) {
	ends := map[string]pod.Exit{
		"done": {}, "failed": {Code: 1}, "killed": {Code: -1, Signal: "SIGKILL"}, "unknown": {Code: -1, Unknown: true},
		"asked for": {Reason: "it hung"},
	}
	for policy, want := range map[runtime.RestartPolicy]map[string]bool{
		"":                {"done": true, "failed": true, "killed": true, "unknown": true, "asked for": true},
		runtime.Always:    {"done": true, "failed": true, "killed": true, "unknown": true, "asked for": true},
		runtime.OnFailure: {"failed": true, "killed": true, "unknown": true, "asked for": true},
		runtime.Never:     {},
	} {
		for name, end := range ends {
			if got := (runtime.Restart{Policy: policy}).Again(end); got != want[name] {
				t.Errorf("%q after %s: %t, want %t", policy, name, got, want[name])
			}
		}
		if !policy.Valid() {
			t.Errorf("%q is not valid", policy)
		}
	}
	if runtime.RestartPolicy("sometimes").Valid() {
		t.Error(`"sometimes" is valid`)
	}
}

func TestRestartDelay(t *testing.T) {
	const lo, hi = 100 * time.Millisecond, 30 * time.Second
	for _, tt := range []struct {
		restart runtime.Restart
		runs    int
		want    time.Duration
	}{
		{runtime.Restart{}, 0, 0},
		{runtime.Restart{}, 1, lo},
		{runtime.Restart{}, 2, 2 * lo},
		{runtime.Restart{}, 4, 8 * lo},
		{runtime.Restart{}, 9, 25600 * time.Millisecond},
		{runtime.Restart{}, 10, hi},
		{runtime.Restart{Min: time.Second}, 0, 0},
		{runtime.Restart{Min: time.Second}, 1, time.Second},
		{runtime.Restart{Min: time.Second}, 20, hi},
		{runtime.Restart{Min: time.Minute}, 1, time.Minute}, // Min is above the runtime's default for Max
		{runtime.Restart{Min: time.Minute}, 5, time.Minute},
		{runtime.Restart{Max: time.Second}, 20, time.Second},
		{runtime.Restart{Max: time.Millisecond}, 1, time.Millisecond}, // Max is below the runtime's default for Min
		{runtime.Restart{Min: time.Second, Max: time.Hour}, 3, 4 * time.Second},
		{runtime.Restart{Min: time.Second, Max: time.Hour}, 1 << 20, time.Hour},
	} {
		if got := tt.restart.Delay(tt.runs, lo, hi); got != tt.want {
			t.Errorf("%+v after %d short runs: %s, want %s", tt.restart, tt.runs, got, tt.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		length := func(least int64, name string) time.Duration {
			return time.Duration(rapid.Int64Range(least, int64(1000*time.Hour)).Draw(t, name))
		}
		lo, hi, r := length(1, "lo"), length(1, "hi"), runtime.Restart{Min: length(0, "min"), Max: length(0, "max")}
		runs := rapid.IntRange(1, 1<<20).Draw(t, "runs")
		now, next := r.Delay(runs, lo, hi), r.Delay(runs+1, lo, hi)
		if now <= 0 || now > next || r.Max > 0 && next > r.Max || r.Max == 0 && next > max(hi, r.Min) {
			t.Fatalf("%+v of %s and %s: delays %s, then %s", r, lo, hi, now, next)
		}
	})
}

func TestSpecSignal(t *testing.T) {
	for name, want := range map[string]unix.Signal{
		"": unix.SIGTERM, "SIGTERM": unix.SIGTERM, "SIGINT": unix.SIGINT,
		"SIGUSR2": unix.SIGUSR2,
	} {
		if got, ok := (runtime.Process{StopSignal: name}).Signal(); got != want || !ok {
			t.Errorf("%q is %v, %t; want %v", name, got, ok, want)
		}
	}
	for _, name := range []string{"INT", "sigint", "15", "SIGNONE"} {
		if got, ok := (runtime.Process{StopSignal: name}).Signal(); ok {
			t.Errorf("%q is %v", name, got)
		}
	}
}
