package runc_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/container"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/runc"
)

// A hostile program cannot change the machine, see a neighbour or reach the node's files, whichever user it is.
func TestEscapes(t *testing.T) {
	t.Parallel()
	neighbour := newBox(t, numbered, nil, "wait")
	neighbour.start(t)
	neighbour.says(t, "waits")
	secret := filepath.Join(scratch, "secret")
	must(t, os.WriteFile(secret, nil, 0o644))
	hostname, err := os.Hostname()
	must(t, err)
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) {
			b := newBox(t, k, nil, "try", secret, fmt.Sprint(neighbour.pid))
			b.start(t)
			status, out := b.wait(t), b.output(t)
			if status != 0 {
				t.Fatalf("%#x: %s", status, out)
			}
			if done := decode[map[string]string](t, out); len(done) > 0 {
				t.Errorf("succeeded: %q", slices.Sorted(maps.Keys(done)))
			}
		})
	}
	if now, err := os.Hostname(); err != nil || now != hostname {
		t.Errorf("the node's name is %s, %v", now, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", neighbour.pid))
	if err != nil || !strings.Contains(string(stat), "TracerPid:\t0\n") ||
		strings.Contains(string(stat), "State:\tT") {
		t.Errorf("the neighbour was touched: %s, %v", stat, err)
	}
}

// The same program on the node itself has success, so the attempts are real.
func TestAttemptsAreReal(t *testing.T) {
	t.Parallel()
	b := newBox(t, nodeRoot, func(b *box) {
		b.in.Ask.Capabilities.Add = []string{"SYS_ADMIN", "SYS_PTRACE", "MKNOD", "NET_RAW", "SYSLOG"}
		b.in.Node.Capabilities = b.in.Ask.Capabilities.Add
	}, "try", "/probe", "1")
	b.start(t)
	if status := b.wait(t); status != 0 {
		t.Fatalf("%#x: %s", status, b.output(t))
	}
	done := decode[map[string]string](t, b.output(t))
	for _, name := range []string{
		"open /probe", "open /proc/1/root/probe", "mount a tmpfs", "bind the root", "a new mount namespace",
		"a raw socket", "a packet socket", "the hostname", "bpf", "kernel messages",
	} {
		if done[name] == "" {
			t.Errorf("%q does not succeed with the capability for it", name)
		}
	}
	// The device's file can be made now. The cgroup still does not let it be opened.
	if done["make a block device 65024"] == "" {
		t.Error("a device cannot be made with the capability for it")
	}
	for name := range done {
		if strings.HasPrefix(name, "open a ") {
			t.Errorf("succeeded: %s", name)
		}
	}
}

// file is what the program finds out about a path.
type file struct {
	Content, Error, Write, Mode string
	UID, GID                    int
	Entries                     []string
	Size                        int64
}

// Files of the kernel that show the machine look empty.
func TestMaskedPaths(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		var masked []string
		b := newBox(t, k, func(b *box) {
			var err error
			b.in.Files, err = container.ReadFiles(b.rootfs, b.in.MountPaths())
			must(t, err)
			made, err := container.Build(b.in)
			must(t, err)
			masked = made.Spec.Linux.MaskedPaths
			b.in.Ask.Args = append([]string{"files"}, masked...)
		})
		got, seen := decode[map[string]file](t, b.run(t)), 0
		for _, path := range masked {
			f := got[path]
			if _, err := os.Stat(path); err != nil {
				continue // this kernel has no such file
			}
			seen++
			directory := strings.HasPrefix(f.Mode, "d")
			if f.Error != "" && !strings.Contains(f.Error, "permission denied") || f.Content != "" ||
				len(f.Entries) > 0 || directory && f.Write == "done" {
				t.Errorf("%s: %s: %+v", k, path, f)
			}
		}
		if seen == 0 {
			t.Error("this kernel has none of the files")
		}
	}
}

// Volumes, memory as files and the node's files are where the manifest wants them, with the sizes that it wants.
func TestFiles(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			b := newBox(t, k, func(b *box) {
				for _, name := range []string{"volume", "fixed", "spool"} {
					dir := filepath.Join(b.dir, name)
					must(t, os.Mkdir(dir, 0o700))
					owner := map[kind]int{mapped: firstID, numbered: number}[k]
					must(t, os.Chown(dir, owner, owner))
				}
				for _, name := range []string{"hosts", "resolv.conf"} {
					must(t, os.WriteFile(filepath.Join(b.dir, name), []byte("content of "+name), 0o644))
				}
				b.in.Node.Hosts = filepath.Join(b.dir, "hosts")
				b.in.Node.ResolvConf = filepath.Join(b.dir, "resolv.conf")
				b.in.Ask.Volumes = []container.Volume{
					{Path: "/data/deep", Source: filepath.Join(b.dir, "volume")},
					{Path: "/fixed", Source: filepath.Join(b.dir, "fixed"), ReadOnly: true},
				}
				b.in.Ask.Tmpfs = []container.Tmpfs{{Path: "/cache", Size: 1 << 20}}
				b.in.Ask.ShmSize, b.in.Ask.ReadOnlyRoot = 2<<20, true
				b.in.Image.Config.Volumes = map[string]struct{}{"/spool": {}}
				b.in.Node.Scratch = map[string]string{"/spool": filepath.Join(b.dir, "spool")}
			}, "files", "/", "/etc", "/data/deep", "/fixed", "/cache", "/dev/shm", "/spool", "/etc/hosts",
				"/etc/resolv.conf", "/sys", "/proc")
			got := decode[map[string]file](t, b.run(t))
			for path, want := range map[string]string{
				"/data/deep": "done", "/cache": "done", "/dev/shm": "done", "/spool": "done",
				"/fixed": "read-only file system", "/etc/hosts": "read-only file system",
				"/etc/resolv.conf": "read-only file system", "/": "read-only file system",
				"/etc": "read-only file system",
			} {
				// Another user's file or directory cannot be written to even if the mount could.
				denied := k != nodeRoot && strings.Contains(got[path].Write, "permission denied")
				if !strings.Contains(got[path].Write, want) && !(want != "done" && denied) {
					t.Errorf("write to %s: %s, want %s", path, got[path].Write, want)
				}
			}
			if got["/cache"].Size != 1<<20 || got["/dev/shm"].Size != 2<<20 {
				t.Errorf("sizes %d and %d", got["/cache"].Size, got["/dev/shm"].Size)
			}
			for path, want := range map[string]string{
				"/etc/hosts": "content of hosts", "/etc/resolv.conf": "content of resolv.conf",
			} {
				if got[path].Content != want {
					t.Errorf("%s: %q", path, got[path].Content)
				}
			}
			if uid, _ := ownerOf(t, filepath.Join(b.dir, "volume/written")); uid != b.made.UID {
				t.Errorf("the file in the volume belongs to %d, want %d", uid, b.made.UID)
			}
			if _, err := os.Stat(filepath.Join(b.rootfs, "written")); err == nil {
				t.Error("the root was written to")
			}
		})
	}
}

// Without read_only_root, root of the container can write, and its files belong to the container's root on the disk.
func TestWritableRoot(t *testing.T) {
	t.Parallel()
	b := newBox(t, mapped, nil, "files", "/")
	if got := decode[map[string]file](t, b.run(t)); got["/"].Write != "done" || got["/"].UID != 0 {
		t.Errorf("%+v", got["/"])
	}
	if uid, _ := ownerOf(t, filepath.Join(b.rootfs, "written")); uid != 0 {
		t.Errorf("on the disk the file belongs to %d, and the mount has no owners of its own", uid)
	}
}

// Links of an image at the place of a mount lead to places in the container only.
func TestMountsFollowNoLinkOut(t *testing.T) {
	t.Parallel()
	outside, err := os.MkdirTemp(scratch, "outside-")
	must(t, err)
	must(t, os.Chmod(outside, 0o777))
	for _, k := range kinds {
		for _, to := range []string{outside, strings.Repeat("../", 30) + outside} {
			b := newBox(t, k, func(b *box) {
				must(t, os.Symlink(to, filepath.Join(b.rootfs, "data")))
				must(t, os.RemoveAll(filepath.Join(b.rootfs, "etc")))
				must(t, os.Symlink(to, filepath.Join(b.rootfs, "etc")))
				hosts := filepath.Join(b.dir, "hosts")
				must(t, os.WriteFile(hosts, []byte("hosts"), 0o644))
				b.in.Node.Hosts = hosts
				b.in.Ask.Tmpfs = []container.Tmpfs{{Path: "/data"}}
				b.in.Ask.User = map[kind]string{numbered: "7", nodeRoot: "root"}[k]
				b.in.Image.Config.User = ""
			}, "files", "/data")
			got := decode[map[string]file](t, b.run(t))
			if got["/data"].Write != "done" {
				t.Errorf("%s: the mount is not there: %+v", k, got["/data"])
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
				t.Errorf("%s: files outside: %v, %v", k, left, err)
			}
		}
	}
}

// devLink makes a box whose image has a link to a directory of the kernel, and whose volume has a link in place of the
// null device (CVE-2025-31133).
func devLink(t *testing.T, b *box, from, to string) {
	t.Helper()
	must(t, os.RemoveAll(filepath.Join(b.rootfs, from)))
	must(t, os.Symlink(to, filepath.Join(b.rootfs, from)))
	volume := filepath.Join(b.dir, "volume")
	must(t, os.MkdirAll(volume, 0o777))
	must(t, os.Chmod(volume, 0o777))
	// Never a file of the machine: it would be written to.
	_ = os.Symlink("/tmp/marker", filepath.Join(volume, "null"))
	b.in.Ask.Volumes = []container.Volume{{Path: "/data", Source: volume}}
}

// A volume that the image's links lead to a directory of the kernel is refused, because Debian's runc would take a link
// in it for the null device, and write to what it leads to. So is a directory of the kernel that leads to a volume.
func TestLinksToTheKernel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ from, to, want string }{
		{"data", "/dev", `volumes[0].path: "/data" is not valid`},
		{"data", "../../sys/../proc", `volumes[0].path: "/data" is not valid`},
		{"data", "dev/pts", `volumes[0].path: "/data" is not valid`},
		{"dev", "/data", `files.places./dev: "/data" is not valid`},
		{"proc", "data/proc", `files.places./proc: "/data/proc" is not valid`},
		{"sys", "/data", `files.places./sys: "/data" is not valid`},
	} {
		newBox(t, nodeRoot, func(b *box) {
			devLink(t, b, tt.from, tt.to)
			in := b.in
			var err error
			in.Files, err = container.ReadFiles(b.rootfs, in.MountPaths())
			must(t, err)
			if _, err = container.Build(in); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s leads to %s: %v", tt.from, tt.to, err)
			}
			must(t, os.Remove(filepath.Join(b.rootfs, tt.from)))
		})
	}
	// What this machine's runc does without the refusal.
	b := newBox(t, nodeRoot, nil, "report")
	devLink(t, b, "data", "/dev")
	marker := filepath.Join(b.rootfs, "tmp/marker")
	must(t, os.WriteFile(marker, nil, 0o666))
	b.in.Files.Places["/data"] = "/data"
	made, err := container.Build(b.in)
	must(t, err)
	must(t, runc.WriteBundle(b.bundle(), made.Spec))
	if err = b.create(t); err == nil {
		err = b.Start(t.Context(), b.id)
	}
	if err == nil {
		b.wait(t)
	}
	written, _ := os.ReadFile(marker)
	t.Logf("runc: %v; it wrote %d bytes to the link in place of the null device", err, len(written))
}

// An image cannot have its program begin in a directory of the node (CVE-2024-21626). Build refuses it, and so does
// this machine's runc.
func TestWorkingDirectoryOfTheNode(t *testing.T) {
	t.Parallel()
	for fd := 3; fd < 12; fd++ {
		b := newBox(t, nodeRoot, nil, "report")
		must(t, os.Symlink(fmt.Sprintf("/proc/self/fd/%d", fd), filepath.Join(b.rootfs, "dir")))
		b.in.Image.Config.WorkingDir = "/dir"
		var err error
		b.in.Files, err = container.ReadFiles(b.rootfs, b.in.MountPaths())
		must(t, err)
		if _, err = container.Build(b.in); err == nil || !strings.Contains(err.Error(), "image.WorkingDir") {
			t.Errorf("descriptor %d: Build returns %v", fd, err)
		}
		b.in.Files.Places["/dir"] = "/dir"
		made, err := container.Build(b.in)
		must(t, err)
		must(t, runc.WriteBundle(b.bundle(), made.Spec))
		if err := b.create(t); err != nil {
			continue
		}
		if err := b.Start(t.Context(), b.id); err != nil {
			continue
		}
		status := b.wait(t)
		if got := decode[report](t, b.output(t)); status != 0 || !strings.HasPrefix(got.Dir, "/") ||
			strings.Contains(got.Dir, "unreachable") {
			t.Errorf("descriptor %d: %#x, directory %s", fd, status, got.Dir)
		}
	}
}
