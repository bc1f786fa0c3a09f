package preparer

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHostID(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := hostID(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := hostID(dir, nil); err != nil || again != first {
		t.Errorf("%q, %v; want %q again", again, err, first)
	}
	if other, err := hostID(t.TempDir(), nil); err != nil || other == first {
		t.Errorf("another directory has the id %q, %v", other, err)
	}
	for _, garbage := range []string{"", "../x", first[:20]} {
		if err := os.WriteFile(filepath.Join(dir, hostFile), []byte(garbage), 0o600); err != nil {
			t.Fatal(err)
		}
		id, err := hostID(dir, nil)
		if err != nil || !hostPattern.MatchString(id) || id == first {
			t.Errorf("after %q: %q, %v", garbage, id, err)
		}
	}
	if id, err := hostID(filepath.Join(dir, "missing"), nil); err == nil {
		t.Errorf("id %q was kept nowhere", id)
	}
}
