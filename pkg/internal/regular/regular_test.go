package regular_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/internal/regular"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(in("file"), []byte("12345"), 0o600), os.Symlink("file", in("link")),
		syscall.Mkfifo(in("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		name  string
		flags int
		want  error
		is    string
	}{
		{"file", os.O_RDWR, nil, ""},
		{"link", os.O_RDONLY, nil, ""},
		{"link", os.O_RDONLY | syscall.O_NOFOLLOW, syscall.ELOOP, ""},
		{"pipe", os.O_RDONLY, regular.ErrOther, "named pipe"},
		{".", os.O_RDONLY, regular.ErrOther, "directory"},
		{"../../../../../../../../dev/null", os.O_RDONLY, regular.ErrOther, "device"},
		{"none", os.O_RDONLY, fs.ErrNotExist, ""},
	} {
		f, info, err := regular.Open(in(one.name), one.flags)
		if !errors.Is(err, one.want) {
			t.Errorf("%s: %v, want %v", one.name, err, one.want)
		}
		if errors.Is(one.want, regular.ErrOther) &&
			err.Error() != in(one.name)+" is a "+one.is+"; allowed: a regular file" {
			t.Errorf("%s: %v; want that it is a %s", one.name, err, one.is)
		}
		if err != nil {
			continue
		}
		_, short := regular.ReadAll(f, 4)
		if _, err := f.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		if data, err := regular.ReadAll(f, 5); string(data) != "12345" || err != nil || short == nil ||
			info.Size() != 5 {
			t.Errorf("%s: read %q, %v; of fewer bytes: %v", one.name, data, err, short)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
