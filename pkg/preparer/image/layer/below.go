package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
)

// maxLinks is how many symbolic links of layers below one path may go through. Linux has the same limit.
const maxLinks = 40

// parent returns the directory for an entry, and makes what is missing of it. Directories that the archive leaves out
// take owner and mode from the layers below. If such a directory is a symbolic link there, the entry lies in the link's
// target, because the image was built on a tree in which it was so.
func (u *unpacker) parent(raw, dir string) (string, error) {
	return u.walk(raw, dir, func(name string) error { return u.makeImplicit(name, raw) })
}

// find returns where a path of the archive is in this layer. It makes nothing.
func (u *unpacker) find(raw, name string) (string, error) {
	dir, base := path.Split(name)
	errMissing := archive.Refuse(raw, "hard link to "+archive.Quoted(name)+", which is not in this layer",
		"links to files that come earlier in the same layer")
	parent, err := u.walk(raw, dir, func(string) error { return errMissing })
	return path.Join(parent, base), err
}

// walk goes through the parts of dir, and calls missing for each directory that this layer does not have so far.
func (u *unpacker) walk(raw, dir string, missing func(name string) error) (string, error) {
	at, left, links := ".", parts(dir), 0
	for len(left) > 0 {
		part := left[0]
		left = left[1:]
		if part == ".." { // of a link's target
			at = path.Dir(at)
			continue
		}
		name := path.Join(at, part)
		if len(name) > archive.MaxPathBytes || strings.Count(name, "/") >= archive.MaxParts {
			return "", archive.Refuse(raw, "lies too deep behind symbolic links of layers below",
				fmt.Sprintf("paths of at most %d parts and %d bytes", archive.MaxParts, archive.MaxPathBytes))
		}
		target := ""
		switch kind, ok := u.kinds[name]; {
		case !ok:
			var err error
			if target, err = u.link(name); err != nil {
				return "", err
			}
		case kind == tar.TypeDir:
			at = name
			continue
		case kind != kindWhiteout: // a whiteout hides what is below, also a link
			return "", archive.Refuse(raw, fmt.Sprintf("lies below %s, which is a %s", archive.Quoted(name),
				archive.TypeName(kind)), "paths below directories")
		}
		if target != "" {
			if links++; links > maxLinks {
				return "", archive.Refuse(raw, "too many symbolic links of layers below",
					fmt.Sprintf("at most %d", maxLinks))
			}
			if path.IsAbs(target) {
				at = "."
			}
			left = append(parts(target), left...)
			continue
		}
		if err := missing(name); err != nil {
			return "", err
		}
		at = name
	}
	return at, nil
}

// parts returns the parts of a path, without those that lead nowhere. ".." remains.
func parts(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(part string) bool { return part == "" || part == "." })
}

// link returns the target, if the name is a symbolic link in the layers below. Otherwise it returns "".
func (u *unpacker) link(name string) (string, error) {
	target, known := u.links[name]
	if known {
		return target, nil
	}
	info, where, err := u.lookup(name)
	if err == nil && info != nil && info.Mode().Type() == fs.ModeSymlink {
		target, err = os.Readlink(filepath.Join(where, name))
		u.links[name], u.dependent = target, true
	}
	return target, err
}

// makeImplicit makes a directory that has no entry so far.
func (u *unpacker) makeImplicit(name, raw string) error {
	if err := u.count(raw, name); err != nil {
		return err
	}
	// Above other layers it may be a symbolic link. This also holds if the directory has an entry later.
	u.dependent = true
	if u.kinds[name] == kindWhiteout {
		u.dirs[name] = plain
		return u.replaceWhiteout(name, raw)
	}
	as := plain
	info, _, err := u.lookup(name)
	if err != nil {
		return err
	}
	if info != nil && info.IsDir() {
		st := info.Sys().(*syscall.Stat_t)
		as = attributes{info.Mode() &^ os.ModeType, int(st.Uid), int(st.Gid), info.ModTime()}
	}
	if err := u.root.Mkdir(name, 0o700); err != nil {
		return fmt.Errorf("%s: make directory: %w", archive.EntryName(raw), err)
	}
	u.kinds[name], u.dirs[name] = tar.TypeDir, as
	return nil
}

// lookup finds a path in the layers below, as an overlay mount of them would show it, and the layer that has it. The
// directories above it must be directories there, not symbolic links. nil: there is nothing, or this layer hides it.
func (u *unpacker) lookup(name string) (fs.FileInfo, string, error) {
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		if u.opaque[dir] {
			return nil, "", nil
		}
		if dir == "." {
			break
		}
	}
	layers, err := u.mergedAt(path.Dir(name))
	if err != nil {
		return nil, "", err
	}
	return find(layers, name)
}

// mergedAt returns those layers below whose directories at a path are merged into one. It remembers them, because a
// deep path above many layers needs thousands of system calls.
func (u *unpacker) mergedAt(dir string) ([]string, error) {
	if dir == "." {
		return u.below, nil
	}
	if layers, ok := u.merged[dir]; ok {
		return layers, nil
	}
	layers, err := u.mergedAt(path.Dir(dir))
	if err == nil {
		layers, err = directories(layers, dir)
	}
	if err == nil {
		u.merged[dir] = layers
	}
	return layers, err
}

// find returns what the highest layer has at a path.
func find(layers []string, name string) (fs.FileInfo, string, error) {
	for _, layer := range layers {
		info, err := os.Lstat(filepath.Join(layer, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, "", fmt.Errorf("look into a layer below: %w", err)
		case isWhiteout(info):
			return nil, "", nil
		}
		return info, layer, nil
	}
	return nil, "", nil
}

// directories returns those layers whose directories at a path are merged into one.
func directories(layers []string, name string) (merged []string, err error) {
	for _, layer := range layers {
		at := filepath.Join(layer, name)
		info, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("look into a layer below: %w", err)
		case !info.IsDir():
			return merged, nil
		}
		merged = append(merged, layer)
		if opaque, err := IsOpaque(at); opaque || err != nil {
			return merged, err
		}
	}
	return merged, nil
}

// IsOpaque reports whether a directory of a layer hides the directories of the same name in the layers below. If it is
// the directory of the layer itself, it hides all layers below. overlayfs ignores the mark there, so the caller must
// leave those layers out of the mount.
func IsOpaque(dir string) (bool, error) {
	var value [1]byte
	n, err := unix.Lgetxattr(dir, opaqueAttribute, value[:])
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ERANGE):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read whether %s is opaque: %w", dir, err)
	}
	return n == 1 && value[0] == 'y', nil
}

// visible returns those layers that no layer above them hides as a whole.
func visible(layers []string) ([]string, error) {
	for i, layer := range layers {
		if opaque, err := IsOpaque(layer); opaque || err != nil {
			return layers[:i+1], err
		}
	}
	return layers, nil
}

// isWhiteout reports whether a file is what overlayfs takes for a whiteout.
func isWhiteout(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode().Type() == fs.ModeDevice|fs.ModeCharDevice && st.Rdev == 0
}
