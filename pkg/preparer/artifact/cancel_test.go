package artifact_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
)

// A sparse file has few bytes in the archive, and can have many on the disk.
func TestCancelledInASparseFile(t *testing.T) {
	s, dir := newStore(t, artifact.Config{MaxUnpackedBytes: 2 << 30})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := fileArtifact(t, sparse(t, "hole", "1073741824"))
	done := make(chan error)
	go func() {
		_, err := s.Ensure(ctx, a)
		done <- err
	}()
	written := int64(0)
	for {
		found, _ := filepath.Glob(filepath.Join(dir, "*", "hole"))
		for _, hole := range found {
			cancel()
			if info, err := os.Stat(hole); err == nil {
				written = max(written, info.Size())
			}
		}
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) || written > 512<<20 {
				t.Errorf("got %v after %d bytes", err, written)
			}
			return
		default:
		}
	}
}
