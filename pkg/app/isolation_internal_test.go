package app

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

func TestIsolationOfThisHost(t *testing.T) {
	dir := t.TempDir()
	var logged strings.Builder
	log, err := obs.NewLogger(&logged, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	node := PreparerConfig{Node: "n1", Isolation: IsolationAuto, UserRange: DefaultUserRange, ContainerUserRange: DefaultContainerUserRange}
	host := isolate.Probe(cgroupName(node.Node, dir))
	defer func() {
		if host.Cgroup != "" {
			isolate.Prune(host.Cgroup)
		}
	}()
	closed, _, err := node.isolation(dir, log)
	if err != nil || closed.Users != (install.UserRange{}) {
		t.Errorf("in a directory that is closed to others: %+v, %v; want no users", closed, err)
	}
	if host.Users != strings.Contains(logged.String(), "cannot be reached by other users") ||
		strings.Count(logged.String(), "\n") != 1 {
		t.Errorf("it logged %q, want one line with the directory that is closed if users could be had", logged.String())
	}
	if root := os.Getuid() == 0; root != (closed.NoUsers != "") ||
		host.Users && !strings.Contains(closed.NoUsers, filepath.Dir(dir)) ||
		strings.Contains(closed.NoUsers, "tmp: ") {
		t.Errorf("root: %t, and pods start without users of their own unless %q", root, closed.NoUsers)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	opened, cgroup, err := node.isolation(dir, log)
	if want := (install.UserRange{First: 1900000000, Last: 1900065535}); err != nil ||
		host.Users && opened.Users != want {
		t.Errorf("%+v, %v; want users %+v if they can be had", opened, err, want)
	}
	if host.Users && opened.NoUsers != "" {
		t.Errorf("users can be had, and are refused: %q", opened.NoUsers)
	}
	if opened.Limits != (cgroup != "") || host.Users && cgroup != host.Cgroup {
		t.Errorf("limits: %t, in the cgroup %q of %+v", opened.Limits, cgroup, host)
	}
	if opened.Tmp {
		t.Error("a private tmp that would hide the data directory")
	}
	if info, err := os.Stat(dir); err != nil || host.Users && info.Mode().Perm() != 0o711 {
		t.Errorf("data directory %v, %v; want it open to pass through", info.Mode(), err)
	}
	node.Isolation = IsolationOn
	if _, _, err := node.isolation(dir, log); err == nil || !strings.Contains(err.Error(), "--isolation on") {
		t.Errorf("all or nothing: %v, want an error, because there is no private tmp", err)
	}
	node.Isolation = IsolationOff
	if off, cgroup, err := node.isolation(dir, log); err != nil || off != (install.Isolation{}) || cgroup != "" {
		t.Errorf("off: %+v, %q, %v", off, cgroup, err)
	}
}

func TestPlanOfIsolation(t *testing.T) {
	const noUsers = "users: not all numbers from 2000 to 3000 exist in this user namespace; " +
		"choose others with --user-range"
	users := install.UserRange{First: 2000, Last: 3000}
	for name, tt := range map[string]struct {
		host isolate.Host
		dir  string
		want install.Isolation
		says []string
	}{
		"not root": {
			isolate.Host{Tmp: true, Cgroup: "/c", Without: []string{"users: no"}},
			"/d",
			install.Isolation{},
			[]string{"users: no"},
		},
		"no such users": {
			isolate.Host{Users: true, Tmp: true, Cgroup: "/c"},
			"/d",
			install.Isolation{Tmp: true, Limits: true},
			[]string{noUsers},
		},
		"no tmp": {
			isolate.Host{Users: true, Cgroup: "/c", Without: []string{"tmp: no"}},
			"/d",
			install.Isolation{Limits: true},
			[]string{"tmp: no", noUsers},
		},
		"below tmp": {
			isolate.Host{Users: true, Tmp: true},
			"/var/tmp/x",
			install.Isolation{},
			[]string{
				noUsers,
				"tmp: the data directory /var/tmp/x is below /var/tmp, which a private tmp would hide",
			},
		},
	} {
		in, without := plan(tt.host, users, tt.dir)
		if in != tt.want || !slices.Equal(without, tt.says) {
			t.Errorf("%s: %+v, %q; want %+v, %q", name, in, without, tt.want, tt.says)
		}
	}
}

func TestBelow(t *testing.T) {
	for dir, want := range map[string]string{
		"/tmp": "/tmp", "/tmp/a/b": "/tmp", "/var/tmp/a": "/var/tmp", "/tmpfs": "",
		"/": "", "/var": "", "/a/tmp": "",
	} {
		if got := below(dir, "/tmp", "/var/tmp"); got != want {
			t.Errorf("%s is below %q, want %q", dir, got, want)
		}
	}
}

// A preparer that does not start leaves no new directory and no cgroup. It keeps an existing directory.
func TestFailedPreparerLeavesNothing(t *testing.T) {
	t.Parallel()
	kept := t.TempDir()
	mine := filepath.Join(kept, "mine")
	if err := os.Mkdir(mine, 0o700); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, dir := range []string{filepath.Join(kept, "a", "b", "own"), mine} {
		for what, spoil := range map[string]func(*PreparerConfig){
			// a private /tmp would hide the directory
			"isolation on":  func(c *PreparerConfig) { c.Isolation = IsolationOn },
			"no lifeline":   func(c *PreparerConfig) { c.Lifeline = filepath.Join(kept, "none") },
			"occupied port": func(c *PreparerConfig) { c.DebugAddr = taken.Addr().String() },
		} {
			cfg := PreparerConfig{
				Common: Common{
					Prefix: "x/", TTL: 2 * time.Second, DataDir: dir, LogLevel: "error", LogFormat: "text",
					DebugAddr: "off",
				},
				Node: "n1", Address: "127.0.0.1", Slots: 1, ReserveCPU: 1, PortsMin: 1, PortsMax: 2,
				KeepStopped: time.Hour,
				Isolation:   IsolationAuto, UserRange: DefaultUserRange,
				ContainerUserRange: DefaultContainerUserRange, API: nodeapi.Config{Addr: "off"},
				Images: ImageConfig{CacheBytes: 1, MaxBytes: 1, MaxUnpackedBytes: 1, PullDeadline: time.Second},
				Artifacts: artifact.Config{
					CacheBytes: 1, MaxBytes: 1, MaxUnpackedBytes: 1, FetchTimeout: time.Second,
					StallTimeout: time.Second,
				},
			}
			spoil(&cfg)
			p, err := NewPreparer(t.Context(), cfg)
			if err == nil {
				p.close()
				t.Errorf("%s: it started", what)
			} else if strings.Contains(err.Error(), "is not valid") {
				t.Errorf("%s: it failed for another reason: %v", what, err)
			}
			if left, err := os.ReadDir(kept); err != nil || len(left) != 1 || left[0].Name() != "mine" {
				t.Errorf("%s: left %v (%v)", what, left, err)
			}
			for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
				if _, err := os.Stat(filepath.Join(mount, cgroupName("n1", dir))); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s: its cgroup below %s is left (%v)", what, mount, err)
				}
			}
		}
	}
}
