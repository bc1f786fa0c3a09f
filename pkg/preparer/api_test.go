package preparer_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

func TestLogsAndCommandsOfAPod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	m := b.pod("echo hello; exec sleep 1000", "1")
	m.Launchables = append(m.Launchables, manifest.Launchable{
		Name: "side", Artifact: b.artifacts.add(t, "exec sleep 1001"), Env: map[string]string{"WHO": "side"},
	})
	if files, more := a.LogFiles(identity(0)); len(files) > 0 || more {
		t.Errorf("a pod that the node does not have: %v, %t", files, more)
	}
	if _, err := a.Command(identity(0), "", []string{"true"}); err == nil ||
		!strings.Contains(err.Error(), "has no process that runs") {
		t.Errorf("a pod that the node does not have: %v", err)
	}
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	files, more := a.LogFiles(identity(0))
	if text, err := os.ReadFile(files["main"]); len(files) != 2 || !more || string(text) != "hello\n" {
		t.Errorf("logs %v, more %t, main: %q, %v", files, more, text, err)
	}

	run := func(process string, argv ...string) (string, error) {
		command, err := a.Command(identity(0), process, argv)
		if err != nil {
			return "", err
		}
		out, outEnd, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		exit, err := command(t.Context(), runtime.Streams{Output: outEnd})
		outEnd.Close()
		text, _ := io.ReadAll(out)
		if err == nil && !exit.OK() {
			err = fmt.Errorf("it %s: %s", exit, text)
		}
		return string(text), err
	}
	home := b.inNode("homes", "rc1.main.0")
	if text, err := run("side", "sh", "-c", "echo $WHO $POD_ID $RC_ID; pwd"); err != nil ||
		text != "side web rc1\n"+home+"\n" {
		t.Errorf("in side: %q, %v", text, err)
	}
	env, err := run("", "/usr/bin/env") // the environment is the same as for the first process
	if lines := strings.Split(env, "\n"); err != nil || !slices.Contains(lines, "VERSION=1") ||
		slices.Contains(lines, "WHO=side") {
		t.Errorf("in main: %q, %v", env, err)
	}
	script := filepath.Join(home, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho $0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if text, err := run("", "./script"); err != nil || text != script+"\n" {
		t.Errorf("a relative path: %q, %v", text, err)
	}
	for want, argv := range map[string][]string{
		"no-such-program is not in the process's PATH": {"no-such-program"},
		"exec /no/such/program: no such file":          {"/no/such/program"},
		"no/such/program: no such file":                {"no/such/program"},
	} {
		if _, err := run("", argv...); !errors.Is(err, runtime.ErrNoProgram) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", argv, err, want)
		}
	}
	plain := filepath.Join(b.inNode("homes", "rc1.main.0"), "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"./plain", plain} {
		if _, err := run("", name); !errors.Is(err, runtime.ErrNotStarted) || errors.Is(err, runtime.ErrNoProgram) {
			t.Errorf("%s, which is not executable: %v", name, err)
		}
	}
	if _, err := run("other", "true"); err == nil ||
		!strings.Contains(err.Error(), `process: "other" is not valid; allowed: main, side`) {
		t.Errorf("another process: %v", err)
	}

	b.write(intent(0, digest, pod.Stopped, 20))
	b.awaitState(0, pod.StateStopped, 20, "")
	b.eventually(func() error {
		if files, more := a.LogFiles(identity(0)); len(files) != 2 || more {
			return fmt.Errorf("logs of a stopped pod: %v, more: %t", files, more)
		}
		return nil
	})
	if _, err := run("", "true"); err == nil {
		t.Error("a command ran in a stopped pod")
	}
}
