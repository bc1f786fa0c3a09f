package rcctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// withConsul runs the tests and stops their Consul before testscript ends the process.
type withConsul struct{ m *testing.M }

func (w withConsul) Run() int { return consultest.Main(w.m) }

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == oneshot.Arg {
		oneshot.Exec()
	}
	testscript.Main(withConsul{m}, map[string]func(){
		"rcctl": func() { os.Exit(Main(context.Background(), os.Args, os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// TestScripts runs scripts of commands that a user could type, each script below its own key prefix. Besides
// testscript's commands a script has $KEYS, a directory with SSH keys, and:
//
//	exits CODE COMMAND...  run a command that must end with this exit code
//	rcid VAR NAME          set a variable to the id of an rc
//	kvput KEY VALUE        write a key below the prefix, as a farm or preparer would
//	kvhold KEY VALUE       the same, held as a lock by a new session
//	kvdel KEY              delete a key below the prefix
//	kvcat KEY              print a value
//	kvkeys                 print all keys below the prefix, without it
//	kvdump                 print all below the prefix as Consul has it, with the indices of changes
//	passing NODE           let a preparer of that name pass in Consul's catalog
//	nodeapi NODE DIR [ADDR TOKENFILE]  serve the logs in a directory, and commands, as a node's preparer; sets API
//	leaderless VAR         set a variable to the address of a Consul without a leader, which answers only stale reads
//	capture VAR REGEXP     set a variable to the first group of a match in the last standard output
//
// Keys of nodes have the digit of their shard: nodes/7/n1, nodes/4/n2, nodes/7/n3, and nodeops/ likewise.
func TestScripts(t *testing.T) {
	addr := consultest.Shared(t).Addr
	keys, err := filepath.Abs("../preparer/trust/testdata")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("CONSUL_HTTP_ADDR", addr)
			env.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector would keep each command for a second
			env.Setenv("RCFARM_PREFIX", "script-"+store.NewID()+"/")
			env.Setenv("KEYS", keys)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits, "rcid": rcid, "kvput": kvput, "kvhold": kvhold, "kvdel": kvdel, "kvcat": kvcat,
			"kvkeys": kvkeys, "kvdump": kvdump, "capture": capture,
			"nodeapi": serveNode, "passing": passing, "leaderless": leaderless,
		},
	})
}

func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// raw sends a request to Consul for which rcctl has no function.
func raw(addr, method, path, body string) (string, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, "http://"+addr+"/v1/"+path,
		strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s %s", method, path, resp.Status, answer)
	}
	return string(answer), err
}

func kv(ts *testscript.TestScript, method, path, body string) string {
	answer, err := raw(ts.Getenv("CONSUL_HTTP_ADDR"), method, "kv/"+ts.Getenv("RCFARM_PREFIX")+path, body)
	ts.Check(err)
	return answer
}

func rcid(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv(args[0], kv(ts, http.MethodGet, "names/"+args[1]+"?raw", ""))
}

func kvput(ts *testscript.TestScript, _ bool, args []string) {
	kv(ts, http.MethodPut, args[0], args[1])
}

func kvhold(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(putHeld(ts.Getenv("CONSUL_HTTP_ADDR"), ts.Getenv("RCFARM_PREFIX")+args[0], args[1]))
}

// putHeld stores a value, and holds its key with a session, in the same way as a living daemon.
func putHeld(addr, key, value string) error {
	answer, err := raw(addr, http.MethodPut, "session/create", "{}")
	if err != nil {
		return err
	}
	var session struct{ ID string }
	if err := json.Unmarshal([]byte(answer), &session); err != nil {
		return err
	}
	_, err = raw(addr, http.MethodPut, "kv/"+key+"?acquire="+session.ID, value)
	return err
}

// passing registers the service of a living preparer in Consul. Its check passes for an hour, and nothing renews it.
func passing(ts *testscript.TestScript, _ bool, args []string) {
	service, err := passingService(ts.Getenv("RCFARM_PREFIX"), args[0])
	ts.Check(err)
	_, err = raw(ts.Getenv("CONSUL_HTTP_ADDR"), http.MethodPut, "agent/service/register", service)
	ts.Check(err)
}

func leaderless(ts *testscript.TestScript, _ bool, args []string) {
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: ts.Getenv("CONSUL_HTTP_ADDR")})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("stale") {
			forward.ServeHTTP(w, r)
			return
		}
		http.Error(w, "No cluster leader", http.StatusInternalServerError)
	}))
	ts.Defer(proxy.Close)
	ts.Setenv(args[0], proxy.Listener.Addr().String())
}

func passingService(prefix, node string) (string, error) {
	keys, err := store.NewKeys(prefix)
	if err != nil {
		return "", err
	}
	service, err := json.Marshal(map[string]any{
		"ID": prefix + node, "Name": consul.ServiceName("preparer"),
		"Meta": store.New(nil, keys).PreparerMeta(node), "Check": map[string]string{"TTL": "1h", "Status": "passing"},
	})
	return string(service), err
}

func kvdel(ts *testscript.TestScript, _ bool, args []string) {
	kv(ts, http.MethodDelete, args[0], "")
}

func kvcat(ts *testscript.TestScript, _ bool, args []string) {
	fmt.Fprintln(ts.Stdout(), kv(ts, http.MethodGet, args[0]+"?raw", ""))
}

func kvkeys(ts *testscript.TestScript, _ bool, _ []string) {
	answer, err := raw(ts.Getenv("CONSUL_HTTP_ADDR"), http.MethodGet, "kv/"+ts.Getenv("RCFARM_PREFIX")+"?keys", "")
	ts.Check(err)
	var keys []string
	ts.Check(json.Unmarshal([]byte(answer), &keys))
	for _, key := range keys {
		fmt.Fprintln(ts.Stdout(), strings.TrimPrefix(key, ts.Getenv("RCFARM_PREFIX")))
	}
}

func kvdump(ts *testscript.TestScript, _ bool, _ []string) {
	fmt.Fprintln(ts.Stdout(), kv(ts, http.MethodGet, "?recurse", ""))
}

func capture(ts *testscript.TestScript, _ bool, args []string) {
	m := regexp.MustCompile("(?m)" + args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if m == nil {
		ts.Fatalf("no match for %s", args[1])
	}
	ts.Setenv(args[0], m[1])
}

// run runs rcctl in this process on a prefix. Two runs must not overlap, because urfave/cli shares its help flag
// between them.
func run(t *testing.T, prefix, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runAt(t.Context(), consultest.Shared(t).Addr, prefix, stdin, args...)
}

// runAt does the same as run, with the Consul at an address.
func runAt(ctx context.Context, addr, prefix, stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	all := append([]string{"rcctl", "--consul-addr", addr, "--prefix", prefix}, args...)
	code = Main(ctx, all, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

// testConn returns the conn of a command below a fresh prefix.
func testConn(t *testing.T) (s *conn, prefix string) {
	t.Helper()
	client, prefix := consultest.Client(t)
	keys, err := store.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	return &conn{Store: store.New(client, keys), consul: client}, prefix
}

// keysBelow lists the names of all keys.
func keysBelow(t *testing.T, c *consul.Client, prefix string) []string {
	t.Helper()
	keys, err := c.Keys(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
