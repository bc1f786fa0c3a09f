package machine

import (
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"strconv"
	"strings"
)

// Holder returns the pid and name of the process that listens on a TCP address, or on its port at all addresses. pid
// is zero if it finds none. Only root sees the sockets of other users' processes.
func Holder(fsys fs.FS, at netip.AddrPort) (pid int, name string) {
	sockets, err := Sockets(fsys)
	if err != nil {
		return 0, ""
	}
	links := map[string]bool{} // link targets that the process's descriptors have
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
			continue // another descriptor, or the process has ended
		}
		of := path.Dir(path.Dir(fd))
		pid, _ = strconv.Atoi(path.Base(of)) // no error, because the pattern matches digits
		text, _ := fs.ReadFile(fsys, of+"/comm")
		return pid, strings.TrimSpace(string(text))
	}
	return 0, ""
}
