package artifact

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/patience"
)

type limits struct {
	bytes   int64
	entries int
	room    *archive.Room
}

// unpacker writes one archive into one empty directory.
type unpacker struct {
	root    *os.Root // a second protection: paths cannot lead out of the tree
	limits  limits
	entries int
	bytes   int64
	// kinds has the type of the entry at each path: tar.TypeReg, tar.TypeDir or tar.TypeSymlink. Only the unpacker
	// writes into the tree, so kinds is complete, and decides where an entry may be written.
	kinds map[string]byte
}

// unpack unpacks a gzip-compressed tar archive into an empty directory.
func unpack(ctx context.Context, packed io.Reader, dir string, limits limits) (err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open the tree to unpack into: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	u := &unpacker{root: root, limits: limits, kinds: map[string]byte{".": tar.TypeDir}}
	if err := u.readAll(ctx, patience.WithContext(ctx, packed)); err != nil {
		return err
	}
	if err := u.checkLinks(ctx); err != nil {
		return err
	}
	return u.seal()
}

// readAll unpacks all entries, and reads the archive to its last byte. Only there it is known that the checksum is
// right, and that no data follows the end.
func (u *unpacker) readAll(ctx context.Context, packed io.Reader) error {
	const allowed = "a complete gzip-compressed tar archive"
	zr, err := gzip.NewReader(packed)
	if err != nil {
		return fmt.Errorf("%w: read gzip header: %w; allowed: %s", ErrArchive, err, allowed)
	}
	stream := archive.Limit(zr, u.limits.bytes)
	tr := tar.NewReader(stream)
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return archive.ReadError("read the next entry", err, allowed)
		}
		if ctx.Err() != nil { // checked here too, because the data read already may have thousands of entries
			return patience.Ended(ctx)
		}
		// The holes of a sparse file are written without a read of the archive.
		if err := u.add(hdr, patience.WithContext(ctx, tr)); err != nil {
			return err
		}
	}
	if stream.Ended { // archive/tar accepts the end of its input as the end of the archive
		return fmt.Errorf("%w: no end-of-archive marker: it was cut off; allowed: %s", ErrArchive, allowed)
	}
	rest, err := archive.FirstNonZero(stream)
	if err != nil {
		return archive.ReadError("read the archive's end", err, allowed)
	}
	if rest {
		return fmt.Errorf("%w: data after the end of the tar archive; allowed: %s", ErrArchive, allowed)
	}
	return nil
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
		return archive.Refuse(hdr.Name, fmt.Sprintf("mode %04o has setuid, setgid or sticky bits", hdr.Mode&0o7777),
			"modes up to 0777")
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
	case tar.TypeXGlobalHeader: // git archive writes such an entry; it has nothing to unpack
		return nil
	default:
		return archive.Refuse(hdr.Name, "is a "+archive.TypeName(hdr.Typeflag),
			"regular files, directories, symbolic and hard links")
	}
}

// place checks an entry's name, makes all directories above it, and returns the clean name.
func (u *unpacker) place(hdr *tar.Header) (string, error) {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return "", nil
	}
	name, err := archive.CleanName(hdr.Name)
	if err != nil {
		return "", err
	}
	parts := strings.Split(name, "/")
	for i := 1; i < len(parts); i++ {
		if err := u.parent(hdr.Name, strings.Join(parts[:i], "/")); err != nil {
			return "", err
		}
	}
	return name, nil
}

// parent makes a missing directory above an entry. It refuses another file there, for example a symbolic link.
func (u *unpacker) parent(raw, dir string) error {
	n, ok := u.kinds[dir]
	if ok && n == tar.TypeDir {
		return nil
	}
	if ok {
		return archive.Refuse(raw, fmt.Sprintf("lies below %q, which is a %s", dir, archive.TypeName(n)),
			"paths below directories of the archive")
	}
	if err := u.count(raw); err != nil {
		return err
	}
	u.kinds[dir] = tar.TypeDir
	if err := u.root.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("%s: make directory: %w", archive.EntryName(raw), err)
	}
	return nil
}

func (u *unpacker) count(raw string) error {
	if u.entries++; u.entries > u.limits.entries {
		return archive.RefuseAs(ErrTooLarge, raw, fmt.Sprintf("is number %d", u.entries),
			fmt.Sprintf("at most %d files, directories and links", u.limits.entries))
	}
	return nil
}

// clear removes an earlier entry of the same name and kind.
func (u *unpacker) clear(name, raw string, kind byte) error {
	old, ok := u.kinds[name]
	if !ok {
		return nil
	}
	if old != kind {
		problem := fmt.Sprintf("is a %s here and a %s earlier in the archive", archive.TypeName(kind),
			archive.TypeName(old))
		return archive.Refuse(raw, problem, "one type for each path")
	}
	// Not overwritten: a write would follow a symbolic link, or change other hard links of the file.
	if err := u.root.Remove(name); err != nil {
		return fmt.Errorf("%s: replace: %w", archive.EntryName(raw), err)
	}
	return nil
}

// seal makes directories read-only, and lets every user read them, because pods may have their own users.
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

// unpackedSize returns the size of the content from the end of a gzip file: modulo 4 GiB, and of the last member (RFC
// 1952, section 2.3.1). With this hint most archives that are too large are refused before they are unpacked. Room.Take
// stops the others.
func unpackedSize(packed *os.File) (int64, error) {
	info, err := packed.Stat()
	if err != nil {
		return 0, fmt.Errorf("look at the fetched file: %w", err)
	}
	var end [4]byte
	if info.Size() < int64(len(end)) {
		return 0, nil
	}
	if _, err := packed.ReadAt(end[:], info.Size()-int64(len(end))); err != nil {
		return 0, fmt.Errorf("read the end of the fetched file: %w", err)
	}
	return int64(binary.LittleEndian.Uint32(end[:])), nil
}
