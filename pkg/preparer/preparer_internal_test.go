package preparer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

func TestNewNamesTheMissingFields(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Host: install.Host{Dir: "relative"}})
	if err == nil {
		t.Fatal("an empty configuration was accepted")
	}
	for _, field := range []string{
		"node.name", "node.address", "dir", "store", "artifacts", "runtime", "services", "log",
	} {
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}

// A file in the PATH that cannot be executed has another error than a missing one.
func TestLookPathDistinguishesMissingFromNotExecutable(t *testing.T) {
	t.Parallel()
	first, second := t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{
		filepath.Join(first, "tool"): 0o644, filepath.Join(second, "tool"): 0o755, filepath.Join(first, "plain"): 0o644,
	} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	spec := runtime.Spec{Process: runtime.Process{Env: []string{"PATH=relative:" + first + ":" + second}, Dir: first}}
	if path, err := lookPath("tool", &spec); err != nil || path != filepath.Join(second, "tool") {
		t.Errorf("the first of two is not executable: %q, %v", path, err)
	}
	if _, err := lookPath("plain", &spec); !errors.Is(err, runtime.ErrNotStarted) ||
		errors.Is(err, runtime.ErrNoProgram) {
		t.Errorf("the only one is not executable: %v", err)
	}
	if _, err := lookPath("other", &spec); !errors.Is(err, runtime.ErrNoProgram) {
		t.Errorf("there is none: %v", err)
	}
}
