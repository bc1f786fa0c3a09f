// Package regular opens regular files, and nothing that stands in their place. Who made it may mean harm: opening a named pipe would wait for
// a writer, for ever.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrOther is about what is there and is no regular file.
var ErrOther = errors.New("allowed: a regular file")

// Open opens a file, with the flags of os.OpenFile, if it is a regular one.
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

// ReadAll reads a file that may have so many bytes.
func ReadAll(f *os.File, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s has more than %d bytes, which is what a file may have", f.Name(), most)
	}
	return data, err
}

// typeOf says in words what was opened that is not regular. Links are followed or refused, and sockets cannot be opened.
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
