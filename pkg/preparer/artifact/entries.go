package artifact

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

func (u *unpacker) addDir(name string, hdr *tar.Header) error {
	old, ok := u.kinds[name]
	switch {
	case !ok:
		if err := u.root.Mkdir(name, 0o700); err != nil {
			return fmt.Errorf("%s: %w", entryName(hdr.Name), err)
		}
	case old != tar.TypeDir:
		return refuse(hdr.Name, fmt.Sprintf("is a directory here and a %s earlier in the archive", typeName(old)), "one type for each path")
	}
	u.kinds[name] = tar.TypeDir
	return nil
}

func (u *unpacker) addFile(name string, hdr *tar.Header, content io.Reader) (err error) {
	if strings.HasSuffix(hdr.Name, "/") {
		return refuse(hdr.Name, "is a regular file with a slash at its end", "names of files without it")
	}
	// Size is what the file occupies unpacked, the holes of a sparse file included.
	if hdr.Size > u.limits.bytes-u.bytes {
		problem := fmt.Sprintf("with its %d bytes the archive unpacks to more than the limit", hdr.Size)
		return refuseAs(ErrTooLarge, hdr.Name, problem, fmt.Sprintf("at most %d bytes unpacked", u.limits.bytes))
	}
	u.bytes += hdr.Size
	if err := u.limits.room.take(occupied(hdr.Size), "unpacking"); err != nil {
		return fmt.Errorf("%s: %w", entryName(hdr.Name), err)
	}
	if err := u.clear(name, hdr.Name, tar.TypeReg); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("%s: %w", entryName(hdr.Name), err)
	}
	u.kinds[name] = tar.TypeReg
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.CopyN(f, content, hdr.Size); err != nil {
		return readError(entryName(hdr.Name), err, "a complete gzip-compressed tar archive")
	}
	mode := fs.FileMode(0o444)
	if hdr.Mode&0o111 != 0 {
		mode = 0o555
	}
	if err := f.Chmod(mode); err != nil {
		return fmt.Errorf("%s: make read-only: %w", entryName(hdr.Name), err)
	}
	return nil
}

func (u *unpacker) addSymlink(name string, hdr *tar.Header) error {
	const allowed = "links with a relative target inside the archive"
	target := hdr.Linkname
	switch {
	case target == "":
		return refuse(hdr.Name, "is a symbolic link without a target", allowed)
	case len(target) > maxPathBytes:
		return refuse(hdr.Name, fmt.Sprintf("symbolic link with a target of %d bytes", len(target)), fmt.Sprintf("at most %d bytes", maxPathBytes))
	case path.IsAbs(target):
		return refuse(hdr.Name, "symbolic link to the absolute path "+quoted(target), allowed)
	case leaves(path.Join(path.Dir(name), target)): //nolint:gosec // this is the check
		return refuse(hdr.Name, "symbolic link to "+quoted(target)+", outside of the archive", allowed)
	}
	if err := u.clear(name, hdr.Name, tar.TypeSymlink); err != nil {
		return err
	}
	if err := u.root.Symlink(target, name); err != nil {
		return fmt.Errorf("%s: %w", entryName(hdr.Name), err)
	}
	u.kinds[name] = tar.TypeSymlink
	return nil
}

// addLink makes a hard link. Its target must have come before it as a regular file: a link to a symbolic link would
// be one, and a target that is not in the map is not in the tree.
func (u *unpacker) addLink(name string, hdr *tar.Header) error {
	target := path.Clean(hdr.Linkname)
	if path.IsAbs(target) || leaves(target) || u.kinds[target] != tar.TypeReg {
		return refuse(hdr.Name, "hard link to "+quoted(hdr.Linkname), "links to regular files that come earlier in the archive")
	}
	if target == name {
		return refuse(hdr.Name, "hard link to itself", "links to regular files that come earlier in the archive")
	}
	if err := u.clear(name, hdr.Name, tar.TypeReg); err != nil {
		return err
	}
	if err := u.root.Link(target, name); err != nil {
		return fmt.Errorf("%s: %w", entryName(hdr.Name), err)
	}
	u.kinds[name] = tar.TypeReg
	return nil
}

// leaves reports whether a clean relative path points above where it starts.
func leaves(clean string) bool { return clean == ".." || strings.HasPrefix(clean, "../") }

// checkLinks resolves every symbolic link in the finished tree. The check of the text alone is not enough: "a/.." is
// somewhere else when a is itself a link. A link to nothing is harmless, because the tree never changes.
func (u *unpacker) checkLinks(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(u.kinds)) {
		if u.kinds[name] != tar.TypeSymlink {
			continue
		}
		if ctx.Err() != nil {
			return ended(ctx)
		}
		if _, err := u.root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return refuse(name, fmt.Sprintf("symbolic link that does not resolve inside the archive (%v)", err),
				"links with a relative target inside the archive")
		}
	}
	return nil
}

// boundedReader refuses to give more than its limit, so that a small file cannot keep a node unpacking for hours.
type boundedReader struct {
	r           io.Reader
	left, limit int64 // bytes
	ended       bool  // somebody asked for more than there was
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("tar stream of more than %d bytes: %w; allowed: at most %d bytes", b.limit, ErrTooLarge, b.limit)
	}
	if n > 0 && errors.Is(err, io.EOF) {
		return n, nil // the end is told by the next call, so that ended means what it says
	}
	b.ended = errors.Is(err, io.EOF)
	return n, err
}

// firstNonZero reads to the end and reports whether anything but zero bytes came.
func firstNonZero(r io.Reader) (bool, error) {
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
