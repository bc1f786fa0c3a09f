package proc

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestNote(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "note")
	now, err := Now()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadNote(path, now); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no note: %v", err)
	}
	before := now
	before.Up /= 2
	for _, first := range []string{"", strings.Repeat("x", 1000), `{"boot":"` + now.Boot + `","up":1}`} {
		if err := os.WriteFile(path, []byte(first), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, m := range []Moment{before, {Boot: now.Boot, Up: 1}, now} {
			if err := WriteNote(path, m); err != nil {
				t.Fatal(err)
			}
			if got, err := ReadNote(path, now); err != nil || got != m {
				t.Errorf("read %+v, %v; wrote %+v", got, err, m)
			}
		}
	}
	if err := WriteNote(filepath.Join(path, "in a file"), now); err == nil {
		t.Error("a note was written into a file as if that were a directory")
	}
}

func TestNotesThatRenewNothing(t *testing.T) {
	t.Parallel()
	path, now := filepath.Join(t.TempDir(), "note"), Moment{Boot: "a", Up: time.Hour}
	for _, text := range []string{
		"", " ", "{", "null", "{}", "[]", `{"boot":"a"}`, `{"boot":"a","up":0}`, `{"boot":"a","up":-1}`,
		`{"boot":"b","up":1}`, `{"up":1}`,
		`{"boot":"a","up":3600000000001}`, `{"boot":"a","up":99999999999999999999}`, `{"boot":"a","up":1} x`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err := ReadNote(path, now); !errors.Is(err, ErrNote) || m != (Moment{}) {
			t.Errorf("%q: %+v, %v", text, m, err)
		}
	}
}
