package machine

import (
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"strconv"
	"strings"
)

// Holder returns the process that listens on a TCP address, or on its port at all addresses, with its name; zero: it
// cannot be found. Only root sees the sockets of other users' processes.
func Holder(fsys fs.FS, at netip.AddrPort) (pid int, name string) {
	sockets, err := Sockets(fsys)
	if err != nil {
		return 0, ""
	}
	links := map[string]bool{} // what descriptors of the process point to
	for _, s := range sockets {
		if !s.UDP && s.Port == int(at.Port()) && (s.Addr.IsUnspecified() || s.Addr == at.Addr().Unmap()) {
			links[fmt.Sprintf("socket:[%s]", s.Inode)] = true
		}
	}
	if len(links) == 0 {
		return 0, ""
	}
	descriptors, err := fs.Glob(fsys, "proc/[0-9]*/fd/[0-9]*")
	if err != nil {
		return 0, ""
	}
	for _, fd := range descriptors {
		if link, err := fs.ReadLink(fsys, fd); err != nil || !links[link] {
			continue // one that has ended holds nothing
		}
		of := path.Dir(path.Dir(fd))
		pid, _ = strconv.Atoi(path.Base(of)) // digits
		text, _ := fs.ReadFile(fsys, of+"/comm")
		return pid, strings.TrimSpace(string(text))
	}
	return 0, ""
}
