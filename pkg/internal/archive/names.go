package archive

import (
	"archive/tar"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Limits for names. With them, no path below a store's directory is longer than the kernel's limit of 4096 bytes.
const (
	MaxPathBytes = 1024
	maxNameBytes = 255 // NAME_MAX of the usual file systems

	// MaxParts is the largest number of parts of a path. It is limited because each entry looks up all directories
	// above it.
	MaxParts = 64
)

// CleanName checks the path of an entry, and returns it in clean form. It refuses paths that are absolute, lead out of
// the archive, or are too long.
func CleanName(raw string) (string, error) {
	const inside = "relative paths inside it"
	switch {
	case raw == "":
		return "", Refuse(raw, "has no name", inside)
	case strings.ContainsRune(raw, 0):
		return "", Refuse(raw, "has a zero byte in its name", inside)
	case path.IsAbs(raw):
		return "", Refuse(raw, "is an absolute path", inside)
	case slices.Contains(strings.Split(raw, "/"), ".."):
		return "", Refuse(raw, "leaves the archive", inside)
	}
	name := path.Clean(raw)
	if len(name) > MaxPathBytes {
		return "", Refuse(raw, fmt.Sprintf("path of %d bytes", len(name)),
			fmt.Sprintf("at most %d bytes", MaxPathBytes))
	}
	parts := strings.Split(name, "/")
	if len(parts) > MaxParts {
		return "", Refuse(raw, fmt.Sprintf("path of %d parts", len(parts)), fmt.Sprintf("at most %d parts", MaxParts))
	}
	for _, part := range parts {
		if len(part) > maxNameBytes {
			return "", Refuse(raw, fmt.Sprintf("file name of %d bytes", len(part)),
				fmt.Sprintf("at most %d bytes", maxNameBytes))
		}
	}
	return name, nil
}

// Leaves reports whether a clean relative path leads out of the directory where it begins.
func Leaves(clean string) bool { return clean == ".." || strings.HasPrefix(clean, "../") }

// maxShownName is how much of a name an error shows, in bytes. A name can be as long as the archive.
const maxShownName = 256

// EntryName names an entry in errors.
func EntryName(name string) string { return "entry " + Quoted(name) }

// Quoted returns a name, or the target of a link, in quotes. If it is long, Quoted returns only the beginning.
func Quoted(name string) string {
	if len(name) > maxShownName {
		return strconv.Quote(strings.ToValidUTF8(name[:maxShownName], "")) + "..."
	}
	return strconv.Quote(name)
}

// refusal is an error that names the refused entry of an archive. Its kind is ErrArchive or ErrTooLarge.
type refusal struct {
	error
	kind error
}

func (r refusal) Unwrap() error { return r.kind }

// RefuseAs returns an error that names the entry. errors.Is finds kind in it.
func RefuseAs(kind error, entry, problem, allowed string) error {
	return refusal{fmt.Errorf("%s: %s; allowed: %s", EntryName(entry), problem, allowed), kind}
}

// Refuse returns an ErrArchive that names the entry.
func Refuse(entry, problem, allowed string) error {
	return RefuseAs(ErrArchive, entry, problem, allowed)
}

// TypeName returns the name of a tar entry's type, for errors.
func TypeName(flag byte) string {
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
