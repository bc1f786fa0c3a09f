package runc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/runc"
)

// fake returns a Runc that calls a shell script in place of runc.
func fake(t *testing.T, timeout time.Duration, script string) *runc.Runc {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "runc")
	must(t, os.WriteFile(file, []byte("#!/bin/sh\n"+script), 0o755))
	r, err := runc.New(runc.Config{Program: file, State: filepath.Join(dir, "state"), Timeout: timeout})
	must(t, err)
	return r
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]runc.Version{
		"runc version 1.1.5+ds1\ncommit: x\nspec: 1.0.2-dev": {Major: 1, Minor: 1, Patch: 5},
		"runc version 1.1.12":                                {Major: 1, Minor: 1, Patch: 12},
		"runc version 1.3.0-rc.1\n":                          {Major: 1, Minor: 3},
		"runc version 1.3.3~deb13\nx":                        {Major: 1, Minor: 3, Patch: 3},
		"runc version 2.0.0":                                 {Major: 2},
	} {
		got, err := fake(t, 0, fmt.Sprintf("[ \"$*\" = --version ] && printf '%s'", text)).Version(t.Context())
		if got != want || err != nil {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"runc version 1.1.4\n": "runc --version: version 1.1.4 is not valid; allowed: 1.1.5 or newer",
		"runc version 1.0.99":  "version 1.0.99 is not valid",
		"runc version 0.9.9":   "version 0.9.9 is not valid",
		"runc version 1.1":     `answer "runc version 1.1" is not valid; allowed: a first line such as "runc`,
		"crun version 1.8.1":   "is not valid",
		"":                     `answer "" is not valid`,
	} {
		_, err := fake(t, 0, fmt.Sprintf("printf '%s'", text)).Version(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for _, old := range []string{"1.1.4", "1.0.99", "0.9.9"} {
		_, err := fake(t, 0, "echo runc version "+old).Version(t.Context())
		if !errors.Is(err, runc.ErrTooOld) {
			t.Errorf("%s: %v", old, err)
		}
	}
	_, err := fake(t, 0, "echo broken >&2; exit 3").Version(t.Context())
	if err == nil || err.Error() != "runc --version: exit status 3: broken" {
		t.Errorf("a broken program: %v", err)
	}
}

// An error has what runc said: in its log, or else on its standard error.
func TestErrors(t *testing.T) {
	t.Parallel()
	const log = `while [ "$1" != --log ]; do shift; done; log=$2; say() { echo "$1" >>$log; }; `
	long := strings.Repeat("x", 10_000)
	for script, want := range map[string]string{
		log + `say '{"level":"warning","msg":"no"}'; say '{"level":"error","msg":"why"}'; exit 1`:   ": why",
		log + `say '{"level":"error","msg":"first"}'; say '{"level":"fatal","msg":"last"}'; exit 1`: ": last",
		log + `say garbage; echo text >&2; exit 1`:                                                  ": text",
		`exit 7`:                        "runc start x: exit status 7",
		`kill -9 $$`:                    "signal: killed",
		"echo " + long + " >&2; exit 1": "xxx",
		log + `say '{"level":"error","msg":"` + long + `"}'; exit 1`: "...",
	} {
		err := fake(t, 0, script).Start(t.Context(), "x")
		if err == nil || !strings.HasPrefix(err.Error(), "runc start x: ") || !strings.Contains(err.Error(), want) ||
			len(err.Error()) > 2200 {
			t.Errorf("%.80s: %v, want %s", script, err, want)
		}
	}
}

// What runc prints is bounded and checked.
func TestStateAnswers(t *testing.T) {
	t.Parallel()
	const endless = `while :; do echo x; done`
	for script, want := range map[string]string{
		`echo '{"id":"x","status":"running","pid":7,"bundle":"/b"}'`: "",
		`echo '{"id":"y","status":"running","pid":7}'`:               "is not valid; allowed: JSON with this id",
		`echo '{"id":"x","status":"running","pid":-7}'`:              "is not valid",
		`echo garbage`:             `answer "garbage\n" is not valid`,
		`head -c 300000 /dev/zero`: "its output has more than 262144 bytes",
		endless:                    "it took too long",
		`echo no; echo "container does not exist" >&2; exit 1`: "runc knows no container of this id",
	} {
		timeout := runc.DefaultTimeout
		if script == endless {
			timeout = time.Second
		}
		got, err := fake(t, timeout, script).State(t.Context(), "x")
		switch {
		case want == "":
			if err != nil || got != (runc.State{ID: "x", Status: runc.Running, PID: 7, Bundle: "/b"}) {
				t.Errorf("%s: %+v, %v", script, got, err)
			}
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v, want %s", script, err, want)
		}
	}
}

// A runc that hangs is killed with the processes that it started. So is one whose caller gives up.
func TestHangs(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "pid")
	hangs := fmt.Sprintf("sleep 1000 & echo $! >%s; wait", mark)
	if err := fake(t, 5*time.Second, hangs).Start(t.Context(), "x"); !errors.Is(err, runc.ErrTimeout) {
		t.Errorf("a runc that hangs: %v", err)
	}
	gone(t, mark)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the pod is stopped")
	ended := make(chan error, 1)
	go func() { ended <- fake(t, 0, hangs).Start(ctx, "x") }()
	eventually(t, "the start", func() bool {
		data, _ := os.ReadFile(mark)
		return strings.HasSuffix(string(data), "\n")
	})
	cancel(why)
	if err := <-ended; !errors.Is(err, why) {
		t.Errorf("a caller that gives up: %v", err)
	}
	gone(t, mark)
}

// gone waits until the process of a file has ended, and removes the file.
func gone(t *testing.T, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	must(t, os.Remove(file))
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	must(t, err)
	eventually(t, "the end of "+string(data), func() bool {
		ended, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil) // it is a child of this process when its parent has ended
		return ended == pid
	})
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	if _, err := runc.New(runc.Config{State: "state"}); err == nil ||
		err.Error() != `runc: state directory "state" is not valid; allowed: an absolute path` {
		t.Errorf("a relative directory: %v", err)
	}
	if _, err := runc.New(runc.Config{Program: "no-such-runc", State: t.TempDir()}); err == nil ||
		!strings.HasPrefix(err.Error(), "find runc: ") {
		t.Errorf("no program: %v", err)
	}
	r := fake(t, 0, "exit 1")
	for _, id := range []string{"", "-x", ".", "..", "a/b", "a b", strings.Repeat("x", 201)} {
		if err := r.Start(t.Context(), id); err == nil ||
			!strings.Contains(err.Error(), "is not valid; allowed: 1 to 200") {
			t.Errorf("id %q: %v", id, err)
		}
	}
	for _, cgroup := range []string{"", "/", "x", "/x/..", "/x/"} {
		if err := fake(t, 0, "exit 0").Delete(t.Context(), "x", cgroup); err == nil ||
			!strings.Contains(err.Error(), "is not valid; allowed: an absolute path that is not the root") {
			t.Errorf("cgroup %q: %v", cgroup, err)
		}
	}
}

// Only root reads the configuration, because its variables may be secrets.
func TestWriteBundle(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "bundle")
	must(t, os.MkdirAll(dir, 0o700)) // so does the umask 077
	for range 2 {
		must(t, runc.WriteBundle(dir, &specs.Spec{Version: "1.0.2"}))
	}
	info, err := os.Stat(filepath.Join(dir, runc.ConfigFile))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %s", info.Mode())
	}
	info, err = os.Stat(dir)
	must(t, err)
	if info.Mode().Perm() != 0o711 {
		t.Errorf("users of a user namespace cannot pass the directory: %s", info.Mode())
	}
	if err := runc.WriteBundle("/proc/none", &specs.Spec{}); err == nil ||
		!strings.HasPrefix(err.Error(), "write bundle /proc/none: ") {
		t.Errorf("no directory: %v", err)
	}
}

// The name of a program is the image's, and runc's errors have it.
func TestNamedAsAnError(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		b := newBox(t, k, func(b *box) { b.in.Ask.Command = "/container does not exist" })
		err := b.create(t)
		if err == nil {
			err = b.Start(t.Context(), b.id)
		}
		if err == nil || errors.Is(err, runc.ErrNotFound) || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("%s: %v", k, err)
		}
	}
}

// A container's processes end although runc fails to delete it.
func TestDeleteWithoutRunc(t *testing.T) {
	t.Parallel()
	b := newBox(t, numbered, nil, "wait")
	b.start(t)
	broken := fake(t, 0, "echo broken >&2; exit 1")
	if err := broken.Delete(t.Context(), b.id, b.in.Node.Cgroup); err == nil ||
		!strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(b.cgroup); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the cgroup is left: %v", err)
	}
}
