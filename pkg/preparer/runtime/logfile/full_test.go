package logfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
)

// Rotating a log that fills the disk frees its space, although there is none for a copy. Earlier copies stay.
func TestRotateOnAFullDisk(t *testing.T) {
	disktest.Run(t, 4<<20, func(t *testing.T, disk string) {
		log := filepath.Join(disk, "log")
		for path, text := range map[string]string{log: strings.Repeat("line\n", 100_000), log + ".1": "earlier\n"} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		disktest.Fill(t, disk)
		if err := logfile.Rotate(log, 100_000, 3); !durable.Full(err) ||
			!strings.Contains(err.Error(), "content is lost") {
			t.Errorf("rotated without a copy: %v", err)
		}
		// the last page may stay
		if info, err := os.Stat(log); err != nil || info.Sys().(*syscall.Stat_t).Blocks > 8 {
			t.Errorf("the log takes room still: %+v, %v", info, err)
		}
		if text, err := os.ReadFile(log + ".1"); err != nil || string(text) != "earlier\n" {
			t.Errorf("the earlier copy is %q, %v", text, err)
		}
		if left, err := filepath.Glob(log + "*"); err != nil || len(left) != 2 {
			t.Errorf("files %v, %v", left, err)
		}
	})
}
