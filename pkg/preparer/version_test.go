package preparer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

func (b *bench) inNode(parts ...string) string {
	return filepath.Join(append([]string{b.cfg.Dir}, parts...)...)
}

// names leaves out empty spare files.
func (b *bench) names(parts ...string) []string {
	b.t.Helper()
	entries, err := os.ReadDir(b.inNode(parts...))
	if err != nil {
		b.t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".spare-") || b.text(b.inNode(append(parts, entry.Name())...)) != "" {
			names = append(names, entry.Name())
		}
	}
	return names
}

func (b *bench) text(path string) string {
	b.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

func (b *bench) awaitText(path, want string) {
	b.t.Helper()
	b.eventually(func() error {
		data, err := os.ReadFile(path)
		if err == nil && string(data) != want {
			err = fmt.Errorf("%s holds %q, want %q", path, data, want)
		}
		return err
	})
}

func config(t *testing.T, text string) manifest.Config {
	t.Helper()
	var c manifest.Config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// The last three versions stay installed, each with its configuration, and the link current leads to the running one.
func TestTheLastThreeVersionsStayInstalled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	names := []string{"current"}
	for n := 1; n <= 5; n++ {
		m := b.pod(
			`cp "$CONFIG_PATH" "$POD_HOME/seen.new" && mv "$POD_HOME/seen.new" "$POD_HOME/seen"; exec sleep 1000`,
			fmt.Sprint(n),
		)
		m.Config = config(t, fmt.Sprintf(`{"n": %d}`, n))
		digest := b.upload(m)
		b.write(intent(0, digest, pod.Running, int64(10*n)))
		b.awaitReady(0, digest, int64(10*n))
		b.awaitText(b.inNode("homes", "rc1.main.0", "seen"), fmt.Sprintf("{\n  \"n\": %d\n}\n", n))
		names = append(names, fmt.Sprintf("%d-%.12s", 10*n, digest))
		target, err := os.Readlink(b.inNode("versions", "rc1.main.0", "current"))
		if err != nil || target != names[len(names)-1] {
			t.Errorf("current is %q (%v), want %s", target, err, names[len(names)-1])
		}
	}
	want := append(slices.Clone(names[3:]), "current")
	b.eventually(func() error {
		if got := b.names("versions", "rc1.main.0"); !slices.Equal(got, want) {
			return fmt.Errorf("versions %v, want %v", got, want)
		}
		return nil
	})
	dir := b.inNode("versions", "rc1.main.0", want[0])
	if got := b.text(filepath.Join(dir, "main.json")); !strings.Contains(got, `"n": 3`) {
		t.Errorf("configuration of version 3: %s", got)
	}
	if target, err := os.Readlink(filepath.Join(dir, "main")); err != nil || filepath.Dir(target) != b.artifacts.dir {
		t.Errorf("artifact of version 3: %s (%v)", target, err)
	}
	program := b.inNode("versions", "rc1.main.0", want[2], "main", "bin", "launch")
	if cmd := b.procs(0)[0].Spec.Command[0]; cmd != program {
		t.Errorf("command %s, want %s", cmd, program)
	}
	if live, known := b.current.LiveArtifacts(); len(live) != 1 || !known {
		t.Errorf("live artifacts %v, all: %t", live, known)
	}
}

// The content of a file that {"$file": path} names is only in the pod's configuration. If it cannot be read, the old
// version continues to run.
func TestSecretsAreOnlyInTheConfiguration(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	const secret = "correct-horse-battery"
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := b.sleeper("1")
	m.Config = config(t, `{"db": {"password": {"$file": "`+path+`"}}}`)
	first := b.upload(m)
	b.write(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	file := b.inNode("versions", "rc1.main.0", "current", "main.json")
	if got, want := b.text(file), "{\n  \"db\": {\n    \"password\": \""+secret+"\"\n  }\n}\n"; got != want {
		t.Errorf("configuration %q, want %q", got, want)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode of the configuration: %v (%v)", info.Mode(), err)
	}
	pid := b.pid(0)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	m.Launchables[0].Env["VERSION"] = "2"
	second := b.upload(m)
	b.write(intent(0, second, pod.Running, 20))
	r := b.awaitState(0, pod.StateFailed, 20, "config.db.password: open "+path)
	if r.Digest != first || !strings.Contains(r.Message, "version "+first[:12]+" stays as it is") {
		t.Errorf("reality %+v", r)
	}
	b.mustKeepPID(0, pid)
	// The file is renamed into place, because the preparer tries again and again, and could otherwise read an
	// incomplete file.
	err := errors.Join(os.WriteFile(path+".new", []byte(secret+"2"), 0o600), os.Rename(path+".new", path))
	if err != nil {
		t.Fatal(err)
	}
	b.awaitReady(0, second, 20)

	pairs, err := b.client.List(t.Context(), b.keys.Prefix(), consul.Consistent)
	if err != nil || len(pairs) < 4 {
		t.Fatalf("%d keys (%v)", len(pairs), err)
	}
	for _, pair := range pairs {
		if bytes.Contains(pair.Value, []byte(secret)) {
			t.Errorf("the secret is in Consul, at %s", pair.Key)
		}
	}
	if strings.Contains(b.log.text(), secret) {
		t.Error("the secret is in the log")
	}
	var with []string
	err = filepath.WalkDir(filepath.Dir(b.cfg.Dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(secret)) {
			with = append(with, path)
		}
		return nil
	})
	elsewhere := func(path string) bool { return filepath.Base(path) != "main.json" }
	if err != nil || len(with) != 2 || slices.ContainsFunc(with, elsewhere) {
		t.Errorf("the secret is in %v (%v), want the two versions' configurations only", with, err)
	}
}

// If the command is a directory, each executable file in it at the installation is a process.
func TestEachScriptOfADirectoryIsAProcess(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	m := b.sleeper("1")
	m.Launchables[0].Command = "run"
	if err := os.Mkdir(filepath.Join(b.artifacts.dir, m.Launchables[0].Artifact.SHA256, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitState(0, pod.StateFailed, 10, "holds 0 executable files")
	b.addProgram(m, "run/b b", "exec sleep 1000")
	b.awaitState(0, pod.StateFailed, 10, `script "b b"`)
	program := func(name string) string {
		return filepath.Join(b.artifacts.dir, m.Launchables[0].Artifact.SHA256, "run", name)
	}
	if err := os.Chmod(program("b b"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.addProgram(m, "run/.new", "exec sleep 1000")
	if err := os.Chmod(program(".new"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.addProgram(m, "run/web.sh", "exec sleep 1000") // added last, because without the bad script it would be installed
	b.awaitState(0, pod.StateFailed, 10, `script ".new"`)
	if err := os.Rename(program(".new"), program("10-work")); err != nil {
		t.Fatal(err)
	}
	b.awaitReady(0, digest, 10)
	names := func() (found []string) {
		for _, proc := range b.procs(0) {
			found = append(found, proc.Spec.Name)
		}
		return found
	}
	if got := names(); !slices.Equal(got, []string{"main-10-work", "main-web.sh"}) {
		t.Errorf("processes %v", got)
	}
	a.stop()
	b.addProgram(m, "run/late", "exec sleep 1000")
	b.start()
	b.write(intent(0, digest, pod.Running, 20))
	b.awaitReady(0, digest, 20)
	if got := names(); len(got) != 2 {
		t.Errorf("processes %v after a script was added to the installed version", got)
	}
	b.write(intent(0, digest, pod.Stopped, 30))
	b.awaitState(0, pod.StateStopped, 30, "")
}

// A program of the node itself is not copied. The pod starts when it exists and can be executed.
func TestProgramsOfTheNodeRunInPlace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	path := filepath.Join(t.TempDir(), "program")
	m := b.sleeper("1")
	m.Launchables[0].Artifact = manifest.Artifact{Kind: manifest.ArtifactExec, Path: path}
	m.Launchables[0].WorkDir = "data/here"
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitState(0, pod.StateFailed, 10, path+": no such file")
	if err := os.WriteFile(path, []byte("#!/bin/sh\npwd > \"$POD_HOME/where\"\nexec sleep 1000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.awaitState(0, pod.StateFailed, 10, path+" is not executable")
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	b.awaitReady(0, digest, 10)
	b.awaitText(b.homeFile(0, "where"), b.homeFile(0, "data/here")+"\n")
	if cmd := b.procs(0)[0].Spec.Command; !slices.Equal(cmd, []string{path}) {
		t.Errorf("command %v", cmd)
	}
}

// A process that has ended as its restart policy allows leaves the pod available, but a failed one does not.
func TestRestartPolicyDecidesWhetherAnEndIsAFailure(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.sleeper("1")
	once := b.pod("exit 0", "1").Launchables[0]
	once.Name, once.Restart = "once", &manifest.Restart{Policy: manifest.RestartOnFailure}
	m.Launchables = append(m.Launchables, once)
	good := b.upload(m)
	least := field.Duration(manifest.MinBackoff)
	bad := b.pod("exit 3", "1")
	bad.Launchables[0].Restart = &manifest.Restart{Policy: manifest.RestartNever, BackoffMin: &least}
	bad.Launchables[0].StopSignal = "SIGINT"
	failing := b.upload(bad)
	b.write(intent(0, good, pod.Running, 10), intent(1, failing, pod.Running, 10))
	b.awaitReady(0, good, 10)
	b.awaitState(1, pod.StateFailed, 10, "its restart policy does not start it again")
	spec := b.procs(1)[0].Spec
	want := runtime.Restart{Policy: runtime.Never, Min: manifest.MinBackoff, Max: manifest.DefaultBackoffMax}
	if spec.StopSignal != "SIGINT" || spec.Restart != want {
		t.Errorf("specification %+v", spec)
	}
	if r, _, err := b.reality(1); err != nil || r.Restarts != 0 {
		t.Errorf("reality %+v (%v)", r, err)
	}
}

// Volumes are never removed. A stopped pod's other directories are removed after KeepStopped, and its tombstone after
// KeepTombstones.
func TestOnlyVolumesOfAStoppedPodAreKept(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.KeepStopped, b.cfg.KeepTombstones, b.cfg.CollectEvery = 1, 1, b.cfg.BusyPoll
	b.start()
	m := b.pod(`echo "$VERSION" >> "$VOLUME_MY_DATA/versions"; echo > "$POD_HOME/here"; exec sleep 1000`, "1")
	m.Volumes = []manifest.Volume{{Name: "my-data"}}
	first := b.upload(m)
	b.write(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	kept := b.inNode("volumes", "rc1.main.0", "my-data", "versions")
	b.awaitText(kept, "1\n")
	m.Launchables[0].Env["VERSION"] = "2"
	second := b.upload(m)
	b.write(intent(0, second, pod.Running, 20))
	b.awaitReady(0, second, 20)
	b.awaitText(kept, "1\n2\n")
	pid := b.pid(0)
	b.write(intent(0, second, pod.Stopped, 30))
	b.awaitState(0, pod.StateStopped, 30, "")
	for _, kind := range []string{"homes", "logs", "versions"} {
		b.eventually(func() error {
			if _, err := os.Lstat(b.inNode(kind, "rc1.main.0")); err == nil {
				return fmt.Errorf("the stopped pod's %s is still there", kind)
			}
			return nil
		})
	}
	records := []string{"rc1.main.0.json", "rc1.main.0.json" + durable.SpareSuffix}
	if got := b.names("pods"); !slices.Equal(got, records) {
		t.Errorf("records %v while an intent names the pod, want %v", got, records)
	}
	b.deleteIntent(0)
	b.awaitNoReality(0)
	b.eventually(func() error {
		if got := b.names("pods"); len(got) > 0 {
			return fmt.Errorf("records %v", got)
		}
		return nil
	})
	if got := b.text(kept); got != "1\n2\n" || syscall.Kill(pid, 0) == nil {
		t.Errorf("volume %q", got)
	}
	b.write(intent(0, second, pod.Running, 40))
	b.awaitReady(0, second, 40)
	b.awaitText(kept, "1\n2\n2\n")
}
