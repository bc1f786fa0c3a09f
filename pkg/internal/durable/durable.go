// Package durable replaces files so that a crash or a power failure leaves either the old content or the new, never less. The
// preparer, the supervisor and the daemons' data directories write with it (P7).
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// TempSuffix ends the names of files that a crash left half-written. They may be removed.
const TempSuffix = ".tmp"

// mode is that of all files that are written here: they may hold secrets.
const mode = 0o600

// WriteFile replaces the file at path, readable by its owner only. When it returns nil the content survives a power
// failure. Nobody else may write the same path meanwhile.
func WriteFile(path string, data []byte) error {
	err := replace(path, data, os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return errors.Join(err, discard(path+TempSuffix))
	}
	return SyncDir(filepath.Dir(path))
}

// replace writes the file beside path, opened with those flags, and renames it to path when its content is durable.
func replace(path string, data []byte, flags int) error {
	f, err := os.OpenFile(path+TempSuffix, os.O_WRONLY|flags, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Truncate(int64(len(data))) // what it held before may have been longer
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(path+TempSuffix, path)
}

// discard removes a half-written file, if it was made.
func discard(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ofOneFile are the errors of a disk, or of a file system with a wrong checksum, that concern one file.
var ofOneFile = []error{unix.EIO, unix.EBADMSG, unix.EUCLEAN, unix.EISDIR}

// OfOneFile reports whether an error of reading a file says nothing about others.
func OfOneFile(err error) bool {
	return slices.ContainsFunc(ofOneFile, func(e error) bool { return errors.Is(err, e) })
}

// ofTheProcess reports whether an error of reading a file is about the process or the machine, which lack what reading any file takes.
func ofTheProcess(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// SyncDir makes what was created, renamed and removed in a directory survive a power failure.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
