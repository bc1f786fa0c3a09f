package durable

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// files returns Files in a new directory. Its records are texts that are their own names.
func files(t *testing.T) *Files[string] {
	return &Files[string]{
		Dir: t.TempDir(), What: "word", Check: func(*string) error { return nil },
		Name: func(s *string) string { return *s },
	}
}

// Read returns for each bad file what is wrong with it. Load does not set a file aside if the file may contain a
// record.
func TestFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := files(t)
	if err := errors.Join(f.Save("good"), os.WriteFile(f.Path("half"), []byte(`"ha`), 0o600)); err != nil {
		t.Fatal(err)
	}
	if records, bad, err := f.Load(); err != nil || !slices.Equal(records, []string{"good"}) || len(bad) != 1 {
		t.Errorf("loaded %v, %v, %v", records, bad, err)
	}
	if err := errors.Join(os.Symlink("missing", f.Path("dangling")), os.Symlink("loop.json", f.Path("loop")),
		os.Mkdir(f.Path("dir"), 0o700)); err != nil {
		t.Fatal(err)
	}
	good, bad, err := f.Read()
	if err != nil || !slices.Equal(slices.Collect(maps.Keys(good)), []string{"good"}) || len(bad) != 3 ||
		!errors.Is(bad["dangling"], syscall.ENOENT) || !errors.Is(bad["loop"], syscall.ELOOP) ||
		!errors.Is(bad["dir"], syscall.EISDIR) {
		t.Errorf("read %v, %v, %v", good, bad, err)
	}
	if records, bad, err := f.Load(); err == nil || len(records)+len(bad) > 0 {
		t.Errorf("loaded %v, %v although files could not be read", records, bad)
	}
	for name := range bad {
		if _, err := os.Lstat(f.Path(name)); err != nil {
			t.Errorf("%s was set aside: %v", name, err)
		}
	}
	for _, lack := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if !ofTheProcess(fmt.Errorf("read: %w", lack)) {
			t.Errorf("%v is taken for something about one file", lack)
		}
	}
	if ofTheProcess(syscall.EACCES) {
		t.Error("a forbidden file is taken for something about all files")
	}
}

func TestALeftoverThatCannotBeRemovedIsReported(t *testing.T) {
	t.Parallel()
	f := files(t)
	stays := f.Path("x") + TempSuffix
	if err := errors.Join(f.Save("good"), os.MkdirAll(filepath.Join(stays, "full"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if records, bad, err := f.Load(); err != nil || len(records) != 1 || len(bad) != 1 ||
		!errors.Is(bad[0], syscall.ENOTEMPTY) {
		t.Errorf("loaded %v, %v, %v; want a word and what stays", records, bad, err)
	}
	if good, bad, err := f.Read(); err != nil || len(good) != 1 || len(bad) > 0 {
		t.Errorf("read %v, %v, %v; what stays is no word", good, bad, err)
	}
}

// The test is not parallel, because nothing else in the process can open a file while this test runs.
func TestForgetUntilItIsDurable(t *testing.T) {
	f := files(t)
	if err := f.Save("gone"); err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	first, second := f.Forget("gone"), f.Forget("gone") // the file is removed, and the directory cannot be opened
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(first, syscall.EMFILE) || !errors.Is(second, syscall.EMFILE) {
		t.Errorf("forgotten though not durably: %v, then %v", first, second)
	}
	if err := f.Forget("gone"); err != nil {
		t.Error(err)
	}
}

// Forget removes a record and its spare file. The next Read removes a spare file that has no record.
func TestSpareFilesGoWithTheirRecords(t *testing.T) {
	t.Parallel()
	f := files(t)
	if err := errors.Join(f.Save("gone"), f.Save("stays"), f.Forget("gone")); err != nil {
		t.Fatal(err)
	}
	left := f.Path("lost") + SpareSuffix
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if good, bad, err := f.Read(); err != nil || len(good) != 1 || len(bad) > 0 {
		t.Errorf("read %v, %v, %v", good, bad, err)
	}
	entries, err := os.ReadDir(f.Dir)
	if err != nil || len(entries) != 2 || entries[0].Name() != "stays.json" ||
		entries[1].Name() != "stays.json"+SpareSuffix {
		t.Errorf("left: %v, %v; want a record and its spare", entries, err)
	}
}
