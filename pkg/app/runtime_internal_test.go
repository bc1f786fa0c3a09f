package app

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
)

// Files that versions with runit left below a node's data directory, by path. A trailing slash makes a directory, an
// arrow a link.
const (
	formerRun    = "#!/bin/sh\nexec '/var/lib/rcfarm/preparer/runit/stub' runit-exec run \"$@\"\n"
	formerFinish = "#!/bin/sh\nexec '/var/lib/rcfarm/preparer/runit/stub' runit-exec finish \"$@\"\n"
	formerRecord = `{"spec":{"id":"rc1.main.0-7-web","pod":{"rc_id":"rc1","role":"main","index":0},"revision":7,"name":"web",` +
		`"command":["/bin/sleep","1000"],"env":["A=b"],"dir":"/","log_path":"/var/lib/rcfarm/preparer/logs/rc1.main.0/web","log_bytes":0,` +
		`"log_keep":0,"stop_grace":1000000000},"desired":"run","pace":{"min":20000000,"max":200000000,"stable":10000000000},` +
		`"boot_id":"cc808e1e-8554-4ecc-86fa-48e91bcdc4a2","pid":28205,"start":69373,"boot":"cc808e1e-8554-4ecc-86fa-48e91bcdc4a2",` +
		`"runsv":{"pid":28204,"start":69373,"boot":"cc808e1e-8554-4ecc-86fa-48e91bcdc4a2"},"started_at":"2026-11-23T01:37:58.877842713Z","starts":1}`
	formerStopped = `{"spec":{"id":"rc1.main.0-7-web","pod":{"rc_id":"rc1","role":"main","index":0},"revision":7,"name":"web",` +
		`"command":["/bin/sleep","1000"],"env":["A=b"],"dir":"/","log_path":"/var/lib/rcfarm/preparer/logs/rc1.main.0/web","log_bytes":0,` +
		`"log_keep":0,"stop_grace":1000000000},"desired":"stop","pace":{"min":20000000,"max":200000000,"stable":10000000000},` +
		`"boot_id":"cc808e1e-8554-4ecc-86fa-48e91bcdc4a2","runsv":{},"starts":1}`
)

// formerNode returns the files of a directory that runit has served, with the files of some services. Without services
// no process is left, for example after a drain.
func formerNode(services ...map[string]string) map[string]string {
	files := map[string]string{
		"runit/lock": "", "runit/runsvdir.log": "",
		"runit/runsvdir.json": `{"pid":28168,"start":69271,"boot":"cc808e1e-8554-4ecc-86fa-48e91bcdc4a2"}`,
		"runit/service/":      "", "runit/sv/": "", "runit/reserve/00": strings.Repeat("\x00", 1<<14),
		"runit/stub": "->/usr/local/bin/preparer",
	}
	for _, s := range services {
		maps.Copy(files, s)
	}
	return files
}

// formerService returns the files of one process under runit.
func formerService(name, record string) map[string]string {
	at := "runit/sv/" + name + "/"
	return map[string]string{
		at + "record.json": record, at + "lock": "", at + "why-not": "", at + "run": formerRun,
		at + "finish":         formerFinish,
		at + "supervise/lock": "", at + "supervise/pid": "28205\n", at + "supervise/stat": "run\n",
		at + "supervise/status": strings.Repeat("\x00", 20),
		"runit/service/" + name: "->../sv/" + name,
	}
}

func layOut(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		target, link := strings.CutPrefix(text, "->")
		switch {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o700)
		case link:
			err = os.Symlink(target, path)
		default:
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// formerFiles reads the files below runit/, in the form of layOut without directories.
func formerFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	if err := filepath.WalkDir(filepath.Join(dir, "runit"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, text := strings.TrimPrefix(path, dir+"/"), []byte(nil)
		if e.Type() == fs.ModeSymlink {
			target, err := os.Readlink(path)
			files[name] = "->" + target
			return err
		}
		text, err = os.ReadFile(path)
		files[name] = string(text)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

// A preparer does not start while pods run under runit, because it would start these pods a second time.
func TestPodsUnderRunitAreRefused(t *testing.T) {
	t.Parallel()
	const id = "rc1.main.0-7-web"
	for name, tt := range map[string]struct {
		files map[string]string
		says  string // empty: it may start
	}{
		"new":           {nil, ""},
		"only shim":     {map[string]string{"shim/state/p.json": "{}"}, ""},
		"drained":       {formerNode(), ""},
		"being made":    {formerNode(map[string]string{"runit/sv/.new-1/run": formerRun}), ""},
		"being removed": {formerNode(map[string]string{"runit/sv/.gone-1/" + id + "/record.json": formerStopped}), ""},
		"running":       {formerNode(formerService(id, formerRecord)), ": 1, the first is " + id},
		"stopped":       {formerNode(formerService(id, formerStopped)), ": 1, the first"},
		"unreadable":    {formerNode(formerService(id, "{")), ": 1, the first"},
		"half removed": {
			formerNode(formerService(id, strings.TrimSuffix(formerStopped, "}")+`,"removed":true}`)),
			": 1, the first",
		},
		"two": {
			formerNode(formerService(id, formerRecord), formerService("rc2.main.0-1-web", formerRecord)),
			": 2, the first",
		},
		"both": {
			formerNode(formerService(id, formerRecord), map[string]string{"shim/state/p.json": "{}"}),
			": 1, the first",
		},
		"no directory": {map[string]string{"runit/sv": ""}, "not a directory"},
	} {
		path := t.TempDir()
		layOut(t, path, tt.files)
		dir, err := OpenDataDir(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		err = refuseFormer(dir)
		dir.Close()
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want an error with %q, or none if that is empty", name, err, tt.says)
		}
	}
}

// A refused start changes no file of runit, and starts no supervisor.
func TestNoPreparerStartsBesideRunit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	layOut(t, dir, formerNode(formerService("rc1.main.0-7-web", formerRecord)))
	before := formerFiles(t, dir)
	p, err := NewPreparer(t.Context(), PreparerConfig{
		Common: Common{
			Prefix: "x/", TTL: 2 * time.Second, DataDir: dir, LogLevel: "error", LogFormat: "text",
			DebugAddr: "off",
		},
		Node: "n1", Address: "127.0.0.1", Slots: 1, PortsMin: 1, PortsMax: 2, KeepStopped: time.Hour,
		Isolation: IsolationOff, UserRange: DefaultUserRange,
		ContainerUserRange: DefaultContainerUserRange, API: nodeapi.Config{Addr: "off"},
		Images: ImageConfig{CacheBytes: 1, MaxBytes: 1, MaxUnpackedBytes: 1, PullDeadline: time.Second},
		Artifacts: artifact.Config{
			CacheBytes: 1, MaxBytes: 1, MaxUnpackedBytes: 1, FetchTimeout: time.Second, StallTimeout: time.Second,
		},
	})
	if err == nil {
		p.close()
		t.Fatal("it started")
	}
	for _, part := range []string{
		filepath.Join(dir, "runit/sv"), "the previous version", "drain the node",
		"rcctl pods",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if after := formerFiles(t, dir); !maps.Equal(before, after) {
		t.Errorf("what runit serves was %v, now %v", before, after)
	}
	if _, err := os.Lstat(filepath.Join(dir, supervisorName)); err == nil {
		t.Error("a supervisor has a directory")
	}
}
