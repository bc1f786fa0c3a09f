// Probe is the program of the containers in the tests of package runc. Its first argument says what it does. It prints
// what it finds as JSON.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fail("no command")
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "report":
		report()
	case "try":
		show(attempts(args[0], number(args[1])))
	case "files":
		files(args)
	case "wait":
		wait()
	case "family":
		family()
	case "drop":
		drop(number(args[0]), args[1:])
	case "reopen":
		reopen()
	case "orphan":
		orphan(args[0])
	case "parent":
		parent()
	case "child":
		child()
	case "--": // as the init program of a container
		reap(args)
	case "dial":
		dial(args[0], args[1])
	default:
		fail("unknown command " + os.Args[1])
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(1)
}

func show(v any) {
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		fail(err.Error())
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		fail(err.Error())
	}
	return n
}

// report prints how this process runs.
func report() {
	type found struct {
		Args, Env      []string
		Dir, Host      string
		PID, UID, GID  int
		Groups         []int
		Status         map[string]string
		Namespaces     map[string]string
		Processes      []string
		Descriptors    map[string]string
		UIDMap, Cgroup string
		Devices        []string
	}
	f := found{
		Args: os.Args, Env: os.Environ(), PID: os.Getpid(), UID: os.Getuid(), GID: os.Getgid(),
		Status: map[string]string{}, Namespaces: map[string]string{}, Descriptors: map[string]string{},
	}
	f.Dir, _ = os.Getwd()
	f.Host, _ = os.Hostname()
	f.Groups, _ = os.Getgroups()
	for line := range strings.Lines(read("/proc/self/status")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		f.Status[name] = strings.TrimSpace(value)
	}
	for _, name := range []string{"net", "pid", "mnt", "ipc", "uts", "cgroup", "user"} {
		f.Namespaces[name], _ = os.Readlink("/proc/self/ns/" + name)
	}
	f.Processes, _ = filepath.Glob("/proc/[0-9]*")
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil {
			f.Descriptors[filepath.Base(link)] = to
		}
	}
	f.UIDMap = strings.Join(strings.Fields(read("/proc/self/uid_map")), " ")
	f.Cgroup = read("/proc/self/cgroup")
	f.Devices, _ = filepath.Glob("/dev/*")
	show(f)
}

func read(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(data)
}

// attempts tries to leave the container or to change the machine. hostFile is a file of the node, and neighbour a
// process id there. It returns the attempts that had success.
func attempts(hostFile string, neighbour int) (succeeded map[string]string) {
	succeeded = map[string]string{}
	try := func(name string, err error) {
		if err == nil {
			succeeded[name] = "done"
		}
	}
	for _, file := range []string{
		"/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches",
		"/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity",
		"/sys/kernel/mm/transparent_hugepage/enabled", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
		"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/unified/cgroup.procs", "/sys/fs/cgroup/cgroup.procs",
		"/sys/fs/cgroup/devices/devices.allow", "/sys/power/state",
	} {
		try("write "+file, writable(file))
	}
	for _, file := range []string{
		hostFile, "/proc/1/root" + hostFile, "/proc/self/root" + hostFile, strings.Repeat("../", 40) + hostFile,
		"/proc/self/cwd/" + strings.Repeat("../", 40) + hostFile,
		fmt.Sprintf("/proc/%d/root%s", neighbour, hostFile), fmt.Sprintf("/proc/%d/environ", neighbour),
		"/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/loop-control", "/dev/fuse", "/dev/net/tun",
	} {
		_, err := os.Open(file)
		try("open "+file, err)
	}
	try("mount a tmpfs", syscall.Mount("tmpfs", "/tmp", "tmpfs", 0, ""))
	try("mount proc", syscall.Mount("proc", "/tmp", "proc", 0, ""))
	try("mount sysfs", syscall.Mount("sysfs", "/tmp", "sysfs", 0, ""))
	try("bind the root", syscall.Mount("/", "/tmp", "", syscall.MS_BIND, ""))
	try("make the root writable", syscall.Mount("", "/", "", syscall.MS_REMOUNT|syscall.MS_BIND, ""))
	try("make /proc/sys writable", syscall.Mount("", "/proc/sys", "", syscall.MS_REMOUNT|syscall.MS_BIND, ""))
	try("unmount /proc/sys", syscall.Unmount("/proc/sys", 0))
	try("unmount /sys/firmware", syscall.Unmount("/sys/firmware", syscall.MNT_DETACH))
	try("pivot_root", syscall.PivotRoot("/", "/"))
	for name, kind := range map[string]uint32{"a block": syscall.S_IFBLK, "a character": syscall.S_IFCHR} {
		for _, number := range []int{254 << 8, 8 << 8, 1<<8 | 1} { // vda, sda; mem
			path := fmt.Sprintf("/tmp/device-%d-%d", kind, number)
			err := syscall.Mknod(path, kind|0o666, number)
			try(fmt.Sprintf("make %s device %d", name, number), err)
			_, err = os.Open(path)
			try(fmt.Sprintf("open %s device %d", name, number), err)
		}
	}
	try("trace a neighbour", syscall.PtraceAttach(neighbour))
	try("stop a neighbour", syscall.Kill(neighbour, syscall.SIGSTOP))
	try("read the memory of a neighbour", readMemory(neighbour))
	try("priority of a neighbour", syscall.Setpriority(syscall.PRIO_PROCESS, neighbour, 1))
	const newUser, newNS = syscall.CLONE_NEWUSER, syscall.CLONE_NEWNS
	for name, flag := range map[string]int{
		"user": newUser, "mount": newNS, "network": syscall.CLONE_NEWNET, "pid": syscall.CLONE_NEWPID,
	} {
		try("a new "+name+" namespace", syscall.Unshare(flag))
	}
	try("a process in a new user namespace", inNewUser())
	try("a raw socket", socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP))
	try("a packet socket", socket(syscall.AF_PACKET, syscall.SOCK_RAW, 0))
	try("a vsock", socket(unix.AF_VSOCK, syscall.SOCK_STREAM, 0))
	try("the clock", syscall.Settimeofday(&syscall.Timeval{Sec: 1}))
	try("a reboot", syscall.Reboot(syscall.LINUX_REBOOT_CMD_CAD_OFF))
	try("the hostname", syscall.Sethostname([]byte("x")))
	try("swap", call(syscall.SYS_SWAPOFF, text("/none")))
	try("bpf", call(unix.SYS_BPF, 0, 0, 0))
	try("a handle of the root", byHandle())
	try("a key", call(syscall.SYS_ADD_KEY, text("user"), text("x"), text("y"), 1, ^uintptr(3)))
	try("kernel messages", klog())
	return succeeded
}

func writable(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err == nil {
		_ = f.Close()
	}
	return err
}

func socket(domain, kind, protocol int) error {
	fd, err := syscall.Socket(domain, kind, protocol)
	if err == nil {
		_ = syscall.Close(fd)
	}
	return err
}

// texts keeps what system calls were given.
var texts [][]byte

func text(s string) uintptr {
	b := append([]byte(s), 0)
	texts = append(texts, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

// call returns nil also for the errors of a system call that is allowed and has bad arguments.
func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, no := syscall.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if no == 0 || no == syscall.EINVAL || no == syscall.EFAULT || no == syscall.ENOENT {
		return nil
	}
	return no
}

func readMemory(pid int) error {
	buf := make([]byte, 8)
	local := []unix.Iovec{{Base: &buf[0], Len: 8}}
	_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
	return err
}

func inNewUser() error {
	cmd := exec.Command("/probe", "report")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	return cmd.Run()
}

// byHandle opens the root of the file system by its number, which passes by all checks of paths (CVE-2014-9357).
func byHandle() error {
	handle := struct {
		bytes uint32
		kind  int32
		data  [8]byte
	}{8, 1, [8]byte{2}}
	root, err := syscall.Open("/", syscall.O_RDONLY, 0)
	if err != nil {
		return err
	}
	_, _, no := syscall.Syscall(unix.SYS_OPEN_BY_HANDLE_AT, uintptr(root), uintptr(unsafe.Pointer(&handle)),
		syscall.O_RDONLY)
	if no == 0 {
		return nil
	}
	return no
}

func klog() error {
	_, err := syscall.Klogctl(3, make([]byte, 100))
	return err
}

// files prints about each path what is in it, how large its file system is, and whether this process can write there.
func files(paths []string) {
	type file struct {
		Content, Error, Write, Mode string
		UID, GID                    int
		Entries                     []string
		Size                        int64
	}
	all := map[string]file{}
	for _, path := range paths {
		f := file{UID: -1}
		info, err := os.Stat(path)
		if err != nil {
			f.Error = err.Error()
			all[path] = f
			continue
		}
		st := info.Sys().(*syscall.Stat_t)
		f.Mode, f.UID, f.GID = info.Mode().String(), int(st.Uid), int(st.Gid)
		var fs syscall.Statfs_t
		if syscall.Statfs(path, &fs) == nil {
			f.Size = int64(fs.Blocks) * fs.Bsize
		}
		if info.IsDir() {
			entries, _ := os.ReadDir(path)
			for _, e := range entries {
				f.Entries = append(f.Entries, e.Name())
			}
			f.Write = errorText(os.WriteFile(filepath.Join(path, "written"), []byte("x"), 0o755))
		} else {
			in, err := os.Open(path)
			if err == nil {
				data, _ := io.ReadAll(io.LimitReader(in, 1000))
				f.Content = string(data)
			} else {
				f.Error = err.Error()
			}
			f.Write = errorText(writable(path))
		}
		all[path] = f
	}
	show(all)
}

func errorText(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error()
}

// wait never ends by a signal that can be caught.
func wait() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	fmt.Println("waits")
	for {
		<-time.After(time.Hour)
	}
}

// family starts processes in sessions of their own, which never end.
func family() {
	for range 3 {
		cmd := exec.Command("/probe", "wait")
		cmd.Stdout, cmd.SysProcAttr = os.Stdout, &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			fail(err.Error())
		}
	}
	wait()
}

// drop does what images that begin as root do: it gives a directory to a user, becomes the user, and executes the rest.
func drop(id int, command []string) {
	for _, err := range []error{
		os.MkdirAll("/data/own", 0o700), os.Chown("/data", id, id), os.Chown("/data/own", id, id),
		os.Chmod("/data", 0o700), syscall.Setgroups([]int{id, id + 1}), syscall.Setgid(id), syscall.Setuid(id),
	} {
		if err != nil {
			fail(err.Error())
		}
	}
	if err := syscall.Setuid(0); err == nil {
		fail("became root again")
	}
	if err := os.WriteFile("/data/own/file", []byte("own"), 0o600); err != nil {
		fail(err.Error())
	}
	fail(syscall.Exec(command[0], command, os.Environ()).Error())
}

// reopen writes to its output through the link that images put in place of a log.
func reopen() {
	f, err := os.OpenFile("/dev/stdout", os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		fail(err.Error())
	}
	fmt.Fprintln(f, "through the link")
}

// orphan starts a process whose child becomes a child of PID 1, and waits until that child is gone, or a zombie.
func orphan(want string) {
	out, err := exec.Command("/probe", "parent").Output()
	if err != nil {
		fail(err.Error())
	}
	file := "/proc/" + strings.TrimSpace(string(out)) + "/stat"
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		stat, err := os.ReadFile(file)
		_, state, _ := strings.Cut(string(stat), ") ")
		if err != nil && want == "gone" || strings.HasPrefix(state, "Z 1 ") && want == "zombie" {
			fmt.Println(want)
			return
		}
	}
	fail("the child of PID 1 is not " + want)
}

// parent leaves a child behind, and prints its number.
func parent() {
	cmd := exec.Command("/probe", "child")
	if err := cmd.Start(); err != nil {
		fail(err.Error())
	}
	fmt.Println(cmd.Process.Pid)
}

// child ends when PID 1 is its parent.
func child() {
	for os.Getppid() != 1 {
		<-time.After(time.Millisecond)
	}
}

// reap is a small init program. It starts the rest, reaps all children and ends as the rest ended.
func reap(command []string) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		fail(err.Error())
	}
	code := 1
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.ECHILD):
			os.Exit(code)
		case pid == cmd.Process.Pid:
			code = status.ExitStatus()
		}
	}
}

func dial(network, address string) {
	conn, err := net.Dial(network, address)
	if err != nil {
		fail(err.Error())
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.Copy(os.Stdout, conn)
}
