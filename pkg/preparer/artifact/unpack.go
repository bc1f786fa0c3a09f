package artifact

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Bounds on names, so that no path below the store's directory exceeds the kernel's 4096 bytes.
const (
	maxPathBytes = 1024
	maxNameBytes = 255 // NAME_MAX of the usual file systems

	// maxParts bounds the directories above an entry: each is looked up for each entry below it.
	maxParts = 64
)

// limits bounds what one archive may become.
type limits struct {
	bytes   int64
	entries int
	room    *room
}

// maxShownName is how many bytes of a name in an archive an error repeats: the name may be as long as the archive.
const maxShownName = 256

// entryName is how errors speak of an entry.
func entryName(name string) string { return "entry " + quoted(name) }

// quoted renders a name or a link's target from an archive, the beginning of it where it is long.
func quoted(name string) string {
	if len(name) > maxShownName {
		return strconv.Quote(strings.ToValidUTF8(name[:maxShownName], "")) + "..."
	}
	return strconv.Quote(name)
}

// refusal says which entry of an archive is refused, and matches the kind.
type refusal struct {
	error
	kind error
}

func (r refusal) Unwrap() error { return r.kind }

func refuseAs(kind error, entry, problem, allowed string) error {
	return refusal{fmt.Errorf("%s: %s; allowed: %s", entryName(entry), problem, allowed), kind}
}

func refuse(entry, problem, allowed string) error {
	return refuseAs(ErrArchive, entry, problem, allowed)
}

// unpacker writes one archive into one empty directory.
type unpacker struct {
	root    *os.Root // second line of defence: the kernel walk cannot leave the tree either
	limits  limits
	entries int
	bytes   int64
	// kinds says what the tree holds at each path: tar.TypeReg, tar.TypeDir or tar.TypeSymlink. It is the authority on
	// where an entry may be written: the tree starts empty and nobody else writes into it.
	kinds map[string]byte
}

// unpack writes the gzip-compressed tar archive into the empty directory and makes everything in it read-only.
func unpack(ctx context.Context, archive io.Reader, dir string, limits limits) (err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open the tree to unpack into: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	u := &unpacker{root: root, limits: limits, kinds: map[string]byte{".": tar.TypeDir}}
	if err := u.readAll(ctx, contextReader{ctx, archive}); err != nil {
		return err
	}
	if err := u.checkLinks(ctx); err != nil {
		return err
	}
	return u.seal()
}

// readAll consumes the archive to its last byte: only then have the checksum of the compression and the absence of
// anything behind the end been seen.
func (u *unpacker) readAll(ctx context.Context, archive io.Reader) error {
	const allowed = "a complete gzip-compressed tar archive"
	zr, err := gzip.NewReader(archive)
	if err != nil {
		return fmt.Errorf("%w: read gzip header: %w; allowed: %s", ErrArchive, err, allowed)
	}
	stream := &boundedReader{r: zr, left: u.limits.bytes, limit: u.limits.bytes}
	tr := tar.NewReader(stream)
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return readError("read the next entry", err, allowed)
		}
		if ctx.Err() != nil { // what was read already may hold thousands of entries
			return ended(ctx)
		}
		if err := u.add(hdr, tr); err != nil {
			return err
		}
	}
	if stream.ended { // archive/tar takes the end of its input for the end of the archive
		return fmt.Errorf("%w: no end-of-archive marker: it was cut off; allowed: %s", ErrArchive, allowed)
	}
	rest, err := firstNonZero(stream)
	if err != nil {
		return readError("read the archive's end", err, allowed)
	}
	if rest {
		return fmt.Errorf("%w: data after the end of the tar archive; allowed: %s", ErrArchive, allowed)
	}
	return nil
}

// readError sorts what went wrong while reading: a size, the node's own trouble, or a broken archive.
func readError(what string, err error, allowed string) error {
	var pathError *fs.PathError
	switch {
	case errors.Is(err, ErrTooLarge), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.As(err, &pathError):
		return fmt.Errorf("%s: %w", what, err)
	default:
		return fmt.Errorf("%w: %s: %w; allowed: %s", ErrArchive, what, err, allowed)
	}
}

func (u *unpacker) add(hdr *tar.Header, content io.Reader) error {
	if err := u.count(hdr.Name); err != nil {
		return err
	}
	name, err := u.place(hdr)
	if err != nil {
		return err
	}
	if special := hdr.Mode & 0o7000; special != 0 {
		return refuse(hdr.Name, fmt.Sprintf("mode %04o has setuid, setgid or sticky bits", hdr.Mode&0o7777), "modes up to 0777")
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		return u.addDir(name, hdr)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.addFile(name, hdr, content)
	case tar.TypeSymlink:
		return u.addSymlink(name, hdr)
	case tar.TypeLink:
		return u.addLink(name, hdr)
	case tar.TypeXGlobalHeader: // what git archive writes; nothing to unpack
		return nil
	default:
		return refuse(hdr.Name, "is a "+typeName(hdr.Typeflag), "regular files, directories, symbolic and hard links")
	}
}

// place checks the entry's name and returns it in clean form, with all directories above it made.
func (u *unpacker) place(hdr *tar.Header) (string, error) {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return "", nil
	}
	const inside = "relative paths inside it"
	raw := hdr.Name
	switch {
	case raw == "":
		return "", refuse(raw, "has no name", inside)
	case strings.ContainsRune(raw, 0):
		return "", refuse(raw, "has a zero byte in its name", inside)
	case path.IsAbs(raw):
		return "", refuse(raw, "is an absolute path", inside)
	case slices.Contains(strings.Split(raw, "/"), ".."):
		return "", refuse(raw, "leaves the archive", inside)
	}
	name := path.Clean(raw)
	if len(name) > maxPathBytes {
		return "", refuse(raw, fmt.Sprintf("path of %d bytes", len(name)), fmt.Sprintf("at most %d bytes", maxPathBytes))
	}
	parts := strings.Split(name, "/")
	if len(parts) > maxParts {
		return "", refuse(raw, fmt.Sprintf("path of %d parts", len(parts)), fmt.Sprintf("at most %d parts", maxParts))
	}
	for _, part := range parts {
		if len(part) > maxNameBytes {
			return "", refuse(raw, fmt.Sprintf("file name of %d bytes", len(part)), fmt.Sprintf("at most %d bytes", maxNameBytes))
		}
	}
	for i := 1; i < len(parts); i++ {
		if err := u.parent(raw, strings.Join(parts[:i], "/")); err != nil {
			return "", err
		}
	}
	return name, nil
}

// parent makes the directory unless it is there. Anything else at that path, a symbolic link above all, is refused.
func (u *unpacker) parent(raw, dir string) error {
	n, ok := u.kinds[dir]
	if ok && n == tar.TypeDir {
		return nil
	}
	if ok {
		return refuse(raw, fmt.Sprintf("lies below %q, which is a %s", dir, typeName(n)), "paths below directories of the archive")
	}
	if err := u.count(raw); err != nil {
		return err
	}
	u.kinds[dir] = tar.TypeDir
	if err := u.root.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("%s: make directory: %w", entryName(raw), err)
	}
	return nil
}

// count takes in one more entry, or a directory that an entry implies.
func (u *unpacker) count(raw string) error {
	if u.entries++; u.entries > u.limits.entries {
		return refuseAs(ErrTooLarge, raw, fmt.Sprintf("is number %d", u.entries), fmt.Sprintf("at most %d files, directories and links", u.limits.entries))
	}
	return nil
}

// clear makes the path free for an entry of the given kind: a later entry replaces an earlier one of its kind.
func (u *unpacker) clear(name, raw string, kind byte) error {
	old, ok := u.kinds[name]
	if !ok {
		return nil
	}
	if old != kind {
		return refuse(raw, fmt.Sprintf("is a %s here and a %s earlier in the archive", typeName(kind), typeName(old)), "one type for each path")
	}
	// Removed, not overwritten: an open for writing would go through a symbolic link or change a hard link's peers.
	if err := u.root.Remove(name); err != nil {
		return fmt.Errorf("%s: replace: %w", entryName(raw), err)
	}
	return nil
}

// seal takes away all write permission and lets every user in: pods may have users of their own. Files have their
// mode already; directories had to stay writable until now.
func (u *unpacker) seal() error {
	for _, name := range slices.Sorted(maps.Keys(u.kinds)) {
		if u.kinds[name] == tar.TypeDir {
			if err := u.root.Chmod(name, 0o555); err != nil {
				return fmt.Errorf("make directory %q read-only: %w", name, err)
			}
		}
	}
	return nil
}

// typeName says in words what a tar type flag means.
func typeName(flag byte) string {
	switch flag {
	case tar.TypeReg:
		return "regular file"
	case tar.TypeLink:
		return "hard link"
	case tar.TypeSymlink:
		return "symbolic link"
	case tar.TypeDir:
		return "directory"
	case tar.TypeChar:
		return "character device"
	case tar.TypeBlock:
		return "block device"
	case tar.TypeFifo:
		return "named pipe"
	default:
		return fmt.Sprintf("entry of type %q", flag)
	}
}
