package rcctl

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
)

// running is a logDir whose pod runs, so its logs can grow.
type running struct{ logDir }

func (r running) LogFiles(id pod.Identity) (map[string]string, bool) {
	files, _ := r.logDir.LogFiles(id)
	return files, files != nil
}

// podWithLog makes the record of a pod, and a node that serves the pod's log until the test ends. It returns the path
// of the log.
func podWithLog(t *testing.T, s *conn, rcName, node string) (file string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "api") // a short name, because a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file = filepath.Join(dir, "web.log")
	log, err := obs.NewLogger(io.Discard, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	api, err := nodeapi.New(ctx, nodeapi.Config{Node: node, Addr: nodeapi.Unix, Dir: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = api.Run(ctx, running{logDir(dir)}) // the error is only that it was cancelled
	}()
	t.Cleanup(func() { cancel(); <-done })
	putRecord(t, s, s.Keys().RCs.Key(rcName+"id"),
		fmt.Sprintf(`{"id":"%sid","name":%q,"manifest":"d","replica_groups":[{"role":"main","count":1}]}`,
			rcName, rcName))
	putRecord(t, s, s.Keys().Nodes.Key(node), fmt.Sprintf(`{"name":%q,"api":%q}`, node, api.URL()))
	putRecord(t, s, s.Keys().Pods.Key(pod.Identity{RCID: rcName + "id", Role: "main"}.String()), fmt.Sprintf(
		`{"rc_id":"%sid","role":"main","index":0,"node":%q,"pod_id":%q,"digest":"0123456789abcdef000000000000000000000000000000000000000000000000","run_state":"running","revision":7,"labels":{"app":"shop"}}`,
		rcName, node, rcName))
	return file
}

func appendTo(t *testing.T, file, text string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// sharedText is a text that one goroutine writes and others read.
type sharedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *sharedText) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *sharedText) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// rcctl follows the logs of several pods at once until the operator interrupts it. Each line is printed whole, after
// the name of its pod.
func TestFollowSelected(t *testing.T) {
	s, prefix := testConn(t)
	web, api := podWithLog(t, s, "web", "n1"), podWithLog(t, s, "api", "n2")
	appendTo(t, web, "old\none\n")
	appendTo(t, api, "two\nunfin")
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs sharedText
	ended := make(chan int)
	go func() {
		ended <- Main(ctx,
			[]string{
				"rcctl", "--consul-addr", consultest.Shared(t).Addr, "--prefix", prefix, "logs", "-l", "app=shop",
				"-f", "--tail", "1",
			}, nil, &out, &errs)
	}()
	await := func(text string) {
		t.Helper()
		consultest.Eventually(t, time.Minute, func() error {
			if !strings.Contains(out.String(), text) {
				return fmt.Errorf("no %q in %q; %s", text, out.String(), errs.String())
			}
			return nil
		})
	}
	await("web-main-0 | one\n")
	appendTo(t, api, "ished\n")
	await("api-main-0 | unfinished\n")
	appendTo(t, web, "more\n")
	await("web-main-0 | more\n")
	cancel()
	if code := <-ended; code != exitDone || strings.Contains(errs.String(), "-main-0") ||
		strings.Contains(out.String(), "old") {
		t.Errorf("exit code %d, %q, %s", code, out.String(), errs.String())
	}
}

func TestLinesOfLogs(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	w := logLines{out: &out}
	long := strings.Repeat("x", nodeapi.MaxLine)
	if err := w.copy("a", strings.NewReader("one\n\n"+long+"y\nend")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("a | one\na | \na | "+long+"\na | y\na | end\n", out.String()); diff != "" {
		t.Error(diff)
	}
}
