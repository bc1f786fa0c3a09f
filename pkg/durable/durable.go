// Package durable replaces files so that a crash or a power failure leaves either the old content or the new, never less.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// TempSuffix ends the names of files that a crash left half-written. They may be removed.
const TempSuffix = ".tmp"

// mode is that of all files that are written here: they may hold secrets.
const mode = 0o600

// WriteFile replaces the file at path, readable by its owner only. When it returns nil the content survives a power
// failure. Nobody else may write the same path meanwhile.
func WriteFile(path string, data []byte) error {
	temp := path + TempSuffix
	err := fill(temp, data)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, discard(temp))
	}
	return SyncDir(filepath.Dir(path))
}

// fill makes data the content of the file at path, made if it is missing, durably.
func fill(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// discard removes a half-written file, if it was made.
func discard(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// SyncDir makes what was created, renamed and removed in a directory survive a power failure.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
