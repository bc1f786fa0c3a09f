// Package golden holds files of the repository to what its programs and documents make of them. The tests of docs/reference and of the JSON
// Schemas use it.
package golden

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Check fails for each path whose file is not as it is made now, and says which target of make writes it. With update it writes them.
func Check(tb testing.TB, made map[string]string, update bool, target string) {
	tb.Helper()
	for path, want := range made {
		if update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				tb.Error(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if diff := cmp.Diff(string(got), want); err != nil || diff != "" {
			tb.Errorf("%s is stale: run `make %s` (%v); is -, should be +:\n%s", filepath.Base(path), target, err, diff)
		}
	}
}
