package nodeapi

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// socketTables are the kernel's lists of TCP sockets in this network namespace (proc(5)).
var socketTables = []string{"/proc/net/tcp", "/proc/net/tcp6"}

// errNoPeer says that a connection's other end is not a socket of this machine that is still open.
var errNoPeer = errors.New("its other end is no open socket of this machine")

// peerUID returns the user that the other end of a connection on this machine belongs to.
func peerUID(peer, own netip.AddrPort) (int, error) {
	for _, name := range socketTables {
		table, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return 0, err
		}
		uid, err := uidIn(table, peer, own)
		_ = table.Close()
		if !errors.Is(err, errNoPeer) {
			return uid, err
		}
	}
	return 0, errNoPeer
}

// established is the state of a connection that is open at this end. One that is being closed is listed under root,
// whoever opened it.
const established = "01"

// uidIn looks for the socket that is bound to one address and connected to another one.
func uidIn(table io.Reader, from, to netip.AddrPort) (int, error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid ...
		f := strings.Fields(lines.Text())
		if len(f) < 8 || f[3] != established {
			continue
		}
		local, err := parseSocket(f[1])
		if err != nil || local != from {
			continue // also the heading
		}
		if remote, err := parseSocket(f[2]); err != nil || remote != to {
			continue
		}
		return strconv.Atoi(f[7])
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, errNoPeer
}

// parseSocket reads an address as the kernel lists it: words of 32 bits in the machine's order, in hexadecimal, and the port.
func parseSocket(text string) (netip.AddrPort, error) {
	addr, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(addr)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("address %q is not valid", text)
	}
	for word := range slices.Chunk(raw, 4) {
		binary.BigEndian.PutUint32(word, binary.NativeEndian.Uint32(word))
	}
	ip, ok := netip.AddrFromSlice(raw)
	n, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("address %q is not valid", text)
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)), nil
}
