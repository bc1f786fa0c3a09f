package rcctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// logDir is a node whose only pod, main.0, has its logs in a directory.
type logDir string

func (l logDir) LogFiles(id pod.Identity) (map[string]string, bool) {
	if id.Role != "main" || id.Index != 0 {
		return nil, false
	}
	files := map[string]string{}
	found, _ := filepath.Glob(filepath.Join(string(l), "*.log")) // the pattern is fine
	for _, file := range found {
		files[strings.TrimSuffix(filepath.Base(file), ".log")] = file
	}
	return files, false
}

func (l logDir) Command(id pod.Identity, process string, argv []string) (runtime.Command, error) {
	if id.Role != "main" || id.Index != 0 || process == "other" {
		return nil, errors.New("it has no process that runs on this node")
	}
	argv = slices.Clone(argv)
	argv[0] = filepath.Join("/bin", argv[0])
	return func(ctx context.Context, streams runtime.Streams) (runtime.Exit, error) {
		return oneshot.Run(ctx,
			oneshot.Command{Argv: argv, Env: []string{"PATH=/bin:/usr/bin"}, Dir: string(l), Streams: streams})
	}, nil
}

// Scale has capacity for three replicas, and knows the service agent.
func (l logDir) Scale(_ context.Context, r scale.Request) (scale.Response, error) {
	answer := scale.Response{Service: r.Service}
	switch {
	case r.Replicas > 3:
		return answer, fmt.Errorf("%w: no room", scale.ErrConflict)
	case r.Service != "agent" && r.Spec == nil:
		return answer, scale.ErrUnknownService
	case r.Epoch != nil:
		return answer, scale.ErrUnavailable
	case r.Spec != nil && r.Spec.Signature == "bad":
		return answer, scale.ErrInvalid
	}
	answer.Success, answer.Replicas = true, r.Replicas
	return answer, nil
}

// serveNode implements the command nodeapi of the scripts.
func serveNode(ts *testscript.TestScript, _ bool, args []string) {
	log, err := obs.NewLogger(io.Discard, "info", "text")
	ts.Check(err)
	dir, err := os.MkdirTemp("", "api") // a short name, because a socket's path must be short
	ts.Check(err)
	ts.Defer(func() { os.RemoveAll(dir) })
	cfg := nodeapi.Config{Node: args[0], Addr: nodeapi.Unix, Dir: dir, Log: log}
	if len(args) > 2 {
		cfg.Addr, cfg.TokenFile = args[2], ts.MkAbs(args[3])
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := nodeapi.New(ctx, cfg)
	ts.Check(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx, logDir(ts.MkAbs(args[1]))) // the error is only that it was cancelled
	}()
	ts.Defer(func() { cancel(); <-done })
	ts.Setenv("API", s.URL())
}

func TestExitOf(t *testing.T) {
	t.Parallel()
	target, err := nodeapi.ParseTarget("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	for ended, want := range map[nodeapi.Ended]struct {
		code int
		text string
	}{
		{}:                                {0, ""},
		{Code: 7}:                         {7, ""},
		{Code: -1, Signal: "SIGTERM"}:     {143, "rcctl: the command was ended by SIGTERM\n"},
		{Code: -1, Error: "exec: failed"}: {exitError, "rcctl: node n1: exec: failed\n"},
		{Code: 126, Error: "not started"}: {126, "rcctl: node n1: not started\n"},
		{Code: 127, Error: "no program"}:  {127, "rcctl: node n1: no program\n"},
		{Code: 0, Error: "odd"}:           {exitError, "rcctl: node n1: odd\n"},
	} {
		var errs bytes.Buffer
		tl := &stdio{err: &errs}
		if code := tl.report(exitOf(nodeapi.NewClient("n1", target, "", nil), ended)); code != want.code ||
			errs.String() != want.text {
			t.Errorf("%+v: exit code %d, %q; want %+v", ended, code, errs.String(), want)
		}
	}
}
