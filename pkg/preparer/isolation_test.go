package preparer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

// isolated switches isolation on, and returns what the host can isolate.
func (b *bench) isolated() isolate.Host {
	b.t.Helper()
	host := isolate.Probe("rcfarm-test-" + b.cfg.Node.Name)
	if host.Cgroup != "" {
		b.t.Cleanup(func() { isolate.Prune(host.Cgroup) })
	}
	b.cfg.Isolation = install.Isolation{
		Users: install.UserRange{First: 1_900_100_000, Last: 1_900_100_099}, Limits: host.Cgroup != "",
	}
	b.useRuntime(dialSupervisor(b.t, b.runtimeDir(), host.Cgroup))
	for _, dir := range []string{filepath.Dir(b.cfg.Dir), b.cfg.Dir} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			b.t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o711); err != nil {
			b.t.Fatal(err)
		}
	}
	return host
}

func (b *bench) ownerOf(parts ...string) (uid, gid int) {
	b.t.Helper()
	info, err := os.Lstat(b.inNode(parts...))
	if err != nil {
		b.t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid)
}

// Each pod has a user of its own, also after its record was lost. Other pods cannot read its files.
func TestPodsHaveUsersOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.isolated()
	a := b.start()
	m := b.pod(`id -u > facts; grep -c . "$CONFIG_PATH" >> facts; (umask 077; : > secret; : > "$VOLUME_DATA/secret")
for i in 0 1; do
	[ "$i" = "$POD_INDEX" ] || ls "../rc1.main.$i" "../../volumes/rc1.main.$i/data"
done > others 2> refused
: > done; exec sleep 1000`, "1")
	m.Volumes = append(m.Volumes, manifest.Volume{Name: "data"})
	m.Config = config(t, `{"a": 1}`)
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	if !host.Mapped(b.cfg.Isolation.Users.First, b.cfg.Isolation.Users.Last) {
		b.awaitState(0, pod.StateFailed, 10, "operation not permitted")
		return
	}
	b.awaitReady(0, digest, 10)
	b.write(intent(1, digest, pod.Running, 10))
	b.awaitReady(1, digest, 10)
	seen := map[int]bool{}
	for i := range 2 {
		name := fmt.Sprintf("rc1.main.%d", i)
		b.eventually(func() error { _, err := os.Stat(b.inNode("homes", name, "done")); return err })
		uid, gid := b.ownerOf("homes", name)
		facts := b.text(b.inNode("homes", name, "facts"))
		if facts != fmt.Sprintf("%d\n3\n", uid) || uid != gid || seen[uid] || uid < 1_900_100_000 {
			t.Errorf("%s: home of %d:%d, facts %q; want a user of its own that reads its configuration",
				name, uid, gid, facts)
		}
		seen[uid] = true
		if vol, _ := b.ownerOf("volumes", name, "data", "secret"); vol != uid {
			t.Errorf("%s: its file in the volume belongs to %d, want %d", name, vol, uid)
		}
		if others := b.text(b.inNode("homes", name, "others")); others != "" {
			t.Errorf("%s sees %q of the other", name, others)
		}
		if log, _ := b.ownerOf("logs", name, "main.log"); log != 0 {
			t.Errorf("%s: its log belongs to %d, want the supervisor", name, log)
		}
	}
	if refused := b.text(b.inNode("homes", "rc1.main.1", "refused")); strings.Count(refused, "Permission denied") != 2 {
		t.Errorf("the later pod got the errors %q, want two refusals", refused)
	}

	// Without the record, the number comes from the owner of the pod's files.
	first, _ := b.ownerOf("homes", "rc1.main.0")
	a.stop()
	records, err := filepath.Glob(b.inNode("pods", "*"))
	if err != nil || len(records) < 2 {
		t.Fatalf("records %v, %v", records, err)
	}
	for _, record := range records {
		if err := os.Remove(record); err != nil {
			t.Fatal(err)
		}
	}
	a = b.start()
	b.write(intent(0, digest, pod.Stopped, 20))
	b.awaitState(0, pod.StateStopped, 20, "")
	a.stop()
	for _, record := range records {
		_ = os.Remove(record) // one of them may not exist now
	}
	b.start()
	b.write(intent(0, digest, pod.Running, 30))
	b.awaitReady(0, digest, 30)
	if uid := b.procs(0)[0].Spec.Isolation.UID; uid != first {
		t.Errorf("the pod that lost its record runs as %d, want %d as before", uid, first)
	}
}

// A process runs as its manifest's account, in the pod's own group.
func TestProcessRunsAsTheAccountOfItsManifest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.isolated()
	b.start()
	m := b.pod(`id -un > facts; : > done; exec sleep 1000`, "1")
	m.Launchables[0].User = "nobody"
	other := m.Launchables[0]
	other.Name, other.User = "other", ""
	other.Artifact = b.artifacts.add(t, `id -u > other; exec sleep 1000`)
	m.Launchables = append(m.Launchables, other)
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	if !host.Mapped(b.cfg.Isolation.Users.First, b.cfg.Isolation.Users.Last) {
		b.awaitState(0, pod.StateFailed, 10, "operation not permitted")
		return
	}
	b.awaitReady(0, digest, 10)
	b.awaitText(b.inNode("homes", "rc1.main.0", "facts"), "nobody\n")
	uid, group := b.ownerOf("homes", "rc1.main.0")
	if uid < 1 || uid >= 1_900_100_000 || group < 1_900_100_000 {
		t.Errorf("home belongs to %d:%d, want the account and the pod's own group", uid, group)
	}
	b.awaitText(b.inNode("homes", "rc1.main.0", "other"), fmt.Sprintf("%d\n", group))

	m.Launchables[0].User = "no-such-account"
	wrong := b.upload(m)
	b.write(intent(0, wrong, pod.Running, 20))
	r := b.awaitState(0, pod.StateFailed, 20, "no-such-account")
	if r.Digest != digest {
		t.Errorf("it runs %s, want the version that worked", r.Digest)
	}
}

// Directories that versions share change their owner only when the new version is launched.
func TestFailedInstallChangesNoOwner(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.isolated()
	b.start()
	const script = `while :; do : > "$VOLUME_DATA/$VERSION" && : > work && sleep 0.05; done`
	m := b.pod(script, "1")
	m.Volumes = []manifest.Volume{{Name: "data"}}
	m.Launchables[0].WorkDir = "above/deep"
	first := b.upload(m)
	b.write(intent(0, first, pod.Running, 10))
	if !host.Mapped(b.cfg.Isolation.Users.First, b.cfg.Isolation.Users.Last) {
		b.awaitState(0, pod.StateFailed, 10, "operation not permitted")
		return
	}
	b.awaitReady(0, first, 10)
	shared := [][]string{
		{"homes", "rc1.main.0"}, {"homes", "rc1.main.0", "above", "deep"}, {"volumes", "rc1.main.0", "data"},
	}
	own, _ := b.ownerOf(shared[0]...)

	m = b.pod(script, "2")
	m.Volumes = []manifest.Volume{{Name: "data"}}
	m.Launchables[0].WorkDir, m.Launchables[0].User = "above/deep", "nobody"
	m.Config = config(t, `{"secret": {"$file": "/no/such/file"}}`)
	b.write(intent(0, b.upload(m), pod.Running, 20))
	b.awaitState(0, pod.StateFailed, 20, "version "+first[:12]+" stays as it is")
	for _, path := range shared {
		if uid, _ := b.ownerOf(path...); uid != own {
			t.Errorf("%v belongs to %d although %d runs on", path, uid, own)
		}
	}
	if err := os.Remove(b.inNode("volumes", "rc1.main.0", "data", "1")); err != nil {
		t.Fatal(err)
	}
	b.eventually(func() error { _, err := os.Stat(b.inNode("volumes", "rc1.main.0", "data", "1")); return err })

	m.Config = nil
	third := b.upload(m)
	b.write(intent(0, third, pod.Running, 30))
	b.awaitReady(0, third, 30)
	b.eventually(func() error { _, err := os.Stat(b.inNode("volumes", "rc1.main.0", "data", "2")); return err })
	for _, path := range shared {
		if uid, _ := b.ownerOf(path...); uid == own {
			t.Errorf("%v still belongs to %d, which runs no more", path, uid)
		}
	}
}

// Without isolation, a pod with another account than the preparer's does not start.
func TestOtherAccountsAreRefusedWithoutIsolation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.sleeper("1")
	m.Launchables[0].User = "nobody"
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	if os.Getuid() == 65534 {
		b.awaitReady(0, digest, 10)
		return
	}
	b.awaitState(0, pod.StateFailed, 10, "this node runs pods as the preparer's user alone")
}

// A preparer that cannot give pods users starts none as root. Running pods continue to run, also during its restart and
// after a refused upgrade.
func TestNoPodStartsAsRoot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	first := b.upload(b.sleeper("1"))
	b.write(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	pid := b.pid(0)
	a.stop()
	b.cfg.Isolation = install.Isolation{NoUsers: "users: the data directory is closed"}
	b.cfg.Node.Isolation = b.cfg.Isolation.String()
	b.start()
	b.write(intent(1, first, pod.Running, 10))
	b.awaitState(1, pod.StateFailed, 10, "starts none as root in place of one: users: the data directory is closed")
	b.write(intent(0, b.upload(b.sleeper("2")), pod.Running, 20))
	b.eventually(func() error {
		if r, _, err := b.reality(0); err != nil || r.Revision != 20 ||
			!strings.Contains(r.Message, "starts none as root") {
			return fmt.Errorf("%+v, %w", r, err)
		}
		return nil
	})
	b.mustKeepPID(0, pid)
	b.awaitNode("what it does about isolation", func(n node.Node, _ string) bool { return n.Isolation == "refused" })
}

// A pod and its hooks see their own directory as /tmp and /var/tmp, which is removed with the pod's home.
func TestPodHasTmpOfItsOwn(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/shm") // the pod does not see the machine's /tmp, so its home must be elsewhere
	b := newBench(t)
	host := b.isolated()
	b.cfg.Isolation.Tmp = true
	if !host.Mapped(b.cfg.Isolation.Users.First, b.cfg.Isolation.Users.Last) {
		b.cfg.Isolation.Users = install.UserRange{}
	}
	b.cfg.KeepStopped, b.cfg.CollectEvery = time.Millisecond, 20*time.Millisecond
	b.start()
	m := b.pod(`ls /var/tmp > seen; : > /tmp/program; exec sleep 1000`, "1")
	b.addProgram(m, "bin/before", `: > /tmp/hook`)
	m.Hooks = &manifest.Hooks{BeforeLaunch: &manifest.Hook{Path: "bin/before", Required: true}}
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	if !host.Tmp {
		b.awaitState(0, pod.StateFailed, 10, "operation not permitted")
		return
	}
	b.awaitReady(0, digest, 10)
	b.awaitText(b.inNode("homes", "rc1.main.0", "seen"), "hook\n")
	b.eventually(func() error { _, err := os.Stat(b.inNode("tmp", "rc1.main.0", "program")); return err })
	b.write(intent(0, digest, pod.Stopped, 20))
	b.awaitState(0, pod.StateStopped, 20, "")
	b.eventually(func() error {
		if names := b.names("tmp"); len(names) > 0 {
			return fmt.Errorf("left behind: %v", names)
		}
		return nil
	})
}
