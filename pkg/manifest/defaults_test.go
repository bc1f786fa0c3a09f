package manifest_test

import (
	"encoding/json"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// A default that is written out makes the same processes as an absent field, and any other value does not.
func TestDefaultsAreTheSame(t *testing.T) {
	t.Parallel()
	const plain = `{"version":1,"id":"web","launchables":[{"name":"server","artifact":{"kind":"tar"}},{"name":"side","artifact":{"kind":"exec"}}],
		"service":{},"health":{"script":{"path":"bin/check"}},"hooks":{"after_stop":{"path":"bin/bye"}}}`
	server := func(m map[string]any) map[string]any { return m["launchables"].([]any)[0].(map[string]any) }
	health := func(m map[string]any) map[string]any { return m["health"].(map[string]any) }
	script := func(m map[string]any) map[string]any { return health(m)["script"].(map[string]any) }
	hook := func(m map[string]any) map[string]any {
		return m["hooks"].(map[string]any)["after_stop"].(map[string]any)
	}
	service := func(m map[string]any) map[string]any { return m["service"].(map[string]any) }
	for name, tc := range map[string]struct {
		of           func(map[string]any) map[string]any
		field        string
		usual, other any
	}{
		"command":     {server, "command", "bin/launch", "bin/other"},
		"stop_signal": {server, "stop_signal", "SIGTERM", "SIGINT"},
		"stop_grace":  {server, "stop_grace", "10s", "11s"},
		"restart":     {server, "restart", map[string]any{}, map[string]any{"policy": "never"}},
		"policy": {
			server, "restart",
			map[string]any{"policy": "always"},
			map[string]any{"policy": "on-failure"},
		},
		"backoff_min": {
			server, "restart",
			map[string]any{"backoff_min": "500ms"},
			map[string]any{"backoff_min": "501ms"},
		},
		"backoff_max": {
			server, "restart",
			map[string]any{"backoff_max": "1m"},
			map[string]any{"backoff_max": "2m"},
		},
		"pids":              {server, "resources", map[string]any{"pids": 4096}, map[string]any{"pids": 4095}},
		"min_ready":         {func(m map[string]any) map[string]any { return m }, "min_ready", "10s", "9s"},
		"health.min_ready":  {health, "min_ready", "10s", "9s"},
		"interval":          {health, "interval", "2s", "3s"},
		"timeout":           {health, "timeout", "2s", "3s"},
		"initial_delay":     {health, "initial_delay", "0s", "1s"},
		"success_threshold": {health, "success_threshold", 1, 2},
		"failure_threshold": {health, "failure_threshold", 1, 2},
		"script":            {script, "launchable", "server", "side"},
		"hook":              {hook, "launchable", "server", "side"},
		"hook timeout":      {hook, "timeout", "1m", "2m"},
		"service.name":      {service, "name", "web", "other"},
		"drain":             {service, "drain", "1s", "2s"},
	} {
		with := func(value any) *manifest.Manifest {
			var doc map[string]any
			if err := json.Unmarshal([]byte(plain), &doc); err != nil {
				t.Fatal(err)
			}
			if value != nil {
				tc.of(doc)[tc.field] = value
			}
			text, _ := json.Marshal(doc)
			var m manifest.Manifest
			if err := json.Unmarshal(text, &m); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return &m
		}
		before := with(nil)
		text, _ := before.Canonical()
		if !before.Same(with(tc.usual)) || !with(tc.usual).Same(before) {
			t.Errorf("%s: the default %v is taken for a change", name, tc.usual)
		}
		if before.Same(with(tc.other)) {
			t.Errorf("%s: %v is taken for the default", name, tc.other)
		}
		if now, _ := before.Canonical(); string(now) != string(text) {
			t.Errorf("%s: comparing changed the manifest", name)
		}
	}
}
