package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaces are those of a run. Without root they need a user namespace too.
func namespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: gid, Size: 1}}
	}
	return attr
}

// netns is where the machines' networks are named.
const netns = "/run/netns"

// enter makes the new namespaces usable: nothing mounted here is seen outside, /proc shows this run's processes, and names
// of network namespaces are this run's own.
func enter(ctx context.Context) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := os.MkdirAll(netns, 0o755); err != nil {
		// Without root: a /run of our own.
		if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("mount /run: %w", err)
		}
		if err := os.MkdirAll(netns, 0o755); err != nil {
			return err
		}
	}
	if err := syscall.Mount("tmpfs", netns, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", netns, err)
	}
	return command(ctx, "ip link set lo up")
}

// command runs a program given with its arguments on one line.
func command(ctx context.Context, line string) error {
	words := strings.Fields(line)
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// The addresses of a run, in its own namespace only.
const (
	subnet    = "10.77.0."
	bridgeNum = 254
)

// machine is a network namespace with one address, joined to the others by a bridge.
type machine struct {
	name string
	num  int // last byte of the address

	mu      sync.Mutex
	changed []string // commands that undo what faults did to its network
}

func (m *machine) ip() string   { return fmt.Sprintf("%s%d", subnet, m.num) }
func (m *machine) veth() string { return "v" + m.name }

func makeBridge(ctx context.Context) error {
	for _, line := range []string{
		"ip link add br0 type bridge",
		fmt.Sprintf("ip addr add %s%d/24 dev br0", subnet, bridgeNum),
		"ip link set br0 up",
	} {
		if err := command(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

func makeMachine(ctx context.Context, name string, num int) (*machine, error) {
	m := &machine{name: name, num: num}
	for _, line := range []string{
		"ip netns add " + name,
		fmt.Sprintf("ip link add %s type veth peer name eth0 netns %s", m.veth(), name),
		fmt.Sprintf("ip link set %s master br0 up", m.veth()),
		fmt.Sprintf("ip -n %s addr add %s/24 dev eth0", name, m.ip()),
		fmt.Sprintf("ip -n %s link set eth0 up", name),
		fmt.Sprintf("ip -n %s link set lo up", name),
	} {
		if err := command(ctx, line); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// change does something to the network and remembers how to undo it.
func (m *machine) change(ctx context.Context, do, undo string) error {
	m.mu.Lock()
	m.changed = append(m.changed, undo)
	m.mu.Unlock()
	return command(ctx, do)
}

// cut takes the machine off the network.
func (m *machine) cut(ctx context.Context) error {
	return m.change(ctx, fmt.Sprintf("ip link set %s down", m.veth()), fmt.Sprintf("ip link set %s up", m.veth()))
}

// cutFrom makes the two unable to reach each other, and nobody else.
func (m *machine) cutFrom(ctx context.Context, other *machine) error {
	for _, pair := range [][2]*machine{{m, other}, {other, m}} {
		route := fmt.Sprintf("blackhole %s/32", pair[1].ip())
		if err := m.change(ctx, fmt.Sprintf("ip -n %s route add %s", pair[0].name, route),
			fmt.Sprintf("ip -n %s route del %s", pair[0].name, route)); err != nil {
			return err
		}
	}
	return nil
}

// slow makes what the machine sends late: by a delay where the kernel can do that, else by a line so thin that packets queue
// for about as long.
func (m *machine) slow(ctx context.Context) (how string, err error) {
	undo := fmt.Sprintf("tc -n %s qdisc del dev eth0 root", m.name)
	how = "netem delay 150ms 100ms"
	if err = command(ctx, fmt.Sprintf("tc -n %s qdisc add dev eth0 root %s", m.name, how)); err != nil {
		how = "tbf rate 256kbit burst 4kb latency 800ms"
		err = command(ctx, fmt.Sprintf("tc -n %s qdisc add dev eth0 root %s", m.name, how))
	}
	if err == nil {
		m.mu.Lock()
		m.changed = append(m.changed, undo)
		m.mu.Unlock()
	}
	return how, err
}

// inside carries something out in the machine's network. What is opened there stays there.
func (m *machine) inside(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread, which is in another network then, ends with this
		net, err := os.Open(filepath.Join(netns, m.name))
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = net.Close() }()
		if err := unix.Setns(int(net.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network of %s: %w", m.name, err)
			return
		}
		done <- do()
	}()
	return <-done
}

// heal undoes all changes, latest first.
func (m *machine) heal(ctx context.Context) error {
	m.mu.Lock()
	lines := m.changed
	m.changed = nil
	m.mu.Unlock()
	for _, line := range slices.Backward(lines) {
		if err := command(ctx, line); err != nil {
			return err
		}
	}
	return nil
}
