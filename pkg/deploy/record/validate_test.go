package record_test

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
)

// A bad name of a service is reported as one mistake. Each name that the error calls allowed is accepted.
func TestNamesOfServices(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]bool{
		"web": false, strings.Repeat("w", record.MaxNameBytes): false, "": false,
		"my web": true, "Web": true, "-web": true, strings.Repeat("w", record.MaxNameBytes+1): true, strings.Repeat("w",
			64): true, strings.Repeat("W", 70): true,
	} {
		_, err := record.Decode([]byte(`{"name": "` + name +
			`", "replicas": 1, "pod": {"version": 1, "id": "web", "launchables": [{"name": "a", "artifact": {"kind": "tar", "url": "file:///a.tar"}}]}}`))
		text := ""
		if err != nil {
			text = err.Error()
		}
		if bad != (err != nil) ||
			bad &&
				(!strings.HasPrefix(text, "name: ") || strings.Count(text, "\n") > 0 ||
					!strings.Contains(text, "allowed: 1 to 50 lower-case letters")) {
			t.Errorf("%q: %s", name, text)
		}
	}
}
