package durable

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// SpareSuffix ends the names of files that the next content of a file is written into. Only the writer of the file may
// remove them.
const SpareSuffix = ".spare"

// block is what a file grows by on common file systems.
const block = 4 << 10

// ReplaceFile replaces the file at path as WriteFile does, and needs no room on the disk once the file is there: a full
// disk must keep no stop from being recorded. Beside the file there is a spare one of its size, which gets the new
// content and then changes places with it. Both have room for a few KiB more than the first content. Content is filled
// up with spaces, so it must be of a kind that ends where these begin, as JSON does. Longer content, and any on a file
// system that never writes in place, as ZFS, may find no room.
//
// Only the writer may read the file: a reader that has it open while it is replaced twice gets a mixture.
func ReplaceFile(path string, data []byte) error {
	spare := path + SpareSuffix
	if isShared(spare) { // a backup has it: it is not written again
		if err := os.Remove(spare); err != nil {
			return err
		}
	}
	old, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return first(path, data)
	}
	if err == nil && old.IsDir() {
		err = &os.PathError{Op: "replace", Path: path, Err: unix.EISDIR}
	}
	if err != nil {
		return err
	}
	size := max(old.Size(), roomFor(data)) // of a spare file that is lost, or was never made
	if now, err := os.Lstat(spare); err == nil {
		size = now.Size() // all of what an earlier write has left there, and no more, which may find no room
	}
	if err := write(spare, filled(data, size), os.O_CREATE); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, spare, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) { // the file system cannot do it; there will be another spare file
		err = os.Rename(spare, path)
	}
	if err != nil {
		return &os.LinkError{Op: "exchange", Old: spare, New: path, Err: err}
	}
	return SyncDir(filepath.Dir(path))
}

// first writes the first content, and the spare file before it, so that no file is there without its room.
func first(path string, data []byte) error {
	size, spare := roomFor(data), path+SpareSuffix
	err := write(spare, filled(nil, size), os.O_CREATE|os.O_TRUNC)
	if err == nil {
		err = WriteFile(path, filled(data, size))
	}
	if err != nil {
		return errors.Join(err, discard(path), discard(spare))
	}
	return nil
}

// roomFor returns how large a file is whose first content is this.
func roomFor(data []byte) int64 { return int64(len(data)/block+2) * block }

// filled returns content with as many spaces as it takes to be of a size.
func filled(data []byte, size int64) []byte {
	return append(bytes.Clone(data), bytes.Repeat([]byte{' '}, int(max(0, size-int64(len(data)))))...)
}

// isShared reports whether a file has other names, or is one itself for another.
func isShared(path string) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false // writing says why, or makes it
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return info.Mode()&fs.ModeSymlink != 0 || ok && !info.IsDir() && st.Nlink > 1
}

// Full reports whether an error says that a disk, or a user's share of it, is full.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
