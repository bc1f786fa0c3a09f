// Package regular opens only regular files, because another user may have put a named pipe in place of a file, whose
// reader would wait for ever.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrOther means that a path leads to no regular file.
var ErrOther = errors.New("allowed: a regular file")

// Open has the flags of os.OpenFile. It can return ErrOther.
func Open(path string, flags int) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is a %s; %w", path, typeOf(info.Mode()), ErrOther)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// ReadAll returns an error if the file has more than most bytes.
func ReadAll(f *os.File, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s has more than %d bytes, which is what a file may have", f.Name(), most)
	}
	return data, err
}

// typeOf needs no case for symbolic links, which are followed or refused, and none for sockets, which cannot be opened.
func typeOf(mode fs.FileMode) string {
	switch mode.Type() {
	case fs.ModeDir:
		return "directory"
	case fs.ModeNamedPipe:
		return "named pipe"
	default:
		return "device"
	}
}
