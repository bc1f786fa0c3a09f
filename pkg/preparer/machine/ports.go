package machine

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// Socket is a TCP socket that listens, or a bound UDP socket. Other programs cannot use its port.
type Socket struct {
	UDP   bool
	Addr  netip.Addr
	Port  int
	Inode string // inode number, which the descriptors of processes show
}

// Sockets returns the sockets in the network namespace of this process.
func Sockets(fsys fs.FS) ([]Socket, error) {
	var all []Socket
	for _, name := range []string{"tcp", "tcp6", "udp", "udp6"} {
		r := reader{fsys: fsys}
		text := r.text("/proc/self/net/" + name) // without IPv6, tcp6 and udp6 are missing
		if len(r.errs) > 0 {
			return nil, fmt.Errorf("find the ports that are in use: %w", r.errs[0])
		}
		found, err := parseSockets(text, strings.HasPrefix(name, "udp"))
		if err != nil {
			return nil, fmt.Errorf("find the ports that are in use: %s: %w", name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// States of sockets in these tables (proc_pid_net(5); the kernel's tcp_states.h). A connected UDP socket has another
// state, because it belongs to a client.
const (
	tcpListens = "0A"
	udpBound   = "07"
)

// parseSockets parses a table as in proc_pid_net(5); the tenth field is the inode.
func parseSockets(table string, udp bool) (found []Socket, err error) {
	state := tcpListens
	if udp {
		state = udpBound
	}
	first := true
	for line := range strings.Lines(table) {
		if first {
			first = false
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 10 {
			return nil, fmt.Errorf("cannot make sense of line %q", line)
		}
		if fields[3] != state {
			continue
		}
		address, number, _ := strings.Cut(fields[1], ":")
		addr, ok := parseAddr(address)
		port, err := strconv.ParseUint(number, 16, 16)
		if !ok || err != nil {
			return nil, fmt.Errorf("cannot make sense of address %q", fields[1])
		}
		found = append(found, Socket{UDP: udp, Addr: addr, Port: int(port), Inode: fields[9]})
	}
	return found, nil
}

// parseAddr parses words of four bytes, each in the machine's byte order.
func parseAddr(text string) (netip.Addr, bool) {
	data, err := hex.DecodeString(text)
	if err != nil || len(data)%4 != 0 {
		return netip.Addr{}, false
	}
	for word := range slices.Chunk(data, 4) {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	addr, ok := netip.AddrFromSlice(data)
	return addr.Unmap(), ok
}

// Ephemeral returns the range of ports that the kernel chooses (ip(7), ip_local_port_range).
func Ephemeral(fsys fs.FS) node.PortRange {
	const name = "/proc/sys/net/ipv4/ip_local_port_range"
	r := reader{fsys: fsys}
	bounds := strings.Fields(r.text(name))
	if len(bounds) == 2 {
		low, err := strconv.Atoi(bounds[0])
		high, err2 := strconv.Atoi(bounds[1])
		if err == nil && err2 == nil {
			return node.PortRange{Min: low, Max: high}
		}
	}
	return node.PortRange{Min: 32768, Max: 60999} // the kernel's default
}

// View has the facts that decide which sockets block ports of pods.
type View struct {
	Address   netip.Addr     // on which pods listen
	Dynamic   node.PortRange // the range for dynamic ports
	Ephemeral node.PortRange
}

// InUse returns the sorted port numbers that processes other than the node's pods use. In the range for dynamic ports,
// it has each socket that could block a pod. Outside, it has TCP listeners that could block a pod on the node's
// address, but no ephemeral numbers. Ephemeral UDP numbers are left out, because clients use them only for a short
// time. If there are more than node.MaxPortsInUse numbers, the numbers in the range have priority.
func (v View) InUse(sockets []Socket, pods map[int]bool) []int {
	var dynamic, static []int
	for _, s := range sockets {
		meets := s.Addr.IsUnspecified() || s.Addr == v.Address
		switch {
		case pods[s.Port], s.UDP && has(v.Ephemeral, s.Port):
		case has(v.Dynamic, s.Port) && (meets || s.Addr.IsLoopback() && !v.Address.IsLoopback()):
			dynamic = append(dynamic, s.Port)
		case !has(v.Dynamic, s.Port) && meets && !s.UDP && !has(v.Ephemeral, s.Port):
			static = append(static, s.Port)
		}
	}
	dynamic, static = distinct(dynamic), distinct(static)
	all := append(dynamic, static...)
	all = all[:min(len(all), node.MaxPortsInUse)]
	slices.Sort(all)
	return all
}

func has(r node.PortRange, port int) bool { return r.Min <= port && port <= r.Max }

func distinct(ports []int) []int {
	slices.Sort(ports)
	return slices.Compact(ports)
}

// LeaveAfter is how many looks in a row must miss a port number before it leaves the list. All farms read each change
// of the list, so it must not change often.
const LeaveAfter = 4

// Steady makes one list from successive looks, which short-lived sockets rarely change. The zero value has no
// numbers.
type Steady struct {
	looked bool
	last   []int       // the numbers of the last look
	listed map[int]int // by number: how many looks in a row have missed it
}

// Look takes in the sorted numbers that a look has found, and returns the sorted list. The numbers of the first look
// are added at once, later numbers when two looks in a row have found them. A number leaves when LeaveAfter looks in
// a row have missed it, or when a pod of the node has it.
func (s *Steady) Look(found []int, pods map[int]bool) []int {
	listed := map[int]int{}
	for _, port := range found {
		_, before := slices.BinarySearch(s.last, port)
		if _, is := s.listed[port]; is || before || !s.looked {
			listed[port] = 0
		}
	}
	for _, port := range slices.Sorted(maps.Keys(s.listed)) {
		_, still := slices.BinarySearch(found, port)
		if missed := s.listed[port] + 1; !still && !pods[port] && missed < LeaveAfter &&
			len(listed) < node.MaxPortsInUse {
			listed[port] = missed
		}
	}
	s.looked, s.last, s.listed = true, found, listed
	return slices.Sorted(maps.Keys(listed))
}
