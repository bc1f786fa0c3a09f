package runc_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/container"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/idmap"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/runc"
)

// report is what the program finds out about itself.
type report struct {
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

// The program runs as the manifest and the image ask for it, as PID 1 of namespaces of its own.
func TestProgram(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			b := newBox(t, k, func(b *box) {
				b.in.Image.Config.Env = []string{"A=image", "B=image"}
				b.in.Image.Config.WorkingDir = "/srv/new"
				b.in.Ask.Env = map[string]string{"B": "manifest"}
				b.in.Ask.Args = []string{"report", "two words", ""}
				if k == mapped {
					b.in.Ask.User = "www-data"
				}
			})
			got := decode[report](t, b.run(t))
			want := map[kind]report{
				mapped:   {UID: 33, GID: 33, Groups: []int{44}, UIDMap: "0 300000 65536"},
				numbered: {UID: number, GID: number, UIDMap: "0 0 4294967295"},
				nodeRoot: {UIDMap: "0 0 4294967295"},
			}[k]
			want.Args = []string{"/probe", "report", "two words", ""}
			want.Env = []string{
				"A=image", "B=manifest", "HOME=/var/www", "HOSTNAME=box", "PATH=" + container.DefaultPath,
			}
			if k == nodeRoot {
				want.Env[2] = "HOME=/root"
			}
			want.Dir, want.Host, want.PID, want.Processes = "/srv/new", "box", 1, []string{"/proc/1"}
			short := report{
				Args: got.Args, Env: got.Env, Dir: got.Dir, Host: got.Host, PID: got.PID, UID: got.UID, GID: got.GID,
				Groups: got.Groups, Processes: got.Processes, UIDMap: got.UIDMap,
			}
			if diff := cmp.Diff(want, short, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			isConfined(t, k, got)
		})
	}
}

// isConfined checks the namespaces, capabilities, filters and descriptors of a program.
func isConfined(t *testing.T, k kind, got report) {
	t.Helper()
	for name, namespace := range got.Namespaces {
		ours, err := os.Readlink("/proc/self/ns/" + name)
		must(t, err)
		shared := name == "net" || name == "user" && k != mapped
		if (namespace == ours) != shared || namespace == "" {
			t.Errorf("namespace %s is %s, and the node's is %s", name, namespace, ours)
		}
	}
	caps := "0000000000000000"
	if got.UID == 0 {
		caps = "00000000000405fb" // the ten of container.RootCapabilities
	}
	for name, value := range map[string]string{
		"CapEff": caps, "CapPrm": caps, "CapBnd": caps, "CapInh": "0000000000000000", "CapAmb": "0000000000000000",
		"NoNewPrivs": "1", "Seccomp": "2",
	} {
		if got.Status[name] != value {
			t.Errorf("%s is %s, want %s", name, got.Status[name], value)
		}
	}
	for line := range strings.Lines(got.Cgroup) {
		if !strings.HasSuffix(line, ":/\n") {
			t.Errorf("it sees the node's cgroup %q", line)
		}
	}
	for fd, to := range got.Descriptors {
		if n := fd + " " + to; fd > "2" && !strings.HasPrefix(to, "anon_inode:") &&
			!strings.HasPrefix(to, "/sys/fs/cgroup/") { // Go's scheduler opens them itself
			t.Errorf("descriptor %s is open", n)
		}
	}
	devices := strings.Fields("/dev/fd /dev/full /dev/mqueue /dev/null /dev/ptmx /dev/pts /dev/random " +
		"/dev/shm /dev/stderr /dev/stdin /dev/stdout /dev/tty /dev/urandom /dev/zero")
	if diff := cmp.Diff(devices, got.Devices); diff != "" {
		t.Errorf("devices: %s", diff)
	}
}

// An image that begins as root, prepares a directory and becomes another user works where the node can idmap. The files
// belong to the container's users on the node.
func TestRootDropsToAnotherUser(t *testing.T) {
	t.Parallel()
	var volume string
	b := newBox(t, mapped, func(b *box) {
		volume = filepath.Join(b.dir, "volume")
		must(t, os.Mkdir(volume, 0o700))
		must(t, os.Chown(volume, firstID, firstID))
		b.in.Ask.Volumes = []container.Volume{{Path: "/data", Source: volume}}
	}, "drop", "33", "/probe", "report")
	got := decode[report](t, b.run(t))
	if b.made.UID != firstID || got.UID != 33 || got.GID != 33 || !slices.Equal(got.Groups, []int{33, 34}) ||
		got.Status["CapEff"] != "0000000000000000" {
		t.Errorf("it became user %d, group %d, groups %d, capabilities %s", got.UID, got.GID, got.Groups,
			got.Status["CapEff"])
	}
	if uid, gid := ownerOf(t, filepath.Join(volume, "own/file")); uid != firstID+33 || gid != firstID+33 {
		t.Errorf("its file belongs to %d:%d on the node", uid, gid)
	}
}

// A volume that belongs to the pod's number on the disk belongs to the process's user in the container, if an idmapped
// mount shows it so. runc keeps the owners of such a mount.
func TestVolumeOfAnotherOwner(t *testing.T) {
	t.Parallel()
	var volume string
	b := newBox(t, mapped, func(b *box) {
		volume = filepath.Join(b.dir, "volume")
		shown := filepath.Join(b.dir, "shown")
		for _, dir := range []string{volume, shown} {
			must(t, os.Mkdir(dir, 0o700))
		}
		must(t, os.Chown(volume, number, number))
		must(t, idmap.Bind(volume, shown, []idmap.Range{{OnDisk: number, Shown: firstID + 33, Size: 1}}))
		t.Cleanup(func() { must(t, unix.Unmount(shown, 0)) })
		b.in.Image.Config.User = "www-data"
		b.in.Ask.Volumes = []container.Volume{{Path: "/data", Source: shown}}
	}, "files", "/data")
	if got := decode[map[string]file](t, b.run(t))["/data"]; got.UID != 33 || got.GID != 33 || got.Write != "done" {
		t.Errorf("%+v", got)
	}
	if uid, gid := ownerOf(t, filepath.Join(volume, "written")); uid != number || gid != number {
		t.Errorf("on the disk its file belongs to %d:%d", uid, gid)
	}
}

func ownerOf(t *testing.T, file string) (uid, gid uint32) {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(file, &st))
	return st.Uid, st.Gid
}

// With the node's network, a container reaches what listens on the node's addresses, also on abstract sockets.
func TestNodesNetwork(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "unix"} {
		address := map[string]string{"tcp": "127.0.0.1:0", "unix": fmt.Sprintf("@rcfarm-test-%d", os.Getpid())}[network]
		listener, err := net.Listen(network, address)
		must(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if conn, err := listener.Accept(); err == nil {
				_, _ = conn.Write([]byte("hello"))
				_ = conn.Close()
			}
		}()
		b := newBox(t, numbered, nil, "dial", network, listener.Addr().String())
		if out := b.run(t); out != "hello" {
			t.Errorf("%s: %q", network, out)
		}
		_ = listener.Close()
		<-done
	}
}

// Without an init program, a process that lost its parent stays a zombie of the program. With one, it is reaped.
func TestInit(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		without := newBox(t, k, nil, "orphan", "zombie")
		if out := without.run(t); out != "zombie\n" {
			t.Errorf("%s, without: %q", k, out)
		}
		with := newBox(t, k, func(b *box) { b.in.Ask.Init = true }, "orphan", "gone")
		if out := with.run(t); out != "gone\n" {
			t.Errorf("%s, with: %q", k, out)
		}
	}
}

// A capability that the manifest adds works, also for a user that is not root.
func TestAddedCapability(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{mapped, numbered} {
		b := newBox(t, k, func(b *box) {
			b.in.Image.Config.User = "www-data"
			b.in.Ask.Capabilities.Add, b.in.Node.Capabilities = []string{"SYS_CHROOT"}, []string{"SYS_CHROOT"}
		}, "report")
		const sysChroot = "0000000000040000"
		got := decode[report](t, b.run(t))
		for _, set := range []string{"CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"} {
			if got.Status[set] != sysChroot {
				t.Errorf("%s: %s is %s", k, set, got.Status[set])
			}
		}
	}
}

// Without a user namespace, runc makes the container's user the owner of its output. When the caller has taken the file
// back and lets the group write, the link of an image to /dev/stdout still works.
func TestOutputStaysRoots(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		b := newBox(t, k, nil, "reopen")
		must(t, b.create(t))
		want := map[kind]uint32{numbered: number}[k]
		if uid, _ := ownerOf(t, b.out.Name()); uid != want {
			t.Errorf("%s: after create the output belongs to %d, want %d", k, uid, want)
		}
		must(t, b.out.Chown(0, int(b.made.GID)))
		must(t, b.out.Chmod(0o660))
		must(t, b.Start(t.Context(), b.id))
		if status, out := b.wait(t), b.output(t); status != 0 || out != "through the link\n" {
			t.Errorf("%s: %#x %q", k, status, out)
		}
		if uid, gid := ownerOf(t, b.out.Name()); uid != 0 || gid != b.made.GID {
			t.Errorf("%s: the output belongs to %d:%d", k, uid, gid)
		}
	}
}

// A program that does not exist is an error of Start or Create that names it.
func TestNoProgram(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		b := newBox(t, k, func(b *box) { b.in.Ask.Command = "/no/such/program" })
		err := b.create(t)
		if err == nil {
			err = b.Start(t.Context(), b.id)
		}
		if err == nil || !strings.Contains(err.Error(), "/no/such/program") ||
			!strings.Contains(err.Error(), "no such file or directory") {
			t.Errorf("%s: %v", k, err)
		}
	}
}

// The version of this machine's runc is new enough.
func TestVersion(t *testing.T) {
	t.Parallel()
	r, err := runc.New(runc.Config{State: filepath.Join(scratch, "version")})
	must(t, err)
	v, err := r.Version(t.Context())
	must(t, err)
	t.Log("runc", v)
}
