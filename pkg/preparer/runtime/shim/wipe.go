package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// wipe removes a directory that a hostile container may have filled, for example with 200,000 directories in each
// other. It never goes deeper than one level: it moves a deeper directory that is not empty up to the top. No process
// may change the tree meanwhile. If ctx ends first, it returns ctx's error, and the next call goes on.
func wipe(ctx context.Context, path string) error {
	top, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	moved := 0
	for empty := false; !empty; {
		if _, err := top.Seek(0, io.SeekStart); err != nil {
			return err
		}
		empty, err = eachName(ctx, top, func(name string) error { return wipeEntry(ctx, top, name, &moved) })
		if err != nil {
			return fmt.Errorf("remove what is in %s: %w", path, err)
		}
	}
	return os.Remove(path)
}

// eachName calls visit for each entry of a directory.
func eachName(ctx context.Context, dir *os.File, visit func(name string) error) (empty bool, err error) {
	for empty = true; ; empty = false {
		names, err := dir.Readdirnames(256)
		if errors.Is(err, io.EOF) {
			return empty, nil
		}
		if err != nil {
			return false, err
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		for _, name := range names {
			if err := visit(name); err != nil {
				return false, fmt.Errorf("%q: %w", name, err)
			}
		}
	}
}

// wipeEntry removes an entry of top. If the entry is a directory, it moves directories in it that are not empty to top.
func wipeEntry(ctx context.Context, top *os.File, name string, moved *int) error {
	at := int(top.Fd())
	err := unlink(at, name)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer func() { _ = dir.Close() }()
	_, err = eachName(ctx, dir, func(inner string) error {
		err := unlink(fd, inner)
		for errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			*moved++
			err = unix.Renameat2(fd, inner, at, ".moved-"+strconv.Itoa(*moved), unix.RENAME_NOREPLACE)
		}
		return err
	})
	if err == nil {
		err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	}
	if errors.Is(err, unix.ENOTEMPTY) {
		return nil // the next round finds the rest
	}
	return err
}

// unlink removes a file or an empty directory.
func unlink(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
