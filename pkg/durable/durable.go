// Package durable replaces files so that a crash or a power failure leaves either the old content or the new, never less.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// TempSuffix ends the names of files that a crash left half-written. They may be removed.
const TempSuffix = ".tmp"

// WriteFile replaces the file at path, readable by its owner only. When it returns nil the content survives a power
// failure. Nobody else may write the same path meanwhile.
func WriteFile(path string, data []byte) error {
	temp := path + TempSuffix
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes what was created, renamed and removed in a directory survive a power failure.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
