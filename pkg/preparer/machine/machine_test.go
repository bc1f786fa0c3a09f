package machine_test

import (
	"errors"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/preparer/machine"
)

const (
	gib    = 1 << 30
	mounts = "30 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	hybrid = `31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
38 31 0:35 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`
)

// files returns the kernel's files of a machine with eight CPUs and 16 GiB, changed by more.
func files(more map[string]string) fstest.MapFS {
	all := map[string]string{
		"sys/devices/system/cpu/online": "0-7\n",
		"proc/self/status": "Name:\tpreparer\nCpus_allowed:\tff\n" +
			"Cpus_allowed_list:\t0-7\nMems_allowed_list:\t0\n",
		"proc/meminfo": "MemTotal:       16777216 kB\nMemFree:          123456 kB\n",
	}
	maps.Copy(all, more)
	out := fstest.MapFS{}
	for name, text := range all {
		if text != "" {
			out[name] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return out
}

func TestDetect(t *testing.T) {
	t.Parallel()
	whole := machine.Total{CPU: 8000, Memory: 16 * gib}
	for name, tt := range map[string]struct {
		files map[string]string
		pods  string
		want  machine.Total
	}{
		"no cgroups at all": {nil, "", whole},
		"nothing is known": {map[string]string{
			"sys/devices/system/cpu/online": "", "proc/self/status": "",
			"proc/meminfo": "",
		}, "", machine.Total{}},
		"CPUs that are off": {
			map[string]string{"sys/devices/system/cpu/online": "0-2,5\n"},
			"",
			machine.Total{CPU: 4000, Memory: 16 * gib},
		},
		"an affinity": {
			map[string]string{"proc/self/status": "Cpus_allowed_list:\t2,4-5\n"},
			"",
			machine.Total{CPU: 3000, Memory: 16 * gib},
		},
		"v2 without limits": {map[string]string{
			"proc/self/mountinfo": mounts, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n",
		}, "", whole},
		"v2, its own limits": {
			map[string]string{
				"proc/self/mountinfo": mounts, "proc/self/cgroup": "0::/a\n",
				"sys/fs/cgroup/a/memory.max": "1073741824\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
			},
			"",
			machine.Total{CPU: 1500, Memory: gib},
		},
		"v2, nested: the least of all counts": {map[string]string{
			"proc/self/mountinfo": mounts, "proc/self/cgroup": "0::/a/b/c\n",
			"sys/fs/cgroup/a/b/c/memory.max": "4294967296\n", "sys/fs/cgroup/a/memory.max": "2147483648\n",
			"sys/fs/cgroup/a/b/cpu.max": "50000 25000\n", "sys/fs/cgroup/a/cpu.max": "400000 100000\n",
		}, "", machine.Total{CPU: 2000, Memory: 2 * gib}},
		"v2, a cpuset": {map[string]string{
			"proc/self/mountinfo": mounts, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/cpuset.cpus.effective": "1,3\n", "sys/fs/cgroup/cpuset.cpus.effective": "0-7\n",
		}, "", machine.Total{CPU: 2000, Memory: 16 * gib}},
		"v2, a cpuset further up": {map[string]string{
			"proc/self/mountinfo": mounts, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/cpuset.cpus.effective": "1-3\n",
		}, "", machine.Total{CPU: 3000, Memory: 16 * gib}},
		"v2, the group of pods in place of the own one": {map[string]string{
			"proc/self/mountinfo": mounts, "proc/self/cgroup": "0::/system.slice\n",
			"sys/fs/cgroup/system.slice/memory.max": "1048576\n",
			"sys/fs/cgroup/rcfarm/memory.max":       "3221225472\n", "sys/fs/cgroup/rcfarm/n1/memory.max": "1048576\n",
		}, "/sys/fs/cgroup/rcfarm", machine.Total{CPU: 8000, Memory: 3 * gib}},
		"v2 in a container: its root is all that can be seen": {map[string]string{
			"proc/self/mountinfo": mounts, "proc/self/cgroup": "0::/../../other\n",
			"sys/fs/cgroup/memory.max": "1073741824\n", "sys/fs/cgroup/other/memory.max": "1\n",
		}, "", machine.Total{CPU: 8000, Memory: gib}},
		"a limit above what there is": {map[string]string{
			"proc/self/mountinfo": mounts,
			"proc/self/cgroup":    "0::/a\n", "sys/fs/cgroup/a/memory.max": "18446744073709551615\n",
			"sys/fs/cgroup/a/cpu.max": "9900000 100000\n",
		}, "", whole},
		"a limit of nothing is the least": {map[string]string{
			"proc/self/mountinfo": mounts,
			"proc/self/cgroup":    "0::/a\n", "sys/fs/cgroup/a/memory.max": "0\n",
		}, "", machine.Total{
			CPU:    8000,
			Memory: 1,
		}},
		"v1": {map[string]string{
			"proc/self/mountinfo": hybrid, "proc/self/cgroup": "4:memory:/x/y\n3:cpuset:/\n2:cpu,cpuacct:/x\n0::/\n",
			"sys/fs/cgroup/memory/x/y/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes":   "2147483648\n",
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us":   "250000\n",
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us":  "100000\n", "sys/fs/cgroup/cpuset/cpuset.cpus": "0-3\n",
		}, "", machine.Total{CPU: 2500, Memory: 2 * gib}},
		"v1 counts beside the group of pods": {map[string]string{
			"proc/self/mountinfo": hybrid, "proc/self/cgroup": "4:memory:/x\n0::/own\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "2147483648\n",
			"sys/fs/cgroup/unified/own/cpu.max":            "1000 100000\n",
			"sys/fs/cgroup/unified/rcfarm/cpu.max":         "300000 100000\n",
		}, "/sys/fs/cgroup/unified/rcfarm", machine.Total{CPU: 3000, Memory: 2 * gib}},
		"v1 in a container that sees its own group": {map[string]string{
			"proc/self/mountinfo": "35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw - " +
				"cgroup cgroup rw,memory\n",
			"proc/self/cgroup": "4:memory:/docker/1/sub\n",
			"sys/fs/cgroup/memory/sub/memory.limit_in_bytes":    "-1\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":        "1073741824\n",
			"sys/fs/cgroup/memory/docker/memory.limit_in_bytes": "1\n",
		}, "", machine.Total{CPU: 8000, Memory: gib}},
		"v1, no quota": {map[string]string{
			"proc/self/mountinfo": hybrid, "proc/self/cgroup": "2:cpu,cpuacct:/x\n",
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us":  "-1\n",
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
		}, "", whole},
		"a mount with a blank": {map[string]string{
			"proc/self/mountinfo": "30 23 0:27 / /sys/c\\040g rw - cgroup2 cgroup2 rw\n", "proc/self/cgroup": "0::/a\n",
			"sys/c g/a/memory.max": "1073741824\n",
		}, "", machine.Total{CPU: 8000, Memory: gib}},
	} {
		got, err := machine.Detect(files(tt.files), tt.pods)
		if got != tt.want || err != nil {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, tt.want)
		}
		// Whole must ignore cgroups
		if got = machine.Whole(files(tt.files)); strings.HasPrefix(name, "v") && got != whole {
			t.Errorf("%s: the whole is %+v, want %+v", name, got, whole)
		}
	}
}

type unreadable struct {
	fs.FS
	name string
}

var errIO = errors.New("input/output error")

func (u unreadable) Open(name string) (fs.File, error) {
	if name == u.name {
		return nil, errIO
	}
	return u.FS.Open(name)
}

// If a file cannot be read or parsed, Detect returns an error for it. The limits of the other files still apply.
func TestDetectReturnsErrorsOfBadFiles(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"proc/self/mountinfo": mounts, "proc/self/cgroup": "0::/a\n",
		"sys/fs/cgroup/a/memory.max": "1073741824\n", "sys/fs/cgroup/a/cpu.max": "100000 100000\n",
	}
	for name, text := range map[string]string{
		"sys/fs/cgroup/a/memory.max": "much", "sys/fs/cgroup/a/cpu.max": "100000 often",
		"sys/devices/system/cpu/online": "3-1", "proc/self/status": "Cpus_allowed_list:\tall",
		"proc/meminfo": "MemTotal: lots kB",
	} {
		bad := maps.Clone(good)
		bad[name] = text
		got, err := machine.Detect(files(bad), "")
		if err == nil || !strings.Contains(err.Error(), name) || got == (machine.Total{}) {
			t.Errorf("%s says %q: %+v, %v", name, text, got, err)
		}
	}
	got, err := machine.Detect(unreadable{files(good), "sys/fs/cgroup/a/memory.max"}, "")
	if want := (machine.Total{CPU: 1000, Memory: 16 * gib}); got != want || !errors.Is(err, errIO) {
		t.Errorf("a file that cannot be read: %+v, %v", got, err)
	}
}

// On this machine, the results agree with other interfaces of the kernel.
func TestDetectHere(t *testing.T) {
	t.Parallel()
	got, err := machine.Detect(os.DirFS("/"), "")
	if err != nil {
		t.Fatal(err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	memory := int64(info.Totalram) * int64(info.Unit)
	if got.CPU < 1 || got.CPU > int64(runtime.NumCPU())*1000 || got.Memory < 1<<20 || got.Memory > memory {
		t.Errorf("detected %+v; the kernel knows of %d CPUs and %d bytes", got, runtime.NumCPU(), memory)
	}
}

func TestCgroupV2(t *testing.T) {
	t.Parallel()
	for table, want := range map[string]string{
		hybrid: "/sys/fs/cgroup/unified", "": "", "24 1 0:22 / /x rw - tmpfs cgroup2 rw\n": "", "x - cgroup2\n": "",
		"33 24 0:31 / /sys/uni\\040fied rw,nosuid shared:8 master:1 - cgroup2 cgroup2 rw\n34 24 0:31 / /elsewhere rw " +
			"- cgroup2 cgroup2 rw\n": "/sys/uni fied",
	} {
		if got := machine.CgroupV2(table); got != want {
			t.Errorf("found %q, want %q in\n%s", got, want, table)
		}
	}
}

const (
	header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	tcp    = header +
		"   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1065 1 0 100 0 0 " +
		"10 0\n" +
		"   1: 0100007F:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1066 1 0 100 0 0 " +
		"10 0\n" +
		"   2: 0700000A:4E21 0800000A:C350 01 00000000:00000000 00:00000000 00000000     0        0 1067 1 0 20 4 30 " +
		"10 -1\n"
	tcp6 = header + "   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A " +
		"00000000:00000000 00:00000000 00000000 0 0 7 1 0 100 0 0 10 0\n" +
		"   1: 0000000000000000FFFF00000700000A:0051 00000000000000000000000000000000:0000 0A 00000000:00000000 " +
		"00:00000000 00000000 0 0 7 1 0 100 0 0 10 0\n"
	udp = header +
		"  10: 00000000:4E22 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1070 2 0 0\n" +
		"  11: 0700000A:4E23 0800000A:0035 01 00000000:00000000 00:00000000 00000000     0        0 1071 2 0 0\n"
)

func TestSockets(t *testing.T) {
	t.Parallel()
	got, err := machine.Sockets(
		files(map[string]string{"proc/self/net/tcp": tcp, "proc/self/net/tcp6": tcp6, "proc/self/net/udp": udp}))
	want := []machine.Socket{
		{Addr: netip.MustParseAddr("0.0.0.0"), Port: 8080, Inode: "1065"},
		{Addr: netip.MustParseAddr("127.0.0.1"), Port: 20000, Inode: "1066"},
		{Addr: netip.MustParseAddr("::1"), Port: 80, Inode: "7"},
		{Addr: netip.MustParseAddr("10.0.0.7"), Port: 81, Inode: "7"},
		{UDP: true, Addr: netip.MustParseAddr("0.0.0.0"), Port: 20002, Inode: "1070"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("found %v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{
		"   0: 0000:1F90 0:0 0A\n", "   0: 00000000:XX 0:0 0A\n", "   0: 00000000 0:0 0A\n",
		"   0: zz000000:1F90 0:0 0A\n", "   0:\n",
	} {
		if got, err := machine.Sockets(files(map[string]string{"proc/self/net/tcp": header + bad})); err == nil ||
			!strings.Contains(err.Error(), "tcp: cannot make sense of ") {
			t.Errorf("%q was read as %v, %v", bad, got, err)
		}
	}
	if _, err := machine.Sockets(unreadable{files(nil), "proc/self/net/udp"}); !errors.Is(err, errIO) {
		t.Errorf("a table that cannot be read: %v", err)
	}
}

func TestSocketsHere(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	found, err := machine.Sockets(os.DirFS("/"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []machine.Socket{
		{Addr: netip.MustParseAddr("127.0.0.1"), Port: l.Addr().(*net.TCPAddr).Port}, {
			UDP:  true,
			Addr: netip.MustParseAddr("127.0.0.1"), Port: p.LocalAddr().(*net.UDPAddr).Port,
		},
	} {
		same := func(s machine.Socket) bool { return s.UDP == want.UDP && s.Addr == want.Addr && s.Port == want.Port }
		if !slices.ContainsFunc(found, same) {
			t.Errorf("%+v is not among %+v", want, found)
		}
	}
	if r := machine.Ephemeral(os.DirFS("/")); r.Min < 1 || r.Max > 65535 || r.Min > r.Max {
		t.Errorf("ephemeral ports %+v", r)
	}
}

// Holder finds who listens on this or on all addresses, not on others.
func TestHolder(t *testing.T) {
	t.Parallel()
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, listen := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0"} {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), l.Addr().(*net.TCPAddr).AddrPort().Port())
		if pid, name := machine.Holder(os.DirFS("/"), at); pid != os.Getpid() ||
			name != strings.TrimSpace(string(comm)) {
			t.Errorf("%s: %d, %q; want this process, %d", listen, pid, name, os.Getpid())
		}
		elsewhere := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), at.Port())
		if pid, _ := machine.Holder(os.DirFS("/"), elsewhere); (pid == 0) != (listen == "127.0.0.1:0") {
			t.Errorf("%s: process %d holds another address", listen, pid)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if pid, _ := machine.Holder(unreadable{files(nil), "proc/self/net/tcp"},
		netip.MustParseAddrPort("127.0.0.1:8080")); pid != 0 {
		t.Errorf("process %d, from a table that cannot be read", pid)
	}
	if pid, _ := machine.Holder(files(map[string]string{"proc/self/net/tcp": tcp}),
		netip.MustParseAddrPort("127.0.0.1:8080")); pid != 0 {
		t.Errorf("process %d, which is not there", pid)
	}
}

func TestEphemeral(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]node.PortRange{
		"10000\t20000\n": {Min: 10000, Max: 20000},
		"":               {Min: 32768, Max: 60999}, "few": {Min: 32768, Max: 60999},
	} {
		if got := machine.Ephemeral(
			files(map[string]string{"proc/sys/net/ipv4/ip_local_port_range": text})); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func TestInUse(t *testing.T) {
	t.Parallel()
	at := func(addr string, port int) machine.Socket {
		return machine.Socket{Addr: netip.MustParseAddr(addr), Port: port}
	}
	overUDP := func(addr string, port int) machine.Socket {
		s := at(addr, port)
		s.UDP = true
		return s
	}
	view := machine.View{
		Address: netip.MustParseAddr("10.0.0.7"), Dynamic: node.PortRange{Min: 20000, Max: 29999},
		Ephemeral: node.PortRange{Min: 32768, Max: 60999},
	}
	within := view
	within.Ephemeral.Min = 25000
	local := view
	local.Address = netip.MustParseAddr("127.0.0.2")
	for name, tt := range map[string]struct {
		view machine.View
		s    machine.Socket
		in   bool
	}{
		"static, everywhere":                 {view, at("0.0.0.0", 8080), true},
		"static, everywhere in IPv6":         {view, at("::", 8080), true},
		"static, on the node's address":      {view, at("10.0.0.7", 8080), true},
		"static, on another address":         {view, at("10.0.0.8", 8080), false},
		"static, on loopback":                {view, at("127.0.0.1", 8080), false},
		"static, over UDP":                   {view, overUDP("0.0.0.0", 8080), false},
		"static, of a pod":                   {view, at("10.0.0.7", 7000), false},
		"ephemeral":                          {view, at("0.0.0.0", 40000), false},
		"dynamic, everywhere":                {view, at("0.0.0.0", 20000), true},
		"dynamic, the last":                  {view, at("10.0.0.7", 29999), true},
		"dynamic, over UDP":                  {view, overUDP("0.0.0.0", 20001), true},
		"dynamic and ephemeral":              {within, at("0.0.0.0", 25000), true},
		"dynamic and ephemeral, over UDP":    {within, overUDP("0.0.0.0", 25000), false},
		"dynamic, on loopback":               {view, at("127.0.0.1", 20002), true},
		"dynamic, on another address":        {view, at("10.0.0.8", 20002), false},
		"dynamic, of a pod":                  {view, at("10.0.0.7", 20007), false},
		"dynamic, another node's loopback":   {local, at("127.0.0.3", 20002), false},
		"dynamic, on the node's loopback":    {local, at("127.0.0.2", 20002), true},
		"dynamic, everywhere, of a loopback": {local, at("0.0.0.0", 20002), true},
	} {
		got := tt.view.InUse([]machine.Socket{tt.s, tt.s}, map[int]bool{7000: true, 20007: true})
		if in := slices.Equal(got, []int{tt.s.Port}); in != tt.in || !in && len(got) > 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
	var many []machine.Socket
	for i := range node.MaxPortsInUse {
		many = append(many, at("0.0.0.0", 1000+i), at("0.0.0.0", 20000+2*i))
	}
	got := view.InUse(many[2:], nil)
	if len(got) != node.MaxPortsInUse || got[0] != 1001 || got[1] != 20002 || !slices.IsSorted(got) {
		t.Errorf("%d in use: %v", len(got), got)
	}
}

func TestSteady(t *testing.T) {
	t.Parallel()
	var s machine.Steady
	for i, look := range []struct {
		found, want []int
		pods        map[int]bool
	}{
		{[]int{1, 3, 5}, []int{1, 3, 5}, nil},
		{[]int{2, 3, 5}, []int{1, 3, 5}, nil},
		{[]int{2, 3, 6}, []int{1, 2, 3, 5}, nil},
		{[]int{2, 5}, []int{1, 2, 3, 5}, nil},
		{[]int{2}, []int{2, 3, 5}, nil}, // four looks have missed 1
		{nil, []int{3, 5}, map[int]bool{2: true}},
		{[]int{2}, []int{5}, nil},
		{[]int{2}, []int{2}, nil},
		{nil, []int{2}, nil},
	} {
		if got := s.Look(look.found, look.pods); !slices.Equal(got, look.want) {
			t.Errorf("look %d: %v, want %v", i, got, look.want)
		}
	}
	s = machine.Steady{}
	if got := append(s.Look(nil, nil), s.Look([]int{2}, nil)...); len(got) != 0 {
		t.Errorf("after an empty look: %v", got)
	}
}

// All farms read each change of the list, so a socket that comes and goes causes at most two.
func TestSteadyUnderAFlappingSocket(t *testing.T) {
	t.Parallel()
	for _, there := range []string{"x.x.x.x.x.", ".x.x.x.x.x", "xx.xx.xx.x", ".xx..xx..x", "x...x...x.", "xxx...xxx."} {
		var s machine.Steady
		var list []int
		changes := 0
		for _, is := range there {
			found := []int{80}
			if is == 'x' {
				found = append(found, 20000)
			}
			next := s.Look(found, nil)
			if list != nil && !slices.Equal(next, list) {
				changes++
			}
			list = next
		}
		if changes > 2 {
			t.Errorf("%s: the list changed %d times", there, changes)
		}
	}
}
