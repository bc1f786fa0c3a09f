package app_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

func TestDataDirBelongsToOneDaemon(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "data")
	first, err := app.OpenDataDir(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := app.OpenDataDir(t.Context(), path); err == nil || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("a second daemon in the same directory: %v", err)
	}
	for _, id := range []string{"a", "b", "c"} {
		if err := first.Add(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Remove("b"); err != nil {
		t.Fatal(err)
	}
	first.Close()
	second, err := app.OpenDataDir(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if got, err := second.Incarnations(); err != nil || !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("incarnations %v, %v", got, err)
	}
	// An invalid journal is treated as an empty one: the incarnations in it end by themselves.
	if err := os.WriteFile(second.Path("incarnations.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := second.Incarnations(); err != nil || len(got) != 0 {
		t.Errorf("incarnations of garbage %v, %v", got, err)
	}
}

// Other users can pass through the directories above a data directory, with any umask. Only the owner can enter
// the data directory.
func TestDataDirIsReachable(t *testing.T) {
	top := t.TempDir()
	defer syscall.Umask(syscall.Umask(0o077)) // all of the process has one umask, so this test runs alone
	kept := filepath.Join(top, "kept")
	if err := os.Mkdir(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := app.OpenDataDir(t.Context(), filepath.Join(kept, "a", "b", "own"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for dir, want := range map[string]os.FileMode{
		kept: 0o700, filepath.Join(kept, "a"): 0o755, filepath.Join(kept, "a", "b"): 0o755, d.Path(""): 0o700,
	} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has %v (%v), want mode %o", dir, info.Mode(), err, want)
		}
	}
	if _, err := app.OpenDataDir(t.Context(), filepath.Join(d.Path("lock"), "x")); err == nil {
		t.Error("a directory below a file was opened")
	}
}

func TestLifeline(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "life-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	server, err := app.ListenLifeline(path)
	if err != nil {
		t.Fatal(err)
	}
	line, err := app.HoldLifeline(path)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-line.Broken():
		t.Fatal("broken from the start")
	default:
	}
	short, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("enough"))
	defer cancel()
	if err := server.End(short); err == nil {
		t.Error("End did not wait for the process that holds the line")
	}
	<-line.Broken()
	line.Close()
	if err := server.End(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := app.HoldLifeline(path); err == nil {
		t.Error("a line can be held after the end")
	}
}

func TestBadFlagsAreNamed(t *testing.T) {
	t.Parallel()
	common := app.Common{
		Prefix: "x/", TTL: 2 * time.Second, DataDir: t.TempDir(), LogLevel: "info", LogFormat: "text",
		DebugAddr: "off",
	}
	node := app.PreparerConfig{
		Common: common, Node: "n1", Address: "127.0.0.1", Slots: 1, PortsMin: 1, PortsMax: 2, KeepStopped: time.Hour,
		Isolation: app.IsolationAuto, UserRange: app.DefaultUserRange,
		ContainerUserRange: app.DefaultContainerUserRange,
		Images:             app.ImageConfig{CacheBytes: 1, MaxBytes: 1, MaxUnpackedBytes: 1, PullDeadline: time.Second},
		Artifacts: artifact.Config{
			CacheBytes: 1, MaxBytes: 1, MaxUnpackedBytes: 1, FetchTimeout: time.Second, StallTimeout: time.Second,
		},
	}
	farm := app.FarmConfig{Common: common, ID: "f1", Workers: 1, Session: "check"}
	for name, c := range map[string]struct {
		start func() error
		says  []string
	}{
		"ttl": {
			func() error { f := farm; f.TTL = time.Millisecond; return startFarm(t, f) },
			[]string{"ttl", "1ms", "1s to 1m"},
		},
		"id": {
			func() error { f := farm; f.ID = "F_1"; return startFarm(t, f) },
			[]string{"id", "F_1", "lower-case"},
		},
		"workers": {
			func() error { f := farm; f.Workers = 0; return startFarm(t, f) },
			[]string{"workers", "0", "1 to 256"},
		},
		"debug": {
			func() error { f := farm; f.DebugAddr = "0.0.0.0:1"; return startFarm(t, f) },
			[]string{"debug-addr", "0.0.0.0:1", "--debug-public"},
		},
		"session": {
			func() error { f := farm; f.Session = "lease"; return startFarm(t, f) },
			[]string{"session", "lease", "check", "ttl"},
		},
		"two schedulers": {func() error {
			f := farm
			f.Scheduler, f.SchedulerAt.URL = &scheduler.ByLabel{}, "http://127.0.0.1:7470"
			return startFarm(t, f)
		}, []string{"scheduler-url", "http://127.0.0.1:7470", "a scheduler of its own"}},
		"prefix": {
			func() error { f := farm; f.Prefix = "/x"; return startFarm(t, f) },
			[]string{"prefix", "/x", `"rcfarm/"`},
		},
		"level": {
			func() error { f := farm; f.LogLevel = "loud"; return startFarm(t, f) },
			[]string{"log-level", "loud", "debug"},
		},
		"format": {
			func() error { f := farm; f.LogFormat = "xml"; return startFarm(t, f) },
			[]string{"log-format", "xml", "json"},
		},
		"address": {
			func() error { p := node; p.Address = "here"; return startNode(t, p) },
			[]string{"address", "here", "IP address"},
		},
		"label": {
			func() error { p := node; p.Labels = []string{"rack"}; return startNode(t, p) },
			[]string{"label", "rack", "key=value"},
		},
		"value": {
			func() error { p := node; p.Labels = []string{"rack=a b"}; return startNode(t, p) },
			[]string{"label.rack", "a b", "Kubernetes"},
		},
		"slots": {
			func() error { p := node; p.Slots = 0; return startNode(t, p) },
			[]string{"slots", "0", "1 to 10000"},
		},
		"ports": {
			func() error { p := node; p.PortsMin, p.PortsMax = 5, 3; return startNode(t, p) },
			[]string{"port-max: 3", "--port-min, which is 5", "65535"},
		},
		"lowest": {
			func() error { p := node; p.PortsMin = 0; return startNode(t, p) },
			[]string{"port-min: 0", "1 to 65535", "--port-max"},
		},
		"highest": {
			func() error { p := node; p.PortsMax = 65536; return startNode(t, p) },
			[]string{"port-max: 65536", "1 to 65535", "--port-min"},
		},
		"cache": {
			func() error { p := node; p.Artifacts.CacheBytes = 0; return startNode(t, p) },
			[]string{"artifact-cache-bytes: 0", "1 or more"},
		},
		"reserve": {
			func() error { p := node; p.Artifacts.ReserveBytes = -1; return startNode(t, p) },
			[]string{"artifact-reserve-bytes: -1", "0 (none) or more"},
		},
		"fetched": {
			func() error { p := node; p.Artifacts.MaxBytes = 0; return startNode(t, p) },
			[]string{"artifact-max-bytes: 0", "1 or more"},
		},
		"large": {
			func() error { p := node; p.Artifacts.MaxUnpackedBytes = 0; return startNode(t, p) },
			[]string{"artifact-max-unpacked-bytes: 0", "1 or more"},
		},
		"fetch": {
			func() error { p := node; p.Artifacts.FetchTimeout = 0; return startNode(t, p) },
			[]string{"artifact-timeout", "0s", "1s or more"},
		},
		"stall": {
			func() error { p := node; p.Artifacts.StallTimeout = 0; return startNode(t, p) },
			[]string{"artifact-stall-timeout", "0s", "1s or more"},
		},
		"keep": {
			func() error { p := node; p.KeepStopped = 0; return startNode(t, p) },
			[]string{"keep-stopped", "0s", "24h"},
		},
		"isolate": {
			func() error { p := node; p.Isolation = "some"; return startNode(t, p) },
			[]string{"isolation", "some", "auto, on, off"},
		},
		"users": {
			func() error { p := node; p.UserRange = "999-2000"; return startNode(t, p) },
			[]string{"user-range", "999-2000", "1000"},
		},
		"nobody": {
			func() error { p := node; p.UserRange = "5000"; return startNode(t, p) },
			[]string{"user-range", "5000", "the lower first"},
		},
		"swapped": {
			func() error { p := node; p.UserRange = "3000-2000"; return startNode(t, p) },
			[]string{"user-range", "3000-2000", "the lower first"},
		},
		"hooks": {
			func() error { p := node; p.HooksDir = "/no/such"; return startNode(t, p) },
			[]string{"hooks-dir", "/no/such", "directory"},
		},
	} {
		err := c.start()
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		if strings.Count(err.Error(), "allowed: ") > 1 { // else the parts could come from another mistake
			t.Errorf("%s: more than one mistake: %v", name, err)
		}
		for _, part := range c.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", name, err, part)
			}
		}
	}
}

func startFarm(t *testing.T, c app.FarmConfig) error {
	t.Helper()
	_, err := app.NewFarm(t.Context(), c)
	return err
}

func startNode(t *testing.T, c app.PreparerConfig) error {
	t.Helper()
	_, err := app.NewPreparer(t.Context(), c)
	return err
}
