package manifest_test

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// Only CPU and memory can change without a restart.
func TestOnlyLimitsDiffer(t *testing.T) {
	t.Parallel()
	replaced := func(old, with string) string { return strings.Replace(all, old, with, 1) }
	for name, tt := range map[string]struct {
		next string
		want bool
	}{
		"nothing": {all, false},
		"a default written out": {replaced(`"path":"/usr/bin/probe"}`,
			`"path":"/usr/bin/probe"},"stop_signal":"SIGTERM"`), false},
		"CPU":                {replaced(`"cpu":500`, `"cpu":501`), true},
		"memory":             {replaced(`"memory":1048576`, `"memory":2097152`), true},
		"both":               {replaced(`"cpu":500,"memory":1048576`, `"cpu":1,"memory":2097152`), true},
		"no limits any more": {replaced(`"cpu":500,"memory":1048576,`, ``), true},
		"limits of the second": {replaced(`"path":"/usr/bin/probe"}`,
			`"path":"/usr/bin/probe"},"resources":{"memory":1}`), true},
		"CPU, a default besides": {replaced(`"cpu":500,"memory":1048576,"pids":64},"stop_signal":"SIGINT"`,
			`"cpu":50,"memory":1048576,"pids":64},"stop_signal":"SIGINT"`), true},
		"PIDs": {replaced(`"pids":64`, `"pids":65`), false},
		"CPU and PIDs": {replaced(`"cpu":500,"memory":1048576,"pids":64`,
			`"cpu":501,"memory":1048576,"pids":65`), false},
		"CPU and a variable": {strings.Replace(replaced(`"cpu":500`, `"cpu":501`), `"A":"1"`, `"A":"2"`, 1), false},
		"CPU and a label": {strings.Replace(replaced(`"cpu":500`, `"cpu":501`), `"labels":{"app":"all"}`,
			`"labels":{"app":"other"}`, 1), false},
		"a variable": {replaced(`"A":"1"`, `"A":"2"`), false},
	} {
		before, after := decode(t, all), decode(t, tt.next)
		if got := manifest.OnlyLimitsDiffer(before, after); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
		if got := manifest.OnlyLimitsDiffer(after, before); got != tt.want {
			t.Errorf("%s, the other way: %t, want %t", name, got, tt.want)
		}
		if before.Launchables[0].Resources.CPU != 500 {
			t.Fatalf("%s: the manifest was changed", name)
		}
	}
	fewer, more := decode(t, least), decode(t, all)
	if manifest.OnlyLimitsDiffer(fewer, more) {
		t.Error("two pods with nothing in common")
	}
}

func TestLimitsInWords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ manifest, want string }{
		{least, "no limit of cpu and memory"},
		{full, "cpu 500m, memory 1Mi"},
		{strings.Replace(full, `"memory":1048576`, `"memory":1000`, 1), "cpu 500m, memory 1000 bytes"},
		{strings.Replace(full, `"cpu":500,"memory":1048576`, `"memory":3221225472`, 1), "memory 3Gi"},
		{all, "server: cpu 500m, memory 1Mi; probe: no limit of cpu and memory"},
	} {
		if got := decode(t, tt.manifest).Limits(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
