package durable_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
)

// A reader of a file that is being replaced reads the whole old content or the whole new content.
func TestAFileIsWholeAtAnyMoment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var writers sync.WaitGroup
	ended := make(chan struct{})
	for w := range 8 {
		path := filepath.Join(dir, fmt.Sprint(w))
		if err := durable.WriteFile(path, []byte{0}); err != nil {
			t.Fatal(err)
		}
		writers.Go(func() {
			for i := range 20 {
				if err := durable.WriteFile(path, bytes.Repeat([]byte{byte(i)}, 1+1000*(i%7))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() {
		defer close(ended)
		writers.Wait()
	}()
	for {
		for w := range 8 {
			data, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(w)))
			if err != nil || len(data) == 0 {
				t.Fatalf("%d bytes, %v", len(data), err)
			}
			if i := int(data[0]); len(data) != 1+1000*(i%7) || !bytes.Equal(data, bytes.Repeat(data[:1], len(data))) {
				t.Fatalf("content %d is %d bytes long", i, len(data))
			}
		}
		select {
		case <-ended:
			return
		default:
		}
	}
}

// If a backup has a link to a file, its content is not overwritten. If other users could read the old file, they cannot
// read the new file.
func TestAFileOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, backup := filepath.Join(dir, "r"), filepath.Join(dir, "backup")
	if err := durable.WriteFile(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path, backup); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{path: "new", backup: "old"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v; want %q", name, got, err, want)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if links := info.Sys().(*syscall.Stat_t).Nlink; info.Mode() != 0o600 || links != 1 {
		t.Errorf("mode %v, %d names; want only the owner to read it, under one name", info.Mode(), links)
	}
}
