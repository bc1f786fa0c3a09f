package container_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	gocmp "github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/container"
)

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/usr/sbin/nologin\n"
	group  = "root:x:0:\nwww-data:x:33:\nssl:x:44:www-data,other\nfiles:x:45:www-data\n"
)

// input returns an input without mistakes: a node that can idmap, and an image that begins as root.
func input() container.Input {
	return container.Input{
		Image: imagespec.Image{Config: imagespec.ImageConfig{
			Entrypoint: []string{"/entry", "-x"}, Cmd: []string{"serve"}, Env: []string{"A=image", "B=image"},
			WorkingDir: "/srv",
		}},
		Files: container.Files{Accounts: container.Accounts{Passwd: []byte(passwd), Group: []byte(group)}},
		Node: container.Node{
			Root: "/var/lib/x/root", Cgroup: "/rcfarm/x", IDs: &container.IDs{First: 100_000, Size: 65_536},
			Hostname: "web-0", Hosts: "/run/x/hosts", ResolvConf: "/run/x/resolv.conf", InitProgram: "/usr/bin/init",
		},
	}
}

// withoutLinks completes the input with an image without links. It keeps places that are given.
func withoutLinks(in *container.Input) {
	places := in.Files.Places
	in.Files.Places = map[string]string{}
	for _, at := range in.MountPaths() {
		in.Files.Places[at] = cmp.Or(places[at], at)
	}
}

func build(t *testing.T, change func(*container.Input)) *container.Container {
	t.Helper()
	in := input()
	change(&in)
	withoutLinks(&in)
	made, err := container.Build(in)
	if err != nil {
		t.Fatal(err)
	}
	if mistake := check(made, in.Node); mistake != "" {
		t.Error(mistake)
	}
	return made
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		entrypoint, cmd []string
		command         string
		args            []string
		init            bool
		want            []string
	}{
		"the image's": {
			entrypoint: []string{"/e", "-x"}, cmd: []string{"c"}, want: []string{"/e", "-x", "c"},
		},
		"without an entrypoint": {cmd: []string{"c", "d"}, want: []string{"c", "d"}},
		"args replace the cmd": {
			entrypoint: []string{"/e", "-x"}, cmd: []string{"c"}, args: []string{"a"}, want: []string{"/e", "-x", "a"},
		},
		"args become the program": {cmd: []string{"c"}, args: []string{"a", "b"}, want: []string{"a", "b"}},
		"a command replaces both": {
			entrypoint: []string{"/e"}, cmd: []string{"c"}, command: "run", want: []string{"run"},
		},
		"both": {
			entrypoint: []string{"/e"}, cmd: []string{"c"}, command: "run", args: []string{"a", ""},
			want: []string{"run", "a", ""},
		},
		"init": {
			entrypoint: []string{"/e", "--"}, init: true, want: []string{"/dev/rcfarm-init", "--", "/e", "--"},
		},
	} {
		made := build(t, func(in *container.Input) {
			in.Image.Config.Entrypoint, in.Image.Config.Cmd = tt.entrypoint, tt.cmd
			in.Ask.Command, in.Ask.Args, in.Ask.Init = tt.command, tt.args, tt.init
		})
		if got := made.Spec.Process.Args; !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	made := build(t, func(in *container.Input) {
		in.Image.Config.Env = []string{"A=image", "B=image", "C=image", "EMPTY=", "A=last"}
		in.Image.Config.User = "www-data"
		in.Ask.Env = map[string]string{"B": "ask", "C": "ask", "E": "x=y"}
		in.Node.Env = map[string]string{"C": "node"}
	})
	want := []string{
		"A=last", "B=ask", "C=node", "E=x=y", "EMPTY=", "HOME=/var/www", "HOSTNAME=web-0",
		"PATH=" + container.DefaultPath,
	}
	if diff := gocmp.Diff(want, made.Spec.Process.Env); diff != "" {
		t.Error(diff)
	}
	made = build(t, func(in *container.Input) {
		in.Image.Config.Env = []string{"PATH=/bin", "HOME=/h"}
		in.Ask.Env = map[string]string{"HOSTNAME": "own"}
	})
	if want := []string{"HOME=/h", "HOSTNAME=own", "PATH=/bin"}; !slices.Equal(made.Spec.Process.Env, want) {
		t.Errorf("%q, want %q", made.Spec.Process.Env, want)
	}
}

func TestWorkingDirectory(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ image, ask, want string }{
		{"", "", "/"},
		{"/srv/", "", "/srv"},
		{"srv/../app", "", "/app"},
		{"../..", "", "/"},
		{"/srv", "/data", "/data"},
		{"/process", "", "/process"},
	} {
		made := build(t, func(in *container.Input) {
			in.Image.Config.WorkingDir, in.Ask.WorkDir = tt.image, tt.ask
		})
		if got := made.Spec.Process.Cwd; got != tt.want {
			t.Errorf("image %q, manifest %q: %q, want %q", tt.image, tt.ask, got, tt.want)
		}
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	type users struct {
		UID, GID uint32
		Groups   []uint32
		onNode   [2]uint32
		caps     int
	}
	roots := len(container.RootCapabilities())
	for name, tt := range map[string]struct {
		image, ask string
		noIDs      bool
		allowRoot  bool
		want       users
	}{
		"root, with a block": {want: users{onNode: [2]uint32{100_000, 100_000}, caps: roots}},
		"the image's": {
			image: "www-data", want: users{33, 33, []uint32{44, 45}, [2]uint32{100_033, 100_033}, 0},
		},
		"the manifest's": {
			image: "www-data", ask: "7:ssl", want: users{7, 44, nil, [2]uint32{100_007, 100_044}, 0},
		},
		"without a block": {
			image: "www-data", noIDs: true, want: users{5000, 5000, nil, [2]uint32{5000, 5000}, 0},
		},
		"without a block, another group": {
			ask: "33:ssl", noIDs: true, want: users{5000, 5000, nil, [2]uint32{5000, 5000}, 0},
		},
		"root of the node": {
			image: "www-data", ask: "root", noIDs: true, allowRoot: true, want: users{caps: roots},
		},
	} {
		made := build(t, func(in *container.Input) {
			in.Image.Config.User, in.Ask.User = tt.image, tt.ask
			if tt.noIDs {
				in.Node.IDs, in.Node.Number, in.Node.AllowRoot = nil, 5000, tt.allowRoot
			}
		})
		p := made.Spec.Process
		got := users{
			p.User.UID, p.User.GID, p.User.AdditionalGids,
			[2]uint32{made.UID, made.GID},
			len(p.Capabilities.Effective),
		}
		if diff := gocmp.Diff(tt.want, got, gocmp.AllowUnexported(users{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		user      string
		add, drop []string
		want      string
		ambient   bool
	}{
		"root":     {want: strings.Join(container.RootCapabilities(), " ")},
		"not root": {user: "7", ambient: true},
		"drop all": {drop: []string{"ALL"}},
		"drop all, keep some": {
			drop: []string{"ALL"}, add: []string{"SYS_TIME", "CAP_NET_RAW"}, want: "CAP_NET_RAW CAP_SYS_TIME",
		},
		"drop one": {
			drop: []string{"CHOWN", "SYS_ADMIN"}, want: strings.Join(container.RootCapabilities()[1:], " "),
		},
		"not root, add": {user: "7", add: []string{"NET_RAW"}, want: "CAP_NET_RAW", ambient: true},
	} {
		made := build(t, func(in *container.Input) {
			in.Ask.User = tt.user
			in.Ask.Capabilities = container.Capabilities{Add: tt.add, Drop: tt.drop}
			in.Node.Capabilities = []string{"NET_RAW", "CAP_SYS_TIME"}
		})
		caps := made.Spec.Process.Capabilities
		want := strings.Fields(tt.want)
		for set, got := range map[string][]string{
			"bounding": caps.Bounding, "permitted": caps.Permitted, "effective": caps.Effective,
		} {
			if !slices.Equal(got, want) {
				t.Errorf("%s: %s: %q, want %q", name, set, got, want)
			}
		}
		if !tt.ambient {
			want = nil
		}
		if !slices.Equal(caps.Ambient, want) || !slices.Equal(caps.Inheritable, want) {
			t.Errorf("%s: ambient %q, inheritable %q, want %q", name, caps.Ambient, caps.Inheritable, want)
		}
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	made := build(t, func(in *container.Input) {
		in.Ask.Volumes = []container.Volume{
			{Path: "/data", Source: "/v/data"}, {Path: "/etc/app.conf", Source: "/v/conf", ReadOnly: true},
		}
		in.Ask.Tmpfs = []container.Tmpfs{{Path: "/tmp"}, {Path: "/cache", Size: 1 << 20}}
		in.Ask.ShmSize, in.Ask.ReadOnlyRoot = 1<<20, true
		in.Image.Config.Volumes = map[string]struct{}{"/data": {}, "/spool/": {}, "/tmp": {}}
		in.Node.Scratch = map[string]string{"/spool": "/s/0"}
		in.Ask.User = "www-data"
	})
	got := map[string]string{}
	for _, m := range made.Spec.Mounts {
		got[m.Destination] = m.Source + " " + strings.Join(m.Options, ",")
	}
	for at, want := range map[string]string{
		"/data":            "/v/data bind,rprivate,nosuid,nodev,rw",
		"/etc/app.conf":    "/v/conf bind,rprivate,nosuid,nodev,ro",
		"/etc/hosts":       "/run/x/hosts bind,rprivate,nosuid,nodev,ro,noexec",
		"/etc/resolv.conf": "/run/x/resolv.conf bind,rprivate,nosuid,nodev,ro,noexec",
		"/tmp":             "tmpfs nosuid,nodev,noexec,mode=1777,size=67108864,uid=33,gid=33",
		"/cache":           "tmpfs nosuid,nodev,noexec,mode=1777,size=1048576,uid=33,gid=33",
		"/spool":           "/s/0 bind,rprivate,nosuid,nodev,rw",
		"/dev/shm":         "shm nosuid,noexec,nodev,mode=1777,size=1048576",
		"/sys":             "/sys rbind,rprivate,nosuid,noexec,nodev,rro",
	} {
		if got[at] != want {
			t.Errorf("%s: %q, want %q", at, got[at], want)
		}
	}
	if !made.Spec.Root.Readonly {
		t.Error("the root is writable")
	}
	made = build(t, func(in *container.Input) {
		in.Image.Config.Volumes = map[string]struct{}{"/spool": {}}
		in.Image.Config.User, in.Node.IDs, in.Node.Number = "7", nil, 5000
	})
	for _, m := range made.Spec.Mounts {
		if m.Destination == "/spool" || m.Destination == "/sys" && m.Type != "sysfs" {
			t.Errorf("mounted: %+v", m)
		}
	}
}

// Each mistake is named with its field, value and what is allowed.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		want   string
		change func(in *container.Input)
	}{
		{
			`command: missing; allowed: a program, because the image has neither Entrypoint nor Cmd`,
			func(in *container.Input) {
				in.Image.Config.Entrypoint, in.Image.Config.Cmd = nil, nil
			},
		},
		{`image.Entrypoint[0]: "" is not valid; allowed: the name or path of a program`, func(in *container.Input) {
			in.Image.Config.Entrypoint = []string{""}
		}},
		{`args[1]: "a\x00" is not valid; allowed: text in UTF-8`, func(in *container.Input) {
			in.Ask.Args = []string{"a", "a\x00"}
		}},
		{
			`args: 1025 arguments is not valid; allowed: at most 1024 arguments`,
			func(in *container.Input) {
				in.Ask.Command, in.Ask.Args = "c", append(slices.Repeat([]string{"a"}, 1023), "")
			},
		},
		{`image.Env[0]: "A" is not valid; allowed: NAME=value`, func(in *container.Input) {
			in.Image.Config.Env = []string{"A"}
		}},
		{`env: "A=B" is not valid; allowed: NAME=value`, func(in *container.Input) {
			in.Ask.Env = map[string]string{"A=B": "secret"}
		}},
		{`node.env: "" is not valid`, func(in *container.Input) {
			in.Node.Env = map[string]string{"": "x"}
		}},
		{`env: 1025 variables with `, func(in *container.Input) {
			in.Ask.Env = map[string]string{}
			for i := range 1020 {
				in.Ask.Env[fmt.Sprintf("V%d", i)] = ""
			}
		}},
		{`init: true is not valid; allowed: false: this node has no init program`, func(in *container.Input) {
			in.Ask.Init, in.Node.InitProgram = true, ""
		}},
		{`work_dir: "data" is not valid; allowed: an absolute path`, func(in *container.Input) {
			in.Ask.WorkDir = "data"
		}},
		{`image.WorkingDir: "/proc/self/fd/7" is not valid; allowed: a path outside /proc`, func(in *container.Input) {
			in.Image.Config.WorkingDir = "/proc/self/fd/7"
		}},
		{
			`user: "nobody" is not valid; allowed: user, user:group or numbers; the image's /etc/passwd has no`,
			func(in *container.Input) {
				in.Ask.User = "nobody"
			},
		},
		{
			`image.User: "33:staff" is not valid; allowed: user, user:group or numbers; the image's /etc/group`,
			func(in *container.Input) {
				in.Image.Config.User = "33:staff"
			},
		},
		{
			`user: "70000" is not valid; allowed: a user and groups below 65536: the account has the number 70000`,
			func(in *container.Input) {
				in.Ask.User = "70000"
			},
		},
		{
			`image.User: "root" is not valid; allowed: an account that is not root: this node cannot`,
			func(in *container.Input) {
				in.Node.IDs, in.Node.Number, in.Node.AllowRoot = nil, 5000, true
			},
		},
		{`user: "0" is not valid; allowed: an account that is not root: this node cannot`, func(in *container.Input) {
			in.Node.IDs, in.Node.Number, in.Node.AllowRoot, in.Ask.User = nil, 5000, true, "0"
		}},
		{
			`user: "root" is not valid; allowed: an account that is not root: this node does not allow root`,
			func(in *container.Input) {
				in.Node.IDs, in.Node.Number, in.Ask.User = nil, 5000, "root"
			},
		},
		{`node.number: 0 is not valid; allowed: a number that is not root's`, func(in *container.Input) {
			in.Node.IDs, in.Ask.User = nil, "7"
		}},
		{`node.ids: 65536 numbers from 0 is not valid`, func(in *container.Input) {
			in.Node.IDs.First = 0
		}},
		{`node.ids: 2 numbers from 4294967294 is not valid`, func(in *container.Input) {
			in.Node.IDs = &container.IDs{First: 1<<32 - 2, Size: 2}
		}},
		{`capabilities.add[0]: "SYS_ADMIN" is not valid; allowed: nothing: this node`, func(in *container.Input) {
			in.Ask.Capabilities.Add = []string{"SYS_ADMIN"}
		}},
		{`capabilities.add[0]: "ALL" is not valid; allowed: CAP_NET_RAW`, func(in *container.Input) {
			in.Ask.Capabilities.Add, in.Node.Capabilities = []string{"ALL"}, []string{"NET_RAW"}
		}},
		{`capabilities.drop[0]: "CAP_X" is not valid; allowed: ALL, or a name`, func(in *container.Input) {
			in.Ask.Capabilities.Drop = []string{"CAP_X"}
		}},
		{`node.capabilities[0]: "X" is not valid`, func(in *container.Input) {
			in.Node.Capabilities = []string{"X"}
		}},
		{`volumes[0].path: "/proc/sys" is not valid; allowed: an absolute path`, func(in *container.Input) {
			in.Ask.Volumes = []container.Volume{{Path: "/proc/sys", Source: "/v"}}
		}},
		{`volumes[0].path: "/" is not valid`, func(in *container.Input) {
			in.Ask.Volumes = []container.Volume{{Path: "/", Source: "/v"}}
		}},
		{`volumes[0].path: "/etc/hosts" is not valid`, func(in *container.Input) {
			in.Ask.Volumes = []container.Volume{{Path: "/etc/hosts", Source: "/v"}}
		}},
		{`volumes[0].source: "v/.." is not valid`, func(in *container.Input) {
			in.Ask.Volumes = []container.Volume{{Path: "/a", Source: "v/.."}}
		}},
		{
			`volumes[1].path: "/a" is not valid; allowed: a path that is not at or below /a of volumes[0].path`,
			func(in *container.Input) {
				in.Ask.Volumes = []container.Volume{{Path: "/a", Source: "/v"}, {Path: "/a", Source: "/w"}}
			},
		},
		{
			`tmpfs[0].path: "/a/b" is not valid; allowed: a path that is not at or below /a of volumes[0].path`,
			func(in *container.Input) {
				in.Ask.Volumes = []container.Volume{{Path: "/a", Source: "/v"}}
				in.Ask.Tmpfs = []container.Tmpfs{{Path: "/a/b"}}
			},
		},
		{`tmpfs[0].size: -1 is not valid; allowed: bytes, from 4096`, func(in *container.Input) {
			in.Ask.Tmpfs = []container.Tmpfs{{Path: "/a", Size: -1}}
		}},
		{
			`shm_size: 1 is not valid; allowed: bytes, from 4096 to 1125899906842624; 0: 67108864`,
			func(in *container.Input) {
				in.Ask.ShmSize = 1
			},
		},
		{`volumes: 65 entries is not valid`, func(in *container.Input) {
			in.Ask.Volumes = make([]container.Volume, 65)
		}},
		{`image.Volumes./proc: "/proc" is not valid`, func(in *container.Input) {
			in.Image.Config.Volumes, in.Ask.ReadOnlyRoot = map[string]struct{}{"/proc": {}}, true
		}},
		{`node.scratch./spool: missing; allowed: a directory of the node for this VOLUME`, func(in *container.Input) {
			in.Image.Config.Volumes, in.Ask.ReadOnlyRoot = map[string]struct{}{"/spool": {}}, true
		}},
		{`volumes[0].path: "/a" is not valid; allowed: an absolute path`, func(in *container.Input) {
			in.Ask.Volumes = []container.Volume{{Path: "/a", Source: "/v"}}
			in.Files.Places = map[string]string{"/a": "/dev"}
		}},
		{
			`tmpfs[0].path: "/b" is not valid; allowed: a path that is not at or below /a of volumes[0].path; links of `,
			func(in *container.Input) {
				in.Ask.Volumes = []container.Volume{{Path: "/a", Source: "/v"}}
				in.Ask.Tmpfs = []container.Tmpfs{{Path: "/b"}}
				in.Files.Places = map[string]string{"/b": "/a/b"}
			},
		},
		{
			`node: "/etc/hosts" is not valid; allowed: a path that is not at or below /a of volumes[0].path; links of `,
			func(in *container.Input) {
				in.Ask.Volumes = []container.Volume{{Path: "/a", Source: "/v"}}
				in.Files.Places = map[string]string{"/etc/hosts": "/a/hosts"}
			},
		},
		{`node: "/etc/hosts" is not valid; allowed: an absolute path`, func(in *container.Input) {
			in.Files.Places = map[string]string{"/etc/hosts": "/dev/null"}
		}},
		{
			`files.places./dev: "/data" is not valid; allowed: an image in which /dev is not a link`,
			func(in *container.Input) {
				in.Files.Places = map[string]string{"/dev": "/data"}
			},
		},
		{`node.root: missing`, func(in *container.Input) {
			in.Node.Root = ""
		}},
		{`node.cgroup: "/" is not valid`, func(in *container.Input) {
			in.Node.Cgroup = "/"
		}},
		{`node.hosts: "hosts" is not valid`, func(in *container.Input) {
			in.Node.Hosts = "hosts"
		}},
		{`node.hostname: "a_b" is not valid`, func(in *container.Input) {
			in.Node.Hostname = "a_b"
		}},
		{`devices: "/dev/kvm" is not valid`, func(in *container.Input) {
			in.Ask.Unsupported.Devices = []string{"/dev/kvm"}
		}},
		{`gpus: "all" is not valid`, func(in *container.Input) {
			in.Ask.Unsupported.GPUs = "all"
		}},
		{`privileged: true is not valid`, func(in *container.Input) {
			in.Ask.Unsupported.Privileged = true
		}},
		{`host_pid: true is not valid`, func(in *container.Input) {
			in.Ask.Unsupported.HostPID = true
		}},
		{`selinux: "type:spc_t" is not valid`, func(in *container.Input) {
			in.Ask.Unsupported.SELinux = []string{"type:spc_t"}
		}},
		{`sysctls.net.core.x: "1" is not valid`, func(in *container.Input) {
			in.Ask.Unsupported.Sysctls = map[string]string{"net.core.x": "1"}
		}},
	} {
		in := input()
		tt.change(&in)
		withoutLinks(&in)
		made, err := container.Build(in)
		if made != nil || err == nil || !slices.ContainsFunc(strings.Split(err.Error(), "\n"),
			func(line string) bool { return strings.HasPrefix(line, tt.want) && strings.Contains(line, "allowed: ") }) {
			t.Errorf("%s: got %v", tt.want, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error has a secret: %v", err)
		}
	}
}

// Build does not trust an image whose links nobody has followed.
func TestUnknownLinks(t *testing.T) {
	t.Parallel()
	in := input()
	in.Ask.Tmpfs = []container.Tmpfs{{Path: "/a"}}
	_, err := container.Build(in)
	if err == nil || strings.Count(err.Error(), ": missing; allowed: what ReadFiles has found") != 7 {
		t.Errorf("want seven missing places: %v", err)
	}
}

// A mount is made where the image's links lead, and after the one that it is below.
func TestPlaces(t *testing.T) {
	t.Parallel()
	made := build(t, func(in *container.Input) {
		in.Ask.Volumes = []container.Volume{{Path: "/run/deep/data", Source: "/v"}, {Path: "/a", Source: "/w"}}
		in.Ask.Tmpfs = []container.Tmpfs{{Path: "/run"}}
		in.Files.Places = map[string]string{"/a": "/b", "/etc/resolv.conf": "/run/systemd/resolv.conf"}
	})
	var got []string
	for _, m := range made.Spec.Mounts {
		if !strings.HasPrefix(m.Destination, "/dev") && m.Type != "proc" && !strings.HasPrefix(m.Destination, "/sys") {
			got = append(got, m.Destination)
		}
	}
	want := []string{"/b", "/etc/hosts", "/run", "/run/deep/data", "/run/systemd/resolv.conf"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// All mistakes are reported together.
func TestAllMistakes(t *testing.T) {
	t.Parallel()
	in := input()
	in.Ask.Unsupported = container.Unsupported{
		Devices: []string{"/dev/kvm"}, GPUs: "all", Privileged: true, HostPID: true, SELinux: []string{"x"},
		Sysctls: map[string]string{"a": "1", "b": "2"},
	}
	in.Ask.WorkDir = "x"
	withoutLinks(&in)
	_, err := container.Build(in)
	if err == nil || strings.Count(err.Error(), "\n") != 7 {
		t.Errorf("want 8 mistakes: %v", err)
	}
}

// Build leaves its input unchanged, and the same input gives the same configuration.
func TestBuildIsAFunction(t *testing.T) {
	t.Parallel()
	in, same := input(), input()
	withoutLinks(&in)
	withoutLinks(&same)
	first := build(t, func(*container.Input) {})
	for range 3 {
		made, err := container.Build(in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(first, made); diff != "" {
			t.Error(diff)
		}
	}
	if diff := gocmp.Diff(same, in); diff != "" {
		t.Error(diff)
	}
}

// The seccomp profile refuses unknown system calls, and those that need a capability unless the container has it.
func TestSeccomp(t *testing.T) {
	t.Parallel()
	allowed := func(made *container.Container, call string) bool {
		return slices.ContainsFunc(made.Spec.Linux.Seccomp.Syscalls, func(rule specs.LinuxSyscall) bool {
			return rule.Action == specs.ActAllow && len(rule.Args) == 0 && slices.Contains(rule.Names, call)
		})
	}
	made := build(t, func(*container.Input) {})
	for call, want := range map[string]bool{
		"read": true, "mount": false, "bpf": false, "kexec_load": false, "add_key": false, "unshare": false,
		"io_uring_setup": false, "open_tree": false, "setns": false, "init_module": false,
	} {
		if allowed(made, call) != want {
			t.Errorf("%s is allowed: %t", call, !want)
		}
	}
	made = build(t, func(in *container.Input) {
		in.Ask.Capabilities.Add, in.Node.Capabilities = []string{"SYS_TIME"}, []string{"SYS_TIME"}
	})
	if !allowed(made, "settimeofday") || allowed(made, "mount") {
		t.Error("the profile does not follow the capabilities")
	}
	if runtime.GOARCH == "amd64" && !slices.Contains(made.Spec.Linux.Seccomp.Architectures, specs.ArchX86_64) {
		t.Errorf("architectures: %v", made.Spec.Linux.Seccomp.Architectures)
	}
}

// check returns the first promise that a configuration breaks.
func check(made *container.Container, node container.Node) string {
	spec := made.Spec
	data, err := json.Marshal(spec)
	var again specs.Spec
	if err == nil {
		err = json.Unmarshal(data, &again)
	}
	process, linux := spec.Process, spec.Linux
	kinds := map[specs.LinuxNamespaceType]bool{}
	for _, ns := range linux.Namespaces {
		kinds[ns.Type] = true
		if ns.Path != "" {
			return "a namespace of another process: " + ns.Path
		}
	}
	caps := process.Capabilities
	switch {
	case err != nil:
		return err.Error()
	case !slices.Equal(again.Process.Args, process.Args) || !slices.Equal(again.Process.Env, process.Env):
		return "JSON changes the arguments or variables"
	case !kinds[specs.PIDNamespace] || !kinds[specs.MountNamespace] || !kinds[specs.IPCNamespace] ||
		!kinds[specs.UTSNamespace] || !kinds[specs.CgroupNamespace] || kinds[specs.NetworkNamespace]:
		return fmt.Sprintf("namespaces: %v", kinds)
	case kinds[specs.UserNamespace] != (node.IDs != nil) || len(linux.UIDMappings) != len(linux.GIDMappings) ||
		(len(linux.UIDMappings) == 1) != (node.IDs != nil):
		return "the user namespace and its mappings differ"
	case !process.NoNewPrivileges || linux.Seccomp == nil || linux.Seccomp.DefaultAction != specs.ActErrno ||
		process.Terminal || len(process.Rlimits) > 0 || spec.Hooks != nil || len(linux.Devices) > 0 ||
		len(linux.Sysctl) > 0 || process.SelinuxLabel != "" || linux.MountLabel != "":
		return "the process has more than it should"
	case len(linux.Resources.Devices) != 1 || linux.Resources.Devices[0].Allow ||
		len(linux.MaskedPaths) == 0 || !slices.Contains(linux.ReadonlyPaths, "/proc/sys"):
		return "devices or files of the kernel are open"
	case len(process.Args) == 0 || process.Args[0] == "" || !path.IsAbs(process.Cwd) || !path.IsAbs(spec.Root.Path):
		return "the process cannot start"
	case process.User.UID != 0 && node.IDs == nil && len(process.User.AdditionalGids) > 0:
		return "the process has groups of the node"
	case node.IDs == nil && made.UID == 0 && !node.AllowRoot, node.IDs != nil && made.UID < node.IDs.First,
		node.IDs != nil && made.UID-node.IDs.First >= node.IDs.Size,
		node.IDs != nil && made.GID-node.IDs.First >= node.IDs.Size:
		return fmt.Sprintf("the user %d is not one of the pod's", made.UID)
	case !slices.Equal(caps.Effective, caps.Bounding) || !slices.Equal(caps.Permitted, caps.Bounding):
		return "the sets of capabilities differ"
	}
	for _, text := range slices.Concat(process.Args, process.Env, []string{process.Cwd, spec.Hostname}) {
		if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return fmt.Sprintf("not a text: %q", text)
		}
	}
	seen := map[string]bool{}
	for _, m := range spec.Mounts {
		if !path.IsAbs(m.Destination) || path.Clean(m.Destination) != m.Destination || m.Destination == "/" ||
			seen[m.Destination] || m.Type == "bind" && !path.IsAbs(m.Source) {
			return fmt.Sprintf("mount %+v", m)
		}
		if !slices.Contains(m.Options, "nosuid") {
			return fmt.Sprintf("setuid programs: %+v", m)
		}
		seen[m.Destination] = true
		kernels := strings.Fields("/proc /dev /dev/pts /dev/shm /dev/mqueue /sys /sys/fs/cgroup /dev/rcfarm-init")
		for _, dir := range []string{"/proc", "/sys", "/dev"} {
			if below(dir, m.Destination) && !slices.Contains(kernels, m.Destination) {
				return fmt.Sprintf("a mount in %s: %+v", dir, m)
			}
		}
		for _, other := range spec.Mounts {
			if other.Type == "bind" && other.Destination != "/sys" && other.Destination != m.Destination &&
				below(other.Destination, m.Destination) {
				return fmt.Sprintf("a mount below a volume: %+v in %+v", m, other)
			}
		}
	}
	return ""
}

func below(dir, at string) bool { return at == dir || strings.HasPrefix(at, dir+"/") }
