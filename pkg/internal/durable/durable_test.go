package durable_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
)

func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	// A half-written file of an earlier crash does no harm.
	if err := os.WriteFile(path+durable.TempSuffix, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"first, longer", "second"} {
		if err := durable.WriteFile(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%q, %v; want %q", got, err, content)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := durable.WriteFile(filepath.Join(dir, "missing", "f"), nil); err == nil {
		t.Error("a file in a missing directory was written")
	}
	// A target that cannot be replaced keeps its content, and nothing is left behind.
	if err := os.MkdirAll(filepath.Join(dir, "d", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(filepath.Join(dir, "d"), nil); err == nil {
		t.Error("a directory was replaced by a file")
	}
	if _, err := os.Stat(filepath.Join(dir, "d"+durable.TempSuffix)); err == nil {
		t.Error("a half-written file was left behind")
	}
}
