package image

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
)

// The empty elements of a list need three bytes in a document, and up to 120 in memory.
func TestShortDocumentsNeedLittleMemory(t *testing.T) {
	elements := strings.Repeat("{},", maxConfigBytes/3-100) + "{}"
	for name, read := range map[string]func() error{
		"layers": func() error {
			_, err := parse([]byte(`{"schemaVersion":2,"layers":[` + elements + `]}`))
			return err
		},
		"manifests": func() error {
			_, err := parse([]byte(`{"schemaVersion":2,"manifests":[` + elements + `]}`))
			return err
		},
		"history": func() error {
			_, err := parseConfig([]byte(`{"rootfs":{"diff_ids":[]},"history":[`+elements+`]}`), 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := read()
			runtime.ReadMemStats(&after)
			if name != "history" && !errors.Is(err, archive.ErrTooLarge) {
				t.Errorf("got %v", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 10*maxConfigBytes {
				t.Errorf("%d MiB for a document of %d", took>>20, maxConfigBytes>>20)
			}
		})
	}
}
