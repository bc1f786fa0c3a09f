package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
)

// Names of the archive that do not name files. See
// https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts
const (
	whiteoutPrefix = ".wh."
	metaPrefix     = ".wh..wh."
	opaqueName     = ".wh..wh..opq"
)

const opaqueAttribute = "trusted.overlay.opaque"

// kindWhiteout is the kind of a whiteout. The other kinds are flags of package tar.
const kindWhiteout = 'w'

// Limits of extended attributes of one entry, in bytes. File systems store few more, and report a full disk for more.
const (
	maxAttribute  = 1 << 10
	maxAttributes = 2 << 10
)

// bytesPerName limits all paths of a layer together, because they are kept in memory: on average this many bytes for
// each entry that the limits allow.
const bytesPerName = 128

// unpacker writes one layer into one empty directory.
type unpacker struct {
	root   *os.Root // a second protection: paths cannot lead out of the directory
	below  []string
	limits Limits

	entries  int
	names    int   // bytes of paths
	bytes    int64 // of files
	occupied int64 // on the disk, roughly

	kinds     map[string]byte       // by path: what is there. Only the unpacker writes, so it is complete
	dirs      map[string]attributes // by path
	opaque    map[string]bool       // directories that hide the layers below
	links     map[string]string     // symbolic links of layers below that entries lie behind: their targets
	merged    map[string][]string   // by path of a directory: the layers below that have it
	dependent bool                  // see Result
}

func (u *unpacker) add(hdr *tar.Header, content io.Reader) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	raw := strings.TrimLeft(hdr.Name, "/")
	if raw == "" && hdr.Name != "" {
		raw = "."
	}
	clean, err := archive.CleanName(raw)
	if err != nil {
		return err
	}
	if err := u.count(hdr.Name, clean); err != nil {
		return err
	}
	dir, base := path.Split(clean)
	inMeta := strings.Contains("/"+dir, "/"+metaPrefix)
	switch {
	case inMeta, strings.HasPrefix(base, metaPrefix) && base != opaqueName:
		return nil // what the file system aufs kept for itself
	case strings.Contains("/"+dir, "/"+whiteoutPrefix):
		return archive.Refuse(hdr.Name, "lies below a whiteout", "paths below directories")
	}
	parent, err := u.parent(hdr.Name, dir)
	if err != nil {
		return err
	}
	if base == opaqueName {
		return u.makeOpaque(parent, hdr.Name)
	}
	if hidden, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		if hidden == "" || hidden == "." || hidden == ".." {
			return archive.Refuse(hdr.Name, "is a whiteout of no name", "whiteouts of names")
		}
		return u.addWhiteout(path.Join(parent, hidden), hdr.Name)
	}
	return u.addKind(path.Join(parent, base), hdr, content)
}

func (u *unpacker) addKind(name string, hdr *tar.Header, content io.Reader) error {
	for _, id := range []int{hdr.Uid, hdr.Gid} {
		if id < 0 || id >= math.MaxUint32 {
			return archive.Refuse(hdr.Name, fmt.Sprintf("has the owner %d", id), "0 to 4294967294")
		}
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
	case tar.TypeFifo:
		return u.addFifo(name, hdr)
	case tar.TypeChar, tar.TypeBlock:
		if strings.HasPrefix(name, "dev/") { // containers have a /dev of their own
			return nil
		}
	}
	return archive.Refuse(hdr.Name, "is a "+archive.TypeName(hdr.Typeflag),
		"regular files, directories, links and named pipes; devices below dev/ are left out")
}

// count counts one more entry, or a directory above an entry.
func (u *unpacker) count(raw, name string) error {
	if u.entries++; u.entries > u.limits.Entries {
		return archive.RefuseAs(archive.ErrTooLarge, raw, fmt.Sprintf("is number %d", u.entries),
			fmt.Sprintf("at most %d entries in all layers", u.limits.Entries))
	}
	if u.names += len(name); u.names > u.limits.Entries*bytesPerName+archive.MaxPathBytes {
		return archive.RefuseAs(archive.ErrTooLarge, raw, "the paths are too long together",
			fmt.Sprintf("at most %d bytes", u.limits.Entries*bytesPerName))
	}
	return u.take(raw, archive.Occupied(0))
}

// take counts bytes that an entry occupies on the disk.
func (u *unpacker) take(raw string, bytes int64) error {
	u.occupied += bytes
	if err := u.limits.Room.Take(bytes, "unpacking"); err != nil {
		return fmt.Errorf("%s: %w", archive.EntryName(raw), err)
	}
	return nil
}

func (u *unpacker) addDir(name string, hdr *tar.Header) error {
	old, ok := u.kinds[name]
	switch {
	case !ok:
		if err := u.root.Mkdir(name, 0o700); err != nil {
			return fmt.Errorf("%s: %w", archive.EntryName(hdr.Name), err)
		}
	case old == kindWhiteout:
		if err := u.replaceWhiteout(name, hdr.Name); err != nil {
			return err
		}
	case old != tar.TypeDir:
		return refuseOther(hdr.Name, tar.TypeDir, old)
	}
	u.kinds[name] = tar.TypeDir
	u.dirs[name] = attributes{hdr.FileInfo().Mode() &^ os.ModeType, hdr.Uid, hdr.Gid, hdr.ModTime}
	if !hasAttributes(hdr) {
		return nil
	}
	return u.opened(name, hdr.Name, func(f *os.File) error { return setAttributes(f, hdr) })
}

func (u *unpacker) addFile(name string, hdr *tar.Header, content io.Reader) (err error) {
	if strings.HasSuffix(hdr.Name, "/") {
		return archive.Refuse(hdr.Name, "is a regular file with a slash at its end", "names of files without it")
	}
	// Size is the length of the unpacked file, including the holes of a sparse file.
	if hdr.Size > u.limits.Bytes-u.bytes {
		problem := fmt.Sprintf("with its %d bytes the image unpacks to more than the limit", hdr.Size)
		return archive.RefuseAs(archive.ErrTooLarge, hdr.Name, problem,
			fmt.Sprintf("at most %d more bytes", u.limits.Bytes-u.bytes))
	}
	u.bytes += hdr.Size
	if err := u.take(hdr.Name, archive.Occupied(hdr.Size)-archive.Occupied(0)); err != nil {
		return err
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
		return archive.ReadError(archive.EntryName(hdr.Name), err, allowed)
	}
	err = f.Chown(hdr.Uid, hdr.Gid) // before the mode, because a change of the owner removes setuid bits
	if err == nil {
		err = f.Chmod(hdr.FileInfo().Mode() &^ os.ModeType)
	}
	if err == nil && hasAttributes(hdr) {
		err = setAttributes(f, hdr)
	}
	if err == nil {
		modified := unix.Timeval{Sec: hdr.ModTime.Unix(), Usec: int64(hdr.ModTime.Nanosecond() / 1000)}
		err = unix.Futimes(int(f.Fd()), []unix.Timeval{modified, modified})
	}
	if err != nil {
		return fmt.Errorf("%s: set owner, mode and time: %w", archive.EntryName(hdr.Name), err)
	}
	return nil
}

// addSymlink makes a symbolic link. It may lead anywhere, because no program on the node's side follows it: only
// processes of containers do, inside their root.
func (u *unpacker) addSymlink(name string, hdr *tar.Header) error {
	if hdr.Linkname == "" || len(hdr.Linkname) > archive.MaxPathBytes || strings.ContainsRune(hdr.Linkname, 0) {
		return archive.Refuse(hdr.Name, fmt.Sprintf("symbolic link with a target of %d bytes", len(hdr.Linkname)),
			fmt.Sprintf("1 to %d bytes without zero bytes", archive.MaxPathBytes))
	}
	if err := u.clear(name, hdr.Name, tar.TypeSymlink); err != nil {
		return err
	}
	err := u.root.Symlink(hdr.Linkname, name)
	if err == nil {
		u.kinds[name] = tar.TypeSymlink
		err = u.root.Lchown(name, hdr.Uid, hdr.Gid)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", archive.EntryName(hdr.Name), err)
	}
	return nil
}

// addLink makes a hard link to an earlier entry of this layer.
func (u *unpacker) addLink(name string, hdr *tar.Header) error {
	const earlier = "links to files that come earlier in the same layer"
	target, err := archive.CleanName(strings.TrimLeft(hdr.Linkname, "/"))
	if err == nil {
		target, err = u.find(hdr.Name, target)
	}
	if err != nil {
		return err
	}
	kind, ok := u.kinds[target]
	if !ok || kind == tar.TypeDir || kind == kindWhiteout || target == name {
		return archive.Refuse(hdr.Name, "hard link to "+archive.Quoted(hdr.Linkname), earlier)
	}
	if err := u.clear(name, hdr.Name, kind); err != nil {
		return err
	}
	if err := u.root.Link(target, name); err != nil {
		return fmt.Errorf("%s: %w", archive.EntryName(hdr.Name), err)
	}
	u.kinds[name] = kind
	return nil
}

func (u *unpacker) addFifo(name string, hdr *tar.Header) error {
	if err := u.mknod(name, hdr.Name, tar.TypeFifo, unix.S_IFIFO|0o600); err != nil {
		return err
	}
	err := u.root.Lchown(name, hdr.Uid, hdr.Gid)
	if err == nil {
		err = u.root.Chmod(name, hdr.FileInfo().Mode().Perm())
	}
	if err != nil {
		return fmt.Errorf("%s: set owner and mode: %w", archive.EntryName(hdr.Name), err)
	}
	return nil
}

// addWhiteout hides a name of the layers below. What this layer has at that name stays: a whiteout is only about layers
// below, wherever it stands in the archive. If there is nothing to hide, it makes nothing, because a mount shows a
// whiteout in a directory that no layer below has.
func (u *unpacker) addWhiteout(name, raw string) error {
	u.dependent = true
	kind, ok := u.kinds[name]
	if !ok {
		info, _, err := u.lookup(name)
		if info == nil || err != nil {
			return err
		}
		return u.mknod(name, raw, kindWhiteout, unix.S_IFCHR)
	}
	if kind == tar.TypeDir {
		return u.makeOpaque(name, raw)
	}
	return nil
}

// replaceWhiteout makes a directory where a whiteout is. The directory hides what the whiteout hid.
func (u *unpacker) replaceWhiteout(name, raw string) error {
	err := u.root.Remove(name)
	if err == nil {
		err = u.root.Mkdir(name, 0o700)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", archive.EntryName(raw), err)
	}
	u.kinds[name] = tar.TypeDir
	return u.makeOpaque(name, raw)
}

// makeOpaque makes a directory hide the directories of the same name in the layers below.
func (u *unpacker) makeOpaque(dir, raw string) error {
	u.opaque[dir] = true
	return u.opened(dir, raw, func(f *os.File) error {
		return unix.Fsetxattr(int(f.Fd()), opaqueAttribute, []byte("y"), 0)
	})
}

// opened calls f with an opened directory.
func (u *unpacker) opened(dir, raw string, f func(*os.File) error) error {
	d, err := u.root.Open(dir)
	if err == nil {
		err = errors.Join(f(d), d.Close())
	}
	if err != nil {
		return fmt.Errorf("%s: directory %s: %w", archive.EntryName(raw), archive.Quoted(dir), err)
	}
	return nil
}

// mknod makes a file that is neither regular nor a link nor a directory. All device numbers are 0.
func (u *unpacker) mknod(name, raw string, kind byte, mode uint32) error {
	if err := u.clear(name, raw, kind); err != nil {
		return err
	}
	err := u.opened(path.Dir(name), raw, func(f *os.File) error {
		return unix.Mknodat(int(f.Fd()), path.Base(name), mode, 0)
	})
	if err == nil {
		u.kinds[name] = kind
	}
	return err
}

// clear removes an earlier entry of the same name, so that links are never followed and other hard links do not change.
// A directory does not change into something else, and nothing else into a directory.
func (u *unpacker) clear(name, raw string, kind byte) error {
	old, ok := u.kinds[name]
	if !ok {
		return nil
	}
	if old == tar.TypeDir {
		return refuseOther(raw, kind, old)
	}
	if err := u.root.Remove(name); err != nil {
		return fmt.Errorf("%s: replace: %w", archive.EntryName(raw), err)
	}
	delete(u.kinds, name)
	return nil
}

func refuseOther(raw string, kind, old byte) error {
	return archive.Refuse(raw, fmt.Sprintf("is a %s here and a %s earlier in the archive", archive.TypeName(kind),
		archive.TypeName(old)), "directories that stay directories")
}
