package container

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/regular"
)

// Files is what Build must know about an image's files.
type Files struct {
	Accounts Accounts
	// Places has for each of Input.MountPaths where it is when the image's links are followed.
	Places map[string]string
}

// ErrLink means that a link of an image leads from a file of accounts to a file of the kernel.
var ErrLink = errors.New("not an image that can run here")

// maxAccountsBytes bounds a file of accounts. It is enough for 15,000 accounts.
const maxAccountsBytes = 1 << 20

// ReadFiles reads what Build must know about an image whose files are at root. paths is Input.MountPaths. Links in the
// image begin at root, as they do in the container, and lead to nothing outside. A missing file of accounts is empty.
// One that is not regular, or larger than 1 MiB, is an error. No process may change the files meanwhile.
func ReadFiles(root string, paths []string) (f Files, err error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Files{}, fmt.Errorf("read the image's files: open %s: %w", root, err)
	}
	defer func() { _ = unix.Close(dir) }()
	f.Places = make(map[string]string, len(paths))
	for _, at := range paths {
		if f.Places[at], err = follow(root, at); err != nil {
			return Files{}, fmt.Errorf("find the image's %s: %w", at, err)
		}
	}
	for _, file := range []struct {
		name string
		into *[]byte
	}{{"/etc/passwd", &f.Accounts.Passwd}, {"/etc/group", &f.Accounts.Group}} {
		place, err := follow(root, file.name)
		if err == nil {
			*file.into, err = readIn(dir, place)
		}
		if err == nil && isKernels(place) {
			// runc reads the file in the container, without limits. There it may be a device or a pipe.
			err = fmt.Errorf("%w: it leads to %s", ErrLink, field.OneLine(place))
		}
		if err != nil {
			return Files{}, fmt.Errorf("read the image's %s: %w", file.name, err)
		}
	}
	return f, nil
}

// maxLinks bounds the links in one path. The kernel follows 40.
const maxLinks = 40

// follow returns where a path of the image leads. Names that do not exist are kept, because runc makes them. A link to
// a name that does not exist is followed, because runc does that too.
func follow(root, at string) (string, error) {
	found, rest, links := "/", path.Clean("/"+at), 0
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(strings.TrimPrefix(rest, "/"), "/")
		next := path.Join(found, name) // at /, .. is /
		to, err := os.Readlink(filepath.Join(root, next))
		switch {
		case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
			// no link, or nothing
			found = next
		case err != nil:
			return "", err
		case links == maxLinks:
			return "", unix.ELOOP
		case path.IsAbs(to):
			found, rest, links = "/", to+"/"+rest, links+1
		default:
			rest, links = to+"/"+rest, links+1
		}
	}
	return found, nil
}

// readIn reads a file below a directory, at a path without links. It opens the file for reading only when it is known
// to be regular, because the opening of a device or pipe can have effects. The kernel could follow links itself
// (RESOLVE_IN_ROOT), but fails at .. while any process of the machine mounts something.
func readIn(dir int, place string) ([]byte, error) {
	at, err := unix.Openat2(dir, "."+place, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return nil, nil
	case errors.Is(err, unix.ENOSYS):
		return nil, fmt.Errorf("%w: openat2 needs Linux 5.6", err)
	case err != nil:
		return nil, err
	}
	defer func() { _ = unix.Close(at) }()
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, regular.ErrOther
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), place)
	defer func() { _ = f.Close() }()
	return regular.ReadAll(f, maxAccountsBytes)
}
