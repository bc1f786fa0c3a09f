package preparer

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

func sampleRecord(index int) Record {
	digest := strings.Repeat("ab", 32)
	return Record{
		Version: RecordVersion,
		Intent: pod.Intent{
			Identity: pod.Identity{RCID: "rc", Role: "main", Index: index},
			PodID:    "web", Digest: digest, State: pod.Running, Revision: 7,
		},
		Installed: &install.Installed{
			Digest: digest, Revision: 6, Manifest: []byte(`{"version":1,"id":"web","launchables":null}`),
			Ports: map[string]int{"http": 80},
		},
		Service: "s", Ready: "r",
	}
}

func TestDiskKeepsRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disk, err := NewDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []Record{sampleRecord(0), sampleRecord(1).buried(thisInstant())}
	for _, rec := range want {
		for range 2 {
			if err := disk.Save(rec); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, bad, err := disk.Load()
	if err != nil || len(bad) > 0 {
		t.Fatal(err, bad)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDiskSetsGarbageAside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disk, err := NewDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.Save(sampleRecord(0)); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(disk.Path(install.FileName(ident(0))))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"half.main.0.json":    string(good[:len(good)/2]),
		"empty.main.0.json":   "",
		"rc.main.9.json":      string(good), // the record of another pod
		"newer.main.0.json":   strings.Replace(string(good), `"version":1`, `"version":2`, 1),
		"rc.main.1.json.tmp":  string(good),
		"rc.main.2.json.note": "not ours",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	records, bad, err := disk.Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Record{sampleRecord(0)}, records); diff != "" {
		t.Error(diff)
	}
	if len(bad) != 4 {
		t.Errorf("%d errors, want 4: %v", len(bad), bad)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "*"+durable.AsideSuffix))
	if err != nil || len(kept) != 4 {
		t.Errorf("set aside %v (%v), want 4 files", kept, err)
	}
	if _, bad, err = disk.Load(); err != nil || len(bad) > 0 {
		t.Errorf("loaded again: %v, %v", bad, err)
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*"+durable.TempSuffix)); err != nil ||
		slices.ContainsFunc(names, func(string) bool { return true }) {
		t.Errorf("leftovers %v (%v)", names, err)
	}
}

// Unreadable records are set aside, and the others loaded. If none can be read, the disk is broken: nothing is set
// aside, and the preparer does not start.
func TestDiskWithoutReadableRecordsIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disk, err := NewDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	// A read of a directory fails with EISDIR, for root too.
	if err := os.Mkdir(disk.Path(install.FileName(ident(1))), 0o700); err != nil {
		t.Fatal(err)
	}
	if records, bad, err := disk.Load(); !errors.Is(err, syscall.EISDIR) ||
		!strings.Contains(err.Error(), disk.Path(install.FileName(ident(1)))) || len(records)+len(bad) > 0 {
		t.Errorf("loaded %v and %v, %v; want an error that names the file", records, bad, err)
	}
	if kept, err := filepath.Glob(filepath.Join(dir, "*"+durable.AsideSuffix)); err != nil || len(kept) > 0 {
		t.Errorf("set aside %v (%v)", kept, err)
	}
	if err := disk.Save(sampleRecord(0)); err != nil {
		t.Fatal(err)
	}
	records, bad, err := disk.Load()
	if err != nil || len(records) != 1 || len(bad) != 1 || !errors.Is(bad[0], syscall.EISDIR) ||
		!strings.Contains(bad[0].Error(), disk.Path(install.FileName(ident(1)))) {
		t.Errorf("loaded %v and %v, %v; want one of each", records, bad, err)
	}
	if kept, err := filepath.Glob(disk.Path(install.FileName(ident(1))) + ".*" + durable.AsideSuffix); err != nil ||
		len(kept) != 1 {
		t.Errorf("set aside %v (%v)", kept, err)
	}
	if records, bad, err := disk.Load(); err != nil || len(bad) > 0 || len(records) != 1 {
		t.Errorf("the next time: %v, %v, %v", records, bad, err)
	}
}
