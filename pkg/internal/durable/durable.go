// Package durable replaces files. After a crash or a power failure a file has either its whole old content or its whole
// new content (P7).
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// TempSuffix ends the names of half-written files that a crash left.
const TempSuffix = ".tmp"

const mode = 0o600

// WriteFile replaces the file at path. When it returns nil, the content survives a power failure. There must be only
// one writer.
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

func write(path string, data []byte, flags int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|flags, mode)
	if err != nil {
		return err
	}
	stayInPlace(f)
	err = f.Chmod(mode) // an old file may have a wider mode
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// stayInPlace makes btrfs write an empty file in place from now on, which takes no new space. Other file systems do so
// anyway, or refuse.
func stayInPlace(f *os.File) {
	if flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS); err == nil && flags&fsNoCOW == 0 {
		_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|fsNoCOW)
	}
}

const fsNoCOW = 0x00800000

func discard(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ofOneFile has errors of a disk, or of a file system with checksums, that concern only one file.
var ofOneFile = []error{unix.EIO, unix.EBADMSG, unix.EUCLEAN, unix.EISDIR}

// OfOneFile reports whether an error of a read concerns only this file.
func OfOneFile(err error) bool {
	return slices.ContainsFunc(ofOneFile, func(e error) bool { return errors.Is(err, e) })
}

// ofTheProcess reports whether an error of a read means that no file can be read.
func ofTheProcess(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// SyncDir makes creations, renames and removals in a directory survive a power failure.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
