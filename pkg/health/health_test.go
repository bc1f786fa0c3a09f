package health

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rcfarm/rcfarm/pkg/consultest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func script(t *testing.T, text string) Script {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "check")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return Script{Command: []string{path, "argument"}, Env: []string{"NAME=pod"}, Dir: dir, Interval: time.Millisecond, Timeout: 30 * time.Second}
}

func TestCheck(t *testing.T) {
	for text, want := range map[string]struct{ output, err string }{
		`echo "$1 of $NAME in $(basename "$PWD")"`: {"argument of pod in ", ""},
		`echo sick >&2; exit 3`:                    {"sick", "exit status 3"},
		`kill -9 $$`:                               {"", "signal: killed"},
		`exec ./missing`:                           {"", "exit status 127"},
		`head -c 100000 /dev/zero | tr '\0' x`:     {strings.Repeat("x", MaxOutput), ""},
	} {
		output, err := Check(t.Context(), script(t, text))
		if !strings.HasPrefix(output, want.output) || len(output) > MaxOutput {
			t.Errorf("%s: output %.100q, want %.100q", text, output, want.output)
		}
		if got := fmt.Sprint(err); want.err == "" && err != nil || !strings.Contains(got, want.err) {
			t.Errorf("%s: %v, want %q", text, err, want.err)
		}
	}
	s := script(t, "")
	s.Command[0] += "-missing"
	if _, err := Check(t.Context(), s); err == nil {
		t.Error("a missing script passes")
	}
	s = script(t, "")
	s.Prepare = func(*exec.Cmd) error { return os.ErrPermission }
	if _, err := Check(t.Context(), s); err == nil {
		t.Error("a script that cannot be prepared passes")
	}
}

// A script that takes too long goes with everything that it started.
func TestTimeout(t *testing.T) {
	s := script(t, "sleep 1000 & echo $! > child; wait")
	s.Timeout = 500 * time.Millisecond
	_, err := Check(t.Context(), s)
	if err == nil || !strings.Contains(err.Error(), "took longer than 500ms") {
		t.Errorf("%v", err)
	}
	data, err := os.ReadFile(filepath.Join(s.Dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, 30*time.Second, func() error {
		if alive(pid) {
			return errors.New("its child runs on")
		}
		return nil
	})
}

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && syscall.Kill(pid, 0) == nil && !strings.Contains(string(stat), ") Z ")
}

func TestWatch(t *testing.T) {
	s := script(t, "test -e well")
	ctx, cancel := context.WithCancel(t.Context())
	verdicts := make(chan Verdict)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Watch(ctx, s, true, func(v Verdict) {
			select {
			case verdicts <- v:
			case <-ctx.Done():
			}
		})
	}()
	if v := <-verdicts; v.Passing || !strings.Contains(v.Output, "exit status 1") {
		t.Errorf("first verdict %+v", v)
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "well"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for v := range verdicts {
		if v.Passing {
			break
		}
	}
	cancel()
	<-ended
}

func TestThresholds(t *testing.T) {
	for _, tt := range []struct {
		success, failure int
		answers, want    string // p and f, from a failing start
	}{
		{0, 0, "fpfp", "fpfp"},
		{1, 1, "fpfp", "fpfp"},
		{2, 1, "pfppf", "fffpf"},
		{1, 3, "pffpfffp", "pppppp" + "fp"},
		{2, 2, "ppfpffpp", "fppppffp"},
	} {
		c := counter{success: tt.success, failure: tt.failure}
		var got strings.Builder
		for _, answer := range tt.answers {
			if c.add(answer == 'p') {
				got.WriteByte('p')
			} else {
				got.WriteByte('f')
			}
		}
		if got.String() != tt.want {
			t.Errorf("thresholds %d and %d: %s became %s, want %s", tt.success, tt.failure, tt.answers, got.String(), tt.want)
		}
	}
}
