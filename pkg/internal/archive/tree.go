package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SyncFilesystem makes the tree durable with one call. An fsync for each file would commit the journal each time, which
// takes minutes for an artifact with many small files.
func SyncFilesystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open the unpacked tree: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("write the unpacked tree to disk: %w", err)
	}
	return nil
}

// RemoveTree removes a tree, even if its directories are read-only. It does not follow symbolic links.
func RemoveTree(path string) error {
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(p, 0o700) //nolint:gosec // only a store uses this tree, which is removed next
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make %s writable: %w", path, err)
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// Measure returns roughly how much space a tree takes on the disk, and how many entries are in it. It does not follow
// symbolic links.
func Measure(tree string) (bytes int64, entries int, err error) {
	err = filepath.WalkDir(tree, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		size := int64(0)
		if info.Mode().IsRegular() {
			size = info.Size()
		}
		bytes += Occupied(size)
		entries++
		return nil
	})
	return bytes, entries, err
}
