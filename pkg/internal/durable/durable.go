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
	err := write(path+TempSuffix, data, os.O_CREATE|os.O_TRUNC)
	if err == nil {
		err = os.Rename(path+TempSuffix, path)
	}
	if err != nil {
		return errors.Join(err, discard(path+TempSuffix))
	}
	return SyncDir(filepath.Dir(path))
}

// write writes from the start of a file, opened with those flags. The content is durable when it returns nil.
func write(path string, data []byte, flags int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|flags, mode)
	if err != nil {
		return err
	}
	stayInPlace(f)
	err = f.Chmod(mode) // others may have been let in
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// stayInPlace asks btrfs to write an empty file in place from now on, which takes no room. Others do so anyway, or refuse.
func stayInPlace(f *os.File) {
	if flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS); err == nil && flags&fsNoCOW == 0 {
		_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|fsNoCOW)
	}
}

// fsNoCOW is FS_NOCOW_FL of linux/fs.h.
const fsNoCOW = 0x00800000

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
