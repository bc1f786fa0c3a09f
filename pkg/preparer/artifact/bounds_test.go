package artifact_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
)

// Levels are limited, because each makes each entry below it more expensive.
func TestUnpackBoundsLevels(t *testing.T) {
	t.Parallel()
	deep := func(levels int) manifest.Artifact {
		name := strings.Repeat("d/", levels-1) + "f"
		path := filepath.Join(t.TempDir(), "deep.tar.gz")
		data := archive(t, launch(), file(name, 0o644, "x"))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return manifest.Artifact{Kind: manifest.ArtifactTar, URL: "file://" + path, SHA256: digestOf(data)}
	}
	s, _ := newStore(t, artifact.Config{})
	if _, err := s.Ensure(t.Context(), deep(64)); err != nil {
		t.Errorf("64 parts: %v", err)
	}
	_, err := s.Ensure(t.Context(), deep(65))
	if !errors.Is(err, artifact.ErrArchive) ||
		!strings.Contains(err.Error(), "path of 65 parts; allowed: at most 64 parts") {
		t.Errorf("65 parts: %v", err)
	}
}

// An archive that takes too long is given up. The next call tries again, because perhaps the disk was slow.
func TestUnpackEndsAtItsTimeout(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := goodArchive(t)
	path := filepath.Join(dir, "a.tar.gz")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	a := manifest.Artifact{Kind: manifest.ArtifactTar, URL: "file://" + path, SHA256: digestOf(data)}
	hurried, _ := newStore(t, artifact.Config{UnpackTimeout: time.Nanosecond})
	_, err := hurried.Ensure(t.Context(), a)
	refused, is := errors.AsType[interface {
		error
		Refused() bool
	}](err)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not done within 1ns") || !is ||
		refused.Refused() {
		t.Errorf("got %v (refused for good: %t)", err, is && refused.Refused())
	}
	patient, _ := newStore(t, artifact.Config{})
	if _, err := patient.Ensure(t.Context(), a); err != nil {
		t.Errorf("with more time: %v", err)
	}
}
