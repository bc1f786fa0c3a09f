package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what fits into a unix socket's address: 108 bytes with the zero byte at the end (unix(7)).
const maxSocketPath = 107

// freshName is what a socket is called before it is in place. No name is shorter.
const freshName = "~"

// ErrOthers means that the other end of a socket belongs to neither root nor this process's user.
var ErrOthers = errors.New("neither root nor this user")

// CheckSocket returns why there cannot be a socket at a path.
func CheckSocket(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("socket %s: path of %d bytes; allowed: at most %d bytes, which the kernel limits; choose a shorter directory", path, len(path), maxSocketPath)
	}
	return nil
}

// Socket listens at a path, with the mode 0600. It is put in place with one rename, so that nobody sees it with a wider mode and
// what somebody left who was killed is replaced: the caller must be the only one who listens in that directory. Closing leaves it there.
func Socket(path string) (*net.UnixListener, error) {
	if err := CheckSocket(path); err != nil {
		return nil, err
	}
	fresh := filepath.Join(filepath.Dir(path), freshName)
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it would remove the name that the socket no longer has
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("put the socket in place: %w", err)
	}
	return l, nil
}

// Own returns a listener that takes connections of root and of this process's user alone, and closes others.
func Own(l *net.UnixListener) net.Listener { return own{l} }

type own struct{ *net.UnixListener }

// Accept returns the next connection of root, or of this user.
func (l own) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if checkPeer(c) == nil {
			return c, nil
		}
		_ = c.Close() // nothing was said
	}
}

// Dial connects to a socket that root or this process's user listens at; otherwise ErrOthers, and nothing is sent.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := checkPeer(c.(*net.UnixConn)); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return c, nil
}

// checkPeer asks the kernel who connected, or who listens (SO_PEERCRED, unix(7)).
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(controlErr, err); err != nil {
		return fmt.Errorf("who is at the other end: %w", err)
	}
	if uid := int(cred.Uid); uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("user %d is at the other end: %w", uid, ErrOthers)
	}
	return nil
}
