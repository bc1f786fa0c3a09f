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

// maxSocketPath is the longest path in a unix socket's address: 108 bytes with the zero byte at the end (unix(7)).
const maxSocketPath = 107

// freshName is the socket's name until it is in place, short because the path must fit into the socket's address.
const freshName = "~"

// ErrOthers means that the other end of a socket belongs to neither root nor this process's user.
var ErrOthers = errors.New("neither root nor this user")

// CheckSocket returns an error if no socket can be made at a path.
func CheckSocket(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("socket %s: path of %d bytes; allowed: at most %d bytes, which the kernel limits; choose a "+
			"shorter directory", path, len(path), maxSocketPath)
	}
	return nil
}

// Socket listens at a path, with the mode 0600. It makes the socket under another name and renames it. So the socket at
// path never has a wider mode, and replaces a socket that a killed process left. No other process must listen in this
// directory. Close does not remove the socket.
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
	l.SetUnlinkOnClose(false) // Close would remove the name before the rename
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("put the socket in place: %w", err)
	}
	return l, nil
}

// Own returns a listener that accepts only connections of root and of this process's user.
func Own(l *net.UnixListener) net.Listener { return own{l} }

type own struct{ *net.UnixListener }

// Accept implements net.Listener.
func (o own) Accept() (net.Conn, error) {
	for {
		c, err := o.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if checkPeer(c) == nil {
			return c, nil
		}
		_ = c.Close() // without an answer
	}
}

// Dial connects to a socket. If neither root nor this process's user listens, it sends nothing and returns ErrOthers.
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

// checkPeer asks the kernel which user is at the other end (SO_PEERCRED, unix(7)).
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		cred,
			err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(controlErr, err); err != nil {
		return fmt.Errorf("who is at the other end: %w", err)
	}
	if uid := int(cred.Uid); uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("user %d is at the other end: %w", uid, ErrOthers)
	}
	return nil
}
