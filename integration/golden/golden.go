// Package golden checks that files of the repository match what its programs and documents make of them.
package golden

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Check fails for each path of made whose file differs, and names the make target that writes it. If update is true, it
// writes the files.
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
