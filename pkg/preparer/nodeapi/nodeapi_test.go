package nodeapi

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == oneshot.Arg {
		oneshot.Exec()
	}
	os.Exit(consultest.NoLeaks(m.Run()))
}

var webPod = pod.Identity{RCID: "rc1", Role: "main", Index: 2}

type pods struct {
	dir string

	mu    sync.Mutex
	files map[string]string
	ended bool

	asked  []scale.Request
	scaled error // the result of the next request
}

func (p *pods) LogFiles(id pod.Identity) (map[string]string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id != webPod {
		return nil, false
	}
	return maps.Clone(p.files), !p.ended
}

func (p *pods) Command(id pod.Identity, process string, argv []string) (runtime.Command, error) {
	if id != webPod || process != "" && process != "web" {
		return nil, fmt.Errorf("pod %s has no process that runs on this node", id)
	}
	return func(ctx context.Context, streams runtime.Streams) (runtime.Exit, error) {
		return oneshot.Run(ctx,
			oneshot.Command{Argv: argv, Env: []string{"PATH=/usr/bin:/bin", "WHO=web"}, Dir: p.dir, Streams: streams})
	}, nil
}

func (p *pods) Scale(_ context.Context, r scale.Request) (scale.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, r)
	return scale.Response{Success: true, Service: r.Service, Replicas: r.Replicas}, p.scaled
}

type node struct {
	*Server
	pods   *pods
	client *Client
	stop   func()
}

func newNode(t *testing.T, change func(*Config)) *node {
	t.Helper()
	log, err := obs.NewLogger(io.Discard, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "api") // a short name, because a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg := Config{Node: "n1", Addr: Unix, Dir: dir, Log: log}
	if change != nil {
		change(&cfg)
	}
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	target, err := ParseTarget(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		Server: s, pods: &pods{dir: t.TempDir(), files: map[string]string{}},
		client: NewClient("n1", target, "", nil),
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx, n.pods); !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
	}()
	n.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(func() { n.client.Close(); n.stop() })
	return n
}

func (n *node) sh(ctx context.Context, stdin io.Reader, script string) (ended Ended, stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	ended, err = n.client.Exec(ctx, webPod, "", []string{"/bin/sh", "-c", script}, stdin, &out, &errs)
	return ended, out.String(), errs.String(), err
}

func TestExec(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	ended, out, errs, err := n.sh(t.Context(), nil, "echo $WHO; pwd; echo trouble >&2; cat; exit 7")
	if err != nil || ended != (Ended{Code: 7}) || out != "web\n"+n.pods.dir+"\n" || errs != "trouble\n" {
		t.Errorf("%+v, %q, %q, %v", ended, out, errs, err)
	}
	if ended, _, _, err := n.sh(t.Context(), nil, "kill -TERM $$"); err != nil ||
		ended != (Ended{Code: -1, Signal: "SIGTERM"}) {
		t.Errorf("%+v, %v", ended, err)
	}
	big := strings.Repeat("0123456789abcdef", 1<<16)
	ended, out, _, err = n.sh(t.Context(), strings.NewReader(big), "cat")
	if err != nil || ended != (Ended{}) || out != big {
		t.Errorf("%+v, %d bytes, %v; want %d bytes", ended, len(out), err, len(big))
	}
	if ended, _, _, err = n.sh(t.Context(), strings.NewReader(big), "exit 3"); err != nil || ended != (Ended{Code: 3}) {
		t.Errorf("%+v, %v", ended, err)
	}
	ended, err = n.client.Exec(t.Context(), webPod, "", []string{"/no/such/program"}, nil, io.Discard, io.Discard)
	if err != nil || !strings.Contains(ended.Error, "/no/such/program: no such file") || ended.Code != NoProgram {
		t.Errorf("%+v, %v", ended, err)
	}
	ended, err = n.client.Exec(t.Context(), webPod, "", []string{"/etc/passwd"}, nil, io.Discard, io.Discard)
	if err != nil || !strings.Contains(ended.Error, "permission denied") || ended.Code != NotStarted {
		t.Errorf("%+v, %v", ended, err)
	}
	ended, err = n.client.Exec(t.Context(), webPod, "", []string{"true"}, nil, io.Discard, io.Discard)
	if err != nil || ended.Error == "" || ended.Code != -1 {
		t.Errorf("refused by the runtime: %+v, %v", ended, err)
	}
	// The guard gets commands as JSON, which would silently replace such bytes.
	_, err = n.client.Exec(t.Context(), webPod, "", []string{"/bin/echo", "caf\xe9"}, nil, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), `arg: "caf\xe9" is not valid; allowed: UTF-8`) {
		t.Errorf("an argument that is not UTF-8: %v", err)
	}
	if _, err = n.client.Exec(t.Context(), pod.Identity{RCID: "rc1", Role: "main"}, "", []string{"/bin/true"}, nil,
		io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "has no process") {
		t.Errorf("another pod: %v", err)
	}
	if _, err = n.client.Exec(t.Context(), webPod, "", nil, nil, io.Discard, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "arg: missing") {
		t.Errorf("no command: %v", err)
	}
}

// A program can answer before its input has ended.
func TestExecInteractive(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan Ended, 1)
	go func() {
		ended, err := n.client.Exec(t.Context(), webPod, "web",
			[]string{"/bin/sh", "-c", "while read line; do echo got $line; done"}, inR, outW, io.Discard)
		if err != nil {
			t.Error(err)
		}
		done <- ended
	}()
	for i := range 3 {
		fmt.Fprintf(inW, "%d\n", i)
		want := fmt.Sprintf("got %d\n", i)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(outR, got); err != nil || string(got) != want {
			t.Fatalf("%q, %v", got, err)
		}
	}
	inW.Close()
	if ended := <-done; ended != (Ended{}) {
		t.Errorf("%+v", ended)
	}
}

// family has a child in another session. Both write their pids to files.
const family = "setsid sh -c 'echo $$ >child; exec sleep 1000' & while ! [ -s child ]; do :; done; echo $$ " +
	">self.new; mv self.new self; "

func (n *node) awaitFamily(t *testing.T) []int {
	t.Helper()
	var pids []int
	consultest.Eventually(t, patience, func() error {
		pids = nil
		for _, name := range []string{"self", "child"} {
			data, err := os.ReadFile(filepath.Join(n.pods.dir, name))
			if err != nil {
				return err
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
			if err != nil {
				return err
			}
			pids = append(pids, pid)
		}
		return nil
	})
	return pids
}

func mustEnd(t *testing.T, pids []int) {
	t.Helper()
	consultest.Eventually(t, patience, func() error {
		for _, pid := range pids {
			if syscall.Kill(pid, 0) == nil {
				return fmt.Errorf("process %d still runs", pid)
			}
		}
		return nil
	})
}

// If the client goes away, its whole command ends, in any state.
func TestExecEndsWithItsClient(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script string
		stdin  string // written, and then left open; empty: no stdin
	}{
		"waits":              {"wait", ""},
		"waits for input":    {"cat; echo >finished", "some"},
		"ignores input":      {"wait", "some"},
		"ignores much input": {"wait", strings.Repeat("x", 4<<20)},
		"writes all along":   {"exec yes", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			var stdin io.Reader
			if test.stdin != "" {
				r, w := io.Pipe()
				defer w.Close()
				stdin = io.MultiReader(strings.NewReader(test.stdin), r)
			}
			done := make(chan error, 1)
			go func() {
				_, err := n.client.Exec(ctx, webPod, "", []string{"/bin/sh", "-c", family + test.script}, stdin,
					io.Discard, io.Discard)
				done <- err
			}()
			pids := n.awaitFamily(t)
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			mustEnd(t, pids)
			if _, err := os.Stat(filepath.Join(n.pods.dir, "finished")); err == nil {
				t.Error("input that was cut off was taken for all of it")
			}
		})
	}
}

// When the preparer ends, its commands end, and clients get an error.
func TestServerEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	p := newProgram(t)
	n.pods.files["web"] = p.path
	p.write(t, "line\n")
	type result struct {
		ended Ended
		err   error
	}
	command := make(chan result, 1)
	go func() {
		ended, _, _, err := n.sh(t.Context(), nil, family+"wait")
		command <- result{ended, err}
	}()
	pids := n.awaitFamily(t)
	logs, err := n.client.Logs(t.Context(), webPod, LogOptions{Tail: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.LimitReader(logs, 5)); string(got) != "line\n" {
		t.Errorf("%q, %v", got, err)
	}
	n.stop()
	if rest, err := io.ReadAll(logs); err == nil {
		t.Errorf("the log ended with %q as if it were all", rest)
	}
	if r := <-command; r.err == nil && r.ended.Error == "" {
		t.Errorf("the command ended with %+v", r)
	}
	mustEnd(t, pids)
}

// A client that does not read delays only its own command.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *Config) { c.Streams = 2 })
	p := newProgram(t)
	p.write(t, strings.Repeat("x\n", 8<<20))
	n.pods.files["web"] = p.path
	first, err := n.client.Logs(t.Context(), webPod, LogOptions{Tail: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if ended, out, _, err := n.sh(t.Context(), nil, "echo ok"); err != nil || out != "ok\n" || ended.Code != 0 {
		t.Errorf("beside a slow client: %+v, %q, %v", ended, out, err)
	}
	var second io.ReadCloser
	consultest.Eventually(t, patience, func() error { // the slot becomes free shortly after the command has ended
		second, err = n.client.Logs(t.Context(), webPod, LogOptions{Tail: -1})
		return err
	})
	if _, err := n.client.Logs(t.Context(), webPod, LogOptions{Tail: 1}); err == nil ||
		!strings.Contains(err.Error(), "serves 2 requests already") {
		t.Errorf("beyond the limit: %v", err)
	}
	if _, err := n.client.Scale(t.Context(), scale.New("web", 0)); err != nil {
		t.Errorf("a service cannot be stopped while all read logs: %v", err)
	}
	second.Close()
	consultest.Eventually(t, patience, func() error {
		_, err := n.client.Logs(t.Context(), webPod, LogOptions{Tail: 1})
		return err
	})
}

func (n *node) logText(t *testing.T, o LogOptions) (string, error) {
	t.Helper()
	logs, err := n.client.Logs(t.Context(), webPod, o)
	if err != nil {
		return "", err
	}
	defer logs.Close()
	text, err := io.ReadAll(logs)
	if err != nil {
		t.Error(err)
	}
	return string(text), nil
}

func TestLogs(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	if _, err := n.logText(t, LogOptions{Tail: -1}); !errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), "no logs on this node") {
		t.Errorf("no logs: %v", err)
	}
	web, side, hooks := newProgram(t), newProgram(t), newProgram(t)
	n.pods.files = map[string]string{"web": web.path, "_hooks": hooks.path}
	web.write(t, "one\ntwo\nthree")
	hooks.write(t, "hook\n")
	for want, o := range map[string]LogOptions{
		"one\ntwo\nthree": {Tail: -1},
		"two\nthree":      {Tail: 2, Process: "web"},
		"hook\n":          {Tail: -1, Process: "_hooks"},
		"":                {Tail: 0},
	} {
		if got, err := n.logText(t, o); err != nil || got != want {
			t.Errorf("%+v: %q (%v), want %q", o, got, err, want)
		}
	}
	if _, err := n.logText(t, LogOptions{Tail: -1, Process: "other"}); !errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), `"other" is not valid; allowed: _hooks, web`) {
		t.Errorf("another process: %v", err)
	}
	if _, err := n.logText(t, LogOptions{Tail: -1, Previous: true}); err == nil ||
		!strings.Contains(err.Error(), errNoPrevious.Error()) {
		t.Errorf("no previous: %v", err)
	}
	n.pods.files["side"] = side.path
	side.write(t, "s1\n")
	side.start()
	side.write(t, "s2\n")
	if got, err := n.logText(t, LogOptions{Tail: 2}); err != nil ||
		got != "[side] s1\n[side] s2\n[web] two\n[web] three" {
		t.Errorf("of two processes: %q, %v", got, err)
	}
	if got, err := n.logText(t, LogOptions{Tail: -1, Previous: true}); err != nil || got != "[side] s1\n" {
		t.Errorf("before the last start: %q, %v", got, err)
	}
}

// A following client gets each complete line, also during a rotation, until no process can write to the log.
func TestFollow(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	a, b := newProgram(t), newProgram(t)
	n.pods.files = map[string]string{"a": a.path, "b": b.path}
	a.write(t, "old\nhal")
	logs, err := n.client.Logs(t.Context(), webPod, LogOptions{Tail: 1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	expect := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(logs, got); err != nil || string(got) != want {
			t.Fatalf("%q (%v), want %q", got, err, want)
		}
	}
	b.write(t, "b1\n")
	expect("[b] b1\n") // no text of a, because its last line is not complete
	a.write(t, "f\n")
	a.rotate(t)
	a.write(t, "new\n")
	expect("[a] half\n[a] new\n")
	a.write(t, "unfinished")
	n.pods.mu.Lock()
	n.pods.ended = true
	n.pods.mu.Unlock()
	if rest, err := io.ReadAll(logs); err != nil || string(rest) != "[a] unfinished" {
		t.Errorf("at the end: %q, %v", rest, err)
	}
}

const goodToken = "0123456789abcdef"

// newTokenNode has a network address, and goodToken until the test writes another.
func newTokenNode(t *testing.T, change func(*Config)) (n *node, write func(token string)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	write = func(token string) {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(goodToken)
	n = newNode(t, func(c *Config) {
		c.Addr, c.TokenFile = "127.0.0.1:0", file
		if change != nil {
			change(c)
		}
	})
	n.client.token = goodToken
	return n, write
}

// By default only the preparer's user and root can use the API's socket.
func TestSocket(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	path := n.client.Target().Socket()
	for at, want := range map[string]fs.FileMode{path: 0o600 | fs.ModeSocket, filepath.Dir(path): 0o700 | fs.ModeDir} {
		if info, err := os.Stat(at); err != nil || info.Mode() != want {
			t.Errorf("%s is %v, %v; want %v", at, info, err, want)
		}
	}
	if ended, out, _, err := n.sh(t.Context(), nil, "echo ok"); err != nil || out != "ok\n" || ended.Code != 0 {
		t.Errorf("%+v, %q, %v", ended, out, err)
	}
}

// Clients without the token, even with many connections, do not keep others from logs and commands.
func TestUnderSiege(t *testing.T) {
	t.Parallel()
	n, _ := newTokenNode(t, nil)
	p := newProgram(t)
	p.write(t, "one\n")
	n.pods.files["web"] = p.path
	logs, err := n.client.Logs(t.Context(), webPod, LogOptions{Tail: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	var first net.Conn
	for i := range 600 {
		c, err := net.Dial("tcp", n.client.Target().Host())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		head := "POST /v1/nodes/n1/pods/rc1/main/2/exec?arg=/bin/true HTTP/1.1\r\nHost: x\r\n" + askHeader +
			": 1\r\nContent-Length: 100000\r\n"
		if _, err := io.WriteString(c, []string{"", head, head + "\r\nnot all of it"}[i%3]); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = c
		}
	}
	if err := first.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first of 600 connections is still open: %v", err)
	}
	if ended, out, _, err := n.sh(t.Context(), nil, "echo ok"); err != nil || out != "ok\n" || ended.Code != 0 {
		t.Errorf("%+v, %q, %v", ended, out, err)
	}
	p.write(t, "two\n")
	got := make([]byte, len("one\ntwo\n"))
	if _, err := io.ReadFull(logs, got); err != nil || string(got) != "one\ntwo\n" {
		t.Errorf("the log that was followed all along: %q, %v", got, err)
	}
}

// A refusal closes its connection, even after an incomplete request.
func TestARefusalClosesItsConnection(t *testing.T) {
	t.Parallel()
	n, _ := newTokenNode(t, nil)
	c, err := net.Dial("tcp", n.client.Target().Host())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = fmt.Fprintf(c, "POST /v1/nodes/n1/pods/rc1/main/2/exec?arg=/bin/true HTTP/1.1\r\nHost: x\r\n%s: "+
		"1\r\nContent-Length: 100000\r\n\r\nx", askHeader)
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(patience))
	}
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 401 ") {
		t.Errorf("%q, %v", text, err)
	}
}

// If a request can never be served, the answer is not "try again later", even if all slots are taken.
func TestABadIndexNeedsNoSlot(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(c *Config) { c.Streams = 1 })
	n.slots <- struct{}{} // takes the only slot
	bad := webPod
	for index, want := range map[int]string{-1: `index: "-1" is not valid`, webPod.Index: "serves 1 requests already"} {
		bad.Index = index
		if _, err := n.client.Logs(t.Context(), bad, LogOptions{Tail: -1}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("index %d: %v; want %q", index, err, want)
		}
	}
	<-n.slots
}

func TestOnlyAuthorizedRequestsAreServed(t *testing.T) {
	t.Parallel()
	n, write := newTokenNode(t, nil)
	p := newProgram(t)
	p.write(t, "x\n")
	n.pods.files["web"] = p.path
	for _, token := range []string{"", "0123456789abcde", "0123456789abcdeg", "0123456789abcdef0"} {
		n.client.token = token
		if _, err := n.logText(t, LogOptions{Tail: -1}); !errors.Is(err, ErrUnauthorized) {
			t.Errorf("token %q: %v", token, err)
		}
		if _, _, _, err := n.sh(t.Context(), nil, "true"); !errors.Is(err, ErrUnauthorized) {
			t.Errorf("token %q: %v", token, err)
		}
	}
	n.client.token = "0123456789abcdef"
	if got, err := n.logText(t, LogOptions{Tail: -1}); err != nil || got != "x\n" {
		t.Errorf("%q, %v", got, err)
	}
	write("another-token-1234") // changed while the server runs
	if _, err := n.logText(t, LogOptions{Tail: -1}); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("the old token: %v", err)
	}
	n.client.token = "another-token-1234"
	if _, err := n.logText(t, LogOptions{Tail: -1}); err != nil {
		t.Errorf("the new token: %v", err)
	}
	write("short")
	if _, err := n.logText(t, LogOptions{Tail: -1}); err == nil ||
		!strings.Contains(err.Error(), "cannot read its token") {
		t.Errorf("a token that is none: %v", err)
	}
	write("another-token-1234")
	n.client.node = "n2"
	if _, err := n.logText(t, LogOptions{Tail: -1}); !errors.Is(err, ErrOtherNode) {
		t.Errorf("another node: %v", err)
	}
	// A page in a browser cannot send the header.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		n.URL()+"/v1/nodes/n1/pods/rc1/main/2/exec?arg=/bin/true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer another-token-1234")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("without the header: %s", resp.Status)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key, pool := certify(t, "n1")
	n, _ := newTokenNode(t, func(c *Config) { c.CertFile, c.KeyFile = cert, key })
	if !strings.HasPrefix(n.URL(), "https://127.0.0.1:") {
		t.Errorf("URL %s", n.URL())
	}
	target := n.client.Target()
	for node, roots := range map[string]*x509.CertPool{"n1": nil, "n2": pool} { // unknown authority, another node
		c := NewClient(node, target, goodToken, roots)
		if _, err := c.Logs(t.Context(), webPod, LogOptions{}); err == nil ||
			!strings.Contains(err.Error(), "certificate") {
			t.Errorf("asking for %s: %v", node, err)
		}
	}
	for _, http2 := range []bool{false, true} {
		n.client = NewClient("n1", target, goodToken, pool)
		n.client.http.Transport.(*http.Transport).ForceAttemptHTTP2 = http2
		ended, out, _, err := n.sh(t.Context(), strings.NewReader("hello"), "cat; exit 4")
		if err != nil || ended.Code != 4 || out != "hello" {
			t.Errorf("HTTP/2 %t: %+v, %q, %v", http2, ended, out, err)
		}
		n.client.Close()
	}
}

// certify returns the files of a certificate with a node's name, and a pool that trusts it.
func certify(t *testing.T, name string) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key, pool = filepath.Join(dir, "cert"), filepath.Join(dir, "key"), x509.NewCertPool()
	for file, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der},
		key:  {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(parsed)
	return cert, key, pool
}

func TestConfig(t *testing.T) {
	t.Parallel()
	tests := []struct {
		cfg  Config
		want string // empty: no mistake
	}{
		{Config{Addr: Off}, ""},
		{Config{Addr: Unix}, ""},
		{
			Config{Addr: Unix, TokenFile: "t"},
			`api-token-file: "t" is not valid; allowed: nothing, unless --api-addr is`,
		},
		{Config{Addr: Unix, CertFile: "c", KeyFile: "k"}, `api-tls-cert: "c" is not valid; allowed: nothing, unless`},
		{Config{Addr: "127.0.0.1:0", TokenFile: "t"}, ""},
		{Config{Addr: "[::1]:7462", TokenFile: "t"}, ""},
		{Config{Addr: "localhost:7462", TokenFile: "t"}, ""},
		{Config{Addr: "0.0.0.0:7462", TokenFile: "t", CertFile: "c", KeyFile: "k"}, ""},
		{Config{Addr: ":7462", TokenFile: "t", CertFile: "c", KeyFile: "k"}, ""},
		{Config{Addr: "127.0.0.1:0"}, `api-addr: "127.0.0.1:0" is not valid; allowed: "unix", unless --api-token-file`},
		{
			Config{Addr: "0.0.0.0:7462", TokenFile: "t"},
			`api-addr: "0.0.0.0:7462" is not valid; allowed: a loopback address, unless --api-tls-cert`,
		},
		{Config{Addr: ":7462", TokenFile: "t"}, "a loopback address, unless"},
		{Config{Addr: "10.0.0.1:7462", TokenFile: "t"}, "a loopback address, unless"},
		{Config{Addr: "example.org:7462", TokenFile: "t"}, `such as "127.0.0.1:7462"`},
		{Config{Addr: "127.0.0.1"}, `such as "127.0.0.1:7462"`},
		{Config{Addr: "127.0.0.1:99999"}, `such as "127.0.0.1:7462"`},
		{Config{Addr: "127.0.0.1:0", TokenFile: "t", CertFile: "c"}, "given together with --api-tls-key"},
	}
	for _, tt := range tests {
		var errs field.Errors
		tt.cfg.Check(&errs)
		err := errs.Err()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.cfg, err, tt.want)
		}
	}
	dir := t.TempDir()
	short := filepath.Join(dir, "short")
	if err := os.WriteFile(short, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "good")
	if err := os.WriteFile(good, []byte(goodToken), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]Config{
		"at least 16":     {Addr: "127.0.0.1:0", TokenFile: short},
		"api-token-file:": {Addr: "127.0.0.1:0", TokenFile: filepath.Join(dir, "none")},
		"api-tls-cert:":   {Addr: "127.0.0.1:0", TokenFile: good, CertFile: short, KeyFile: short},
	} {
		if _, err := New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if _, err := New(t.Context(), Config{Addr: busy.Addr().String(), TokenFile: good}); err == nil ||
		!strings.Contains(err.Error(), "name another with --api-addr") {
		t.Errorf("a port in use: %v", err)
	}
	off, err := New(t.Context(), Config{Addr: Off})
	if err != nil || off.URL() != "" {
		t.Errorf("off: %v, %q", err, off.URL())
	}
	off.Close()
}
