package logfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
)

func TestMarkStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	read := func() string {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	f := open()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	logfile.MarkStart(f, at)
	if got := read(); got != "" {
		t.Errorf("a log that was never written to holds %q", got)
	}
	if _, err := f.WriteString("no end of line"); err != nil {
		t.Fatal(err)
	}
	logfile.MarkStart(open(), at)
	line := strings.TrimSuffix(read(), "\n")
	if before, marked := logfile.CutMark([]byte(line)); string(before) != "no end of line" || !marked {
		t.Errorf("%q was cut into %q, marked: %t", line, before, marked)
	}
	if before, marked := logfile.CutMark([]byte("rcfarm: started ")); string(before) != "rcfarm: started " || marked {
		t.Errorf("ordinary text was cut to %q", before)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	logfile.MarkStart(open(), at)
	if _, marked := logfile.CutMark([]byte(read())); !marked {
		t.Error("no mark in a log that was rotated")
	}
}
