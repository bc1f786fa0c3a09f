package preparer_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

// A hook of the node runs outside of the pod's directory, and each hook has its own cgroup.
func TestHooksHaveTheirOwnCgroupAndDirectory(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.isolated()
	if !host.Mapped(b.cfg.Isolation.Users.First, b.cfg.Isolation.Users.Last) {
		b.cfg.Isolation.Users = install.UserRange{}
	}
	const facts = `{ pwd; sed -n 's/^0:://p' /proc/self/cgroup; }`
	seen := filepath.Join(shortDir(t), "seen")
	b.nodeHook("before_launch/node", facts+" > "+seen)
	b.start()
	m := b.sleeper("1")
	b.addProgram(m, "bin/before", facts+" > own")
	m.Hooks = &manifest.Hooks{BeforeLaunch: &manifest.Hook{Path: "bin/before", Required: true}}
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	home := b.inNode("homes", "rc1.main.0")
	for file, dir := range map[string]string{seen: "/", filepath.Join(home, "own"): home} {
		lines := strings.Split(b.text(file), "\n")
		if lines[0] != dir {
			t.Errorf("%s: it ran in %s, want %s", filepath.Base(file), lines[0], dir)
		}
		if want := "/hooks/rc1.main.0.before_launch"; host.Cgroup != "" &&
			(len(lines) < 2 || !strings.HasSuffix(lines[1], want)) {
			t.Errorf("%s: its cgroup is %q, want one that ends with %s", filepath.Base(file), lines[1:], want)
		}
	}
	if host.Cgroup == "" {
		return
	}
	b.eventually(func() error {
		if _, err := os.Stat(filepath.Join(host.Cgroup, "hooks")); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the cgroup of hooks is still there: %w", err)
		}
		return nil
	})
}
