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

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/patience"
)

func (u *unpacker) addDir(name string, hdr *tar.Header) error {
	old, ok := u.kinds[name]
	switch {
	case !ok:
		if err := u.root.Mkdir(name, 0o700); err != nil {
			return fmt.Errorf("%s: %w", archive.EntryName(hdr.Name), err)
		}
	case old != tar.TypeDir:
		problem := fmt.Sprintf("is a directory here and a %s earlier in the archive", archive.TypeName(old))
		return archive.Refuse(hdr.Name, problem, "one type for each path")
	}
	u.kinds[name] = tar.TypeDir
	return nil
}

func (u *unpacker) addFile(name string, hdr *tar.Header, content io.Reader) (err error) {
	if strings.HasSuffix(hdr.Name, "/") {
		return archive.Refuse(hdr.Name, "is a regular file with a slash at its end", "names of files without it")
	}
	// Size includes the holes of a sparse file.
	if hdr.Size > u.limits.bytes-u.bytes {
		problem := fmt.Sprintf("with its %d bytes the archive unpacks to more than the limit", hdr.Size)
		return archive.RefuseAs(ErrTooLarge, hdr.Name, problem,
			fmt.Sprintf("at most %d bytes unpacked", u.limits.bytes))
	}
	u.bytes += hdr.Size
	if err := u.limits.room.Take(archive.Occupied(hdr.Size), "unpacking"); err != nil {
		return fmt.Errorf("%s: %w", archive.EntryName(hdr.Name), err)
	}
	if err := u.clear(name, hdr.Name, tar.TypeReg); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("%s: %w", archive.EntryName(hdr.Name), err)
	}
	u.kinds[name] = tar.TypeReg
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.CopyN(f, content, hdr.Size); err != nil {
		return archive.ReadError(archive.EntryName(hdr.Name), err, "a complete gzip-compressed tar archive")
	}
	mode := fs.FileMode(0o444)
	if hdr.Mode&0o111 != 0 {
		mode = 0o555
	}
	if err := f.Chmod(mode); err != nil {
		return fmt.Errorf("%s: make read-only: %w", archive.EntryName(hdr.Name), err)
	}
	return nil
}

func (u *unpacker) addSymlink(name string, hdr *tar.Header) error {
	const allowed = "links with a relative target inside the archive"
	target := hdr.Linkname
	switch {
	case target == "":
		return archive.Refuse(hdr.Name, "is a symbolic link without a target", allowed)
	case len(target) > archive.MaxPathBytes:
		return archive.Refuse(hdr.Name, fmt.Sprintf("symbolic link with a target of %d bytes", len(target)),
			fmt.Sprintf("at most %d bytes", archive.MaxPathBytes))
	case path.IsAbs(target):
		return archive.Refuse(hdr.Name, "symbolic link to the absolute path "+archive.Quoted(target), allowed)
	case archive.Leaves(path.Join(path.Dir(name), target)): //nolint:gosec // this is the check
		return archive.Refuse(hdr.Name, "symbolic link to "+archive.Quoted(target)+", outside of the archive", allowed)
	}
	if err := u.clear(name, hdr.Name, tar.TypeSymlink); err != nil {
		return err
	}
	if err := u.root.Symlink(target, name); err != nil {
		return fmt.Errorf("%s: %w", archive.EntryName(hdr.Name), err)
	}
	u.kinds[name] = tar.TypeSymlink
	return nil
}

// addLink makes a hard link to a regular file earlier in the archive. A hard link to a symbolic link is refused,
// because it would be a symbolic link too.
func (u *unpacker) addLink(name string, hdr *tar.Header) error {
	target := path.Clean(hdr.Linkname)
	if path.IsAbs(target) || archive.Leaves(target) || u.kinds[target] != tar.TypeReg {
		return archive.Refuse(hdr.Name, "hard link to "+archive.Quoted(hdr.Linkname),
			"links to regular files that come earlier in the archive")
	}
	if target == name {
		return archive.Refuse(hdr.Name, "hard link to itself",
			"links to regular files that come earlier in the archive")
	}
	if err := u.clear(name, hdr.Name, tar.TypeReg); err != nil {
		return err
	}
	if err := u.root.Link(target, name); err != nil {
		return fmt.Errorf("%s: %w", archive.EntryName(hdr.Name), err)
	}
	u.kinds[name] = tar.TypeReg
	return nil
}

// checkLinks refuses symbolic links that lead out of the finished tree. A check of the link's text is not enough: if a
// is a link, "a/.." may be another place. A link without a target does no harm, because the tree never changes.
func (u *unpacker) checkLinks(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(u.kinds)) {
		if u.kinds[name] != tar.TypeSymlink {
			continue
		}
		if ctx.Err() != nil {
			return patience.Ended(ctx)
		}
		if _, err := u.root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return archive.Refuse(name, fmt.Sprintf("symbolic link that does not resolve inside the archive (%v)", err),
				"links with a relative target inside the archive")
		}
	}
	return nil
}
