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

// namespaces adds a user namespace unless the program runs as root.
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

const netns = "/run/netns"

// enter hides mounts from outside, and gives the run its own /proc and names of network namespaces.
func enter(ctx context.Context) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := os.MkdirAll(netns, 0o755); err != nil {
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

func command(ctx context.Context, line string) error {
	words := strings.Fields(line)
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, strings.TrimSpace(string(out)))
	}
	return nil
}

const (
	subnet    = "10.77.0."
	bridgeNum = 254
)

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

// change remembers the command that undoes it.
func (m *machine) change(ctx context.Context, do, undo string) error {
	m.mu.Lock()
	m.changed = append(m.changed, undo)
	m.mu.Unlock()
	return command(ctx, do)
}

func (m *machine) cut(ctx context.Context) error {
	return m.change(ctx, fmt.Sprintf("ip link set %s down", m.veth()), fmt.Sprintf("ip link set %s up", m.veth()))
}

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

// slow delays the packets that the machine sends. If the kernel cannot delay packets, it limits the rate, so that
// packets queue for about as long.
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

// inside calls do in the machine's network, where sockets that it opens stay.
func (m *machine) inside(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread moves to another network, and ends with this goroutine
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
