// Package archive has what all readers of hostile tar archives need: limits, checks of names, and errors that name the
// refused entry. It also checks the space of the disk, and removes unpacked trees.
package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Errors that a caller can test for.
var (
	ErrTooLarge = errors.New("larger than this node allows")
	ErrArchive  = errors.New("not an archive that may be unpacked")
)

// Bounded returns an error after limit bytes. Otherwise a small archive could unpack to so much data that the
// node is busy for hours.
type Bounded struct {
	Ended bool // a Read has returned io.EOF

	r           io.Reader
	left, limit int64 // bytes
}

// Limit returns a reader that returns ErrTooLarge after limit bytes.
func Limit(r io.Reader, limit int64) *Bounded { return &Bounded{r: r, left: limit, limit: limit} }

// Read implements io.Reader.
func (b *Bounded) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("tar stream of more than %d bytes: %w; allowed: at most %d bytes", b.limit,
			ErrTooLarge, b.limit)
	}
	if n > 0 && errors.Is(err, io.EOF) {
		return n, nil // Ended is set by the next call, which returns io.EOF
	}
	b.Ended = errors.Is(err, io.EOF)
	return n, err
}

// FirstNonZero reads until the end, or until the first byte that is not zero. It reports whether there is such a byte.
func FirstNonZero(r io.Reader) (bool, error) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		for _, b := range buf[:n] {
			if b != 0 {
				return true, nil
			}
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// ReadError wraps an error of a read. If the error is not about a size, a context or a file of this node, the archive
// is broken, and the result is an ErrArchive.
func ReadError(what string, err error, allowed string) error {
	var pathError *fs.PathError
	switch {
	case errors.Is(err, ErrTooLarge), errors.Is(err, context.Canceled), errors.Is(err,
		context.DeadlineExceeded), errors.As(err, &pathError):
		return fmt.Errorf("%s: %w", what, err)
	default:
		return fmt.Errorf("%w: %s: %w; allowed: %s", ErrArchive, what, err, allowed)
	}
}
