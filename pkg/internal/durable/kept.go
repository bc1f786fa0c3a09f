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

// SpareSuffix ends the names of spare files, which only the writer of the file may remove.
const SpareSuffix = ".spare"

const block = 4 << 10

// ReplaceFile is like WriteFile, but needs no more space if the file exists, so that a stop can be written on a full
// disk. It writes the new content into a spare file of the same size, and then exchanges the two files.
//
// Both have space for a few KiB more than the first content. Longer content, and any content on a file system that
// never writes in place, such as ZFS, may not fit on a full disk. Content is padded with spaces, so its format must
// allow them, like JSON.
//
// Only the writer may read the file: while it is replaced twice, another reader could get a mixture.
func ReplaceFile(path string, data []byte) error {
	spare := path + SpareSuffix
	if isShared(spare) { // a backup may have a link to the spare file, so it must not be overwritten
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
	size := max(old.Size(), roomFor(data)) // used if the spare file is missing
	if now, err := os.Lstat(spare); err == nil {
		size = now.Size() // exactly the size that is allocated, because more may not fit on the disk
	}
	if err := write(spare, filled(data, size), os.O_CREATE); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, spare, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) { // the file system cannot exchange names; the next call makes a new spare file
		err = os.Rename(spare, path)
	}
	if err != nil {
		return &os.LinkError{Op: "exchange", Old: spare, New: path, Err: err}
	}
	return SyncDir(filepath.Dir(path))
}

// first makes the spare file before the file, so that no file exists without a spare file.
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

// roomFor returns the size of a file if its first content is data.
func roomFor(data []byte) int64 { return int64(len(data)/block+2) * block }

func filled(data []byte, size int64) []byte {
	return append(bytes.Clone(data), bytes.Repeat([]byte{' '}, int(max(0, size-int64(len(data)))))...)
}

// isShared reports whether a file has other links, or is a symbolic link.
func isShared(path string) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false // the write will make the file, or return the error
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return info.Mode()&fs.ModeSymlink != 0 || ok && !info.IsDir() && st.Nlink > 1
}

// Full reports whether an error means that a disk, or a user's quota, is full.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
