package artifact

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// program answers for a program that is on the node already: it is there, and it can be run.
func program(a manifest.Artifact) (string, error) {
	const allowed = "a regular file with execute permission"
	if !filepath.IsAbs(a.Path) {
		return "", fmt.Errorf("program %q: %w: path; allowed: an absolute path", a.Path, ErrInvalid)
	}
	info, err := os.Stat(a.Path)
	switch {
	case err != nil:
		return "", fmt.Errorf("program: %w", err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("program %s: %w: it is a %s; allowed: %s", a.Path, ErrInvalid, typeOf(info.Mode()), allowed)
	case info.Mode()&0o111 == 0:
		return "", fmt.Errorf("program %s: %w: it has mode %04o; allowed: %s", a.Path, ErrInvalid, info.Mode().Perm(), allowed)
	}
	return a.Path, nil
}
