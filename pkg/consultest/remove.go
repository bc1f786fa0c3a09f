package consultest

import (
	"io/fs"
	"os"
	"path/filepath"
)

// RemoveAll is os.RemoveAll for a tree whose directories may be read-only, as those of unpacked artifacts are. Only
// root can remove from such a directory.
func RemoveAll(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = os.Chmod(path, 0o700) //nolint:gosec // a directory
		}
		return err
	})
	return os.RemoveAll(dir) // this says what is wrong
}
