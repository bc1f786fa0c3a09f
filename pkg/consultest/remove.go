package consultest

import (
	"io/fs"
	"os"
	"path/filepath"
)

// RemoveAll is os.RemoveAll for a tree with read-only directories, such as unpacked artifacts, from which only root can
// remove files.
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
	return os.RemoveAll(dir) // it returns the error if the directory still cannot be removed
}
