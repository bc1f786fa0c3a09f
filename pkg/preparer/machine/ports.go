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

// Socket is one that others cannot bind beside: a TCP socket that listens, or a bound UDP socket.
type Socket struct {
	UDP   bool
	Addr  netip.Addr
	Port  int
	Inode string // its number, by which descriptors of processes name it
}

// Sockets returns those of the network namespace of this process.
func Sockets(fsys fs.FS) ([]Socket, error) {
	var all []Socket
	for _, name := range []string{"tcp", "tcp6", "udp", "udp6"} {
		r := reader{fsys: fsys}
		text := r.text("/proc/self/net/" + name) // tcp6 is missing where there is no IPv6
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

// States of sockets in these tables (proc_pid_net(5); TCP_LISTEN and TCP_CLOSE of the kernel's tcp_states.h). A bound UDP socket that is
// connected has another one: it is a client's.
const (
	tcpListens = "0A"
	udpBound   = "07"
)

// parseSockets reads one table: a header, then lines of number, local address, remote address, state and more, of which the tenth is the inode.
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

// parseAddr reads an address as the kernel prints it: words of four bytes, each as the machine has it in memory.
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

// Ephemeral returns the range from which the kernel gives numbers to those who ask for none (ip(7), ip_local_port_range).
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

// View is what decides which sockets are in the way of pods.
type View struct {
	Address   netip.Addr     // that pods listen on
	Dynamic   node.PortRange // the range from which pods are given numbers
	Ephemeral node.PortRange
}

// InUse returns the numbers, sorted, that others than the node's pods have. Within the range for dynamic ports any socket counts that a pod could meet
// there, but no ephemeral UDP number, which clients take and leave; elsewhere, where static ports are, what a TCP
// listener of the pod would meet on the node's address, but no ephemeral number. Beyond node.MaxPortsInUse those of the
// range stay.
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

// LeaveAfter is how many looks in a row do not see a number before it leaves the list: each change is a write that all farms read.
const LeaveAfter = 4

// Steady makes one list of looks one after the other, such that sockets that come and go hardly change it. The zero value has seen nothing yet.
type Steady struct {
	looked bool
	last   []int       // as the last look had it
	listed map[int]int // by number, how many looks in a row have not seen it
}

// Look takes what a look has found, sorted, and returns the list, sorted. What the first look finds is listed at once, and later what two looks in a row
// have found. It stays until LeaveAfter looks have not found it, or a pod of the node has it.
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
		if missed := s.listed[port] + 1; !still && !pods[port] && missed < LeaveAfter && len(listed) < node.MaxPortsInUse {
			listed[port] = missed
		}
	}
	s.looked, s.last, s.listed = true, found, listed
	return slices.Sorted(maps.Keys(listed))
}
