package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

// pack makes an artifact of the sample program and of scripts in bin.
func (e *env) pack(scripts map[string]string) cluster.Artifact {
	e.t.Helper()
	program, err := os.ReadFile(filepath.Join(e.root, "bin", "hello"))
	if err != nil {
		e.t.Fatalf("run `make build` first: %v", err)
	}
	files := map[string][]byte{"launch": program}
	for name, script := range scripts {
		files[name] = []byte("#!/bin/sh\n" + script + "\n")
	}
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.NoCompression) // with the race detector, compressing takes many seconds
	if err != nil {
		e.t.Fatal(err)
	}
	archive := tar.NewWriter(zip)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err = errors.Join(err, archive.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: "bin/" + name,
			Mode: 0o755, Size: int64(len(files[name])),
		}))
		_, writeErr := archive.Write(files[name])
		err = errors.Join(err, writeErr)
	}
	if err = errors.Join(err, archive.Close(), zip.Close()); err != nil {
		e.t.Fatal(err)
	}
	sum := sha256.Sum256(out.Bytes())
	digest := hex.EncodeToString(sum[:])
	path := filepath.Join(e.dir, digest+".tar.gz")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		e.t.Fatal(err)
	}
	return cluster.Artifact{URL: "file://" + path, SHA256: digest}
}

// traced returns a document of one replica, whose hooks each write a line into the volume "trace". more has further
// fields of the pod, indented by two.
func (e *env) traced(version string, scripts map[string]string, more string) string {
	e.t.Helper()
	note := `echo "$HELLO_VERSION:$HOOK" >> "$VOLUME_TRACE/log"`
	all := map[string]string{"note": note, "enable": note, "disable": note}
	maps.Copy(all, scripts)
	h := e.hello(1, map[string]string{"HELLO_VERSION": version})
	h.Artifact = e.pack(all)
	return cluster.HelloSpec(h) + "  volumes: [{name: trace}]\n" + more
}

func (e *env) onNode(node string, parts ...string) string {
	return filepath.Join(append([]string{e.dir, node}, parts...)...)
}

func (e *env) traceIs(want ...string) {
	e.t.Helper()
	path := e.onNode("n1", "volumes", e.rcIDs["hello"]+".main.0", "trace", "log")
	e.within(limit, func() error {
		data, err := os.ReadFile(path)
		if got := strings.Fields(string(data)); err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("trace %q, want %q", got, want)
		}
		return err
	})
	if err := os.Remove(path); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) podsSay(texts ...string) {
	e.t.Helper()
	e.within(limit, func() error {
		out, err := e.tryRcctl("", "pods", "-o", "json")
		for _, text := range texts {
			if err == nil && !strings.Contains(out, text) {
				err = fmt.Errorf("no %q in %s", text, out)
			}
		}
		return err
	})
}

func (e *env) applyText(text string, args ...string) {
	e.t.Helper()
	e.rcctl(text, append([]string{"apply", "-f", "-"}, args...)...)
}

const allHooks = `  hooks:
    before_install: {path: bin/note}
    after_install: {path: bin/note}
    before_launch: {path: bin/note}
    after_launch: {path: bin/note}
    before_stop: {path: bin/note}
    after_stop: {path: bin/note}
`

// hooks: hooks of the node and of the pod run in order around each step. If a required hook fails, the step is not
// done. No process of a hook outlives the hook or the preparer.
func hooks(e *env) {
	e.startConsul("")
	dir := filepath.Join(e.dir, "hooks")
	nodeHook := func(point, name, script string) {
		if err := errors.Join(
			os.MkdirAll(filepath.Join(dir, point), 0o755),
			os.WriteFile(filepath.Join(dir, point, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755),
		); err != nil {
			e.t.Fatal(err)
		}
	}
	nodeHook("before_launch.d", "10-node", `echo "node:$HOOK" >> "$VOLUME_TRACE/log"`)
	n1 := e.preparer(1, "--hooks-dir", dir)
	e.farm("f1", "")
	e.applyText(e.traced("1", nil, allHooks), "--wait", "--timeout", limit.String())
	e.remember("hello")
	e.traceIs("1:before_install", "1:after_install", "node:before_launch",
		"1:before_launch", "1:after_launch", "1:enable")

	// The old version continues to run.
	processes := e.processes()
	refusing := e.traced("2", map[string]string{"refuse": "echo not here; exit 4"},
		"  hooks:\n    after_install: {path: bin/refuse, required: true}\n")
	e.applyText(refusing)
	e.podsSay("hook after_install: web:bin/refuse ended with exit status 4", "stays as it is")
	e.sameProcesses(processes, "while a hook refuses its next version")
	if log, err := os.ReadFile(e.onNode("n1", "logs", e.rcIDs["hello"]+".main.0", "_hooks.log")); err != nil ||
		!strings.Contains(string(log), "not here") {
		e.t.Errorf("log of hooks: %s (%v)", log, err)
	}

	hanging := e.traced("3", map[string]string{"hang": `setsid sleep 1000 & echo $! >> "$VOLUME_TRACE/pids"; wait`},
		"  hooks:\n    before_launch: {path: bin/hang, required: true, timeout: 10m}\n")
	e.applyText(hanging)
	pids := func(n int) int {
		var last int
		e.within(limit, func() error {
			data, err := os.ReadFile(e.onNode("n1", "volumes", e.rcIDs["hello"]+".main.0", "trace", "pids"))
			found := strings.Fields(string(data))
			if err == nil && len(found) != n {
				err = fmt.Errorf("the hook ran %d times, want %d", len(found), n)
			}
			if err == nil {
				last, err = strconv.Atoi(found[n-1])
			}
			return err
		})
		return last
	}
	first := pids(1)
	n1.kill()
	e.gone(first)
	n1.startAgain()
	second := pids(2)

	e.rcctl("", "rc", "delete", "hello", "--force", "--wait", "--timeout", limit.String())
	e.gone(second)
	e.sameProcessCount(0)
}

func (e *env) gone(pid int) {
	e.t.Helper()
	e.within(limit, func() error {
		if syscall.Kill(pid, 0) == nil && !isZombie(pid) {
			return fmt.Errorf("process %d still runs", pid)
		}
		return nil
	})
}

// upgradeInPlace: a pod gets a new version on its node. If the new version cannot be installed, the old version
// continues to run. If the new version cannot run, the old version stays installed. Both cases are reported, and the
// operator can return to the old version or apply a newer one.
func upgradeInPlace(e *env) {
	e.startConsul("")
	e.preparer(1)
	e.farm("f1", "")
	secret := filepath.Join(e.dir, "secret")
	if err := os.WriteFile(secret, []byte("sesame\n"), 0o600); err != nil {
		e.t.Fatal(err)
	}
	config := fmt.Sprintf("  config: {open: {$file: %q}}\n", secret)
	good := e.traced("1", nil, config)
	e.applyText(good, "--wait", "--timeout", limit.String())
	e.remember("hello")
	e.traceIs("1:enable")
	pod := e.rcIDs["hello"] + ".main.0"
	current := e.onNode("n1", "versions", pod, "current")
	if data, err := os.ReadFile(filepath.Join(current, "web.json")); err != nil ||
		!strings.Contains(string(data), `"open": "sesame"`) {
		e.t.Errorf("configuration %s (%v)", data, err)
	}
	processes := e.processes()
	was, err := os.Readlink(current)
	if err != nil {
		e.t.Fatal(err)
	}

	if err := os.Remove(secret); err != nil {
		e.t.Fatal(err)
	}
	e.applyText(e.traced("2", nil, config))
	e.podsSay("config.open: open "+secret, "stays as it is", "still runs manifest")
	e.sameProcesses(processes, "while the next version cannot be installed")

	failing := e.hello(1, map[string]string{"HELLO_VERSION": "3", "HELLO_FAIL": "1"})
	e.applyText(cluster.HelloSpec(failing))
	e.podsSay("ended with exit status 3", "version "+was[strings.Index(was, "-")+1:]+" stays installed")
	now, err := os.Readlink(current)
	if err != nil || now == was {
		e.t.Errorf("current is %s (%v)", now, err)
	}
	if _, err := os.Stat(e.onNode("n1", "versions", pod, was)); err != nil {
		e.t.Errorf("the version before: %v", err)
	}

	if err := os.WriteFile(secret, []byte("sesame2"), 0o600); err != nil {
		e.t.Fatal(err)
	}
	e.applyText(good, "--wait", "--timeout", limit.String())
	e.traceIs("1:disable", "1:enable")
	if data, err := os.ReadFile(filepath.Join(current, "web.json")); err != nil ||
		!strings.Contains(string(data), `"open": "sesame2"`) {
		e.t.Errorf("configuration %s (%v)", data, err)
	}
	for n := range 4 {
		e.applyText(e.traced(fmt.Sprint(10+n), nil, config), "--wait", "--timeout", limit.String())
	}
	e.within(limit, func() error {
		entries, err := os.ReadDir(e.onNode("n1", "versions", pod))
		if err == nil && len(entries) != 4 {
			err = fmt.Errorf("%d entries in the directory of versions, want three versions and current", len(entries))
		}
		return err
	})
	e.sameProcessCount(1)
}
