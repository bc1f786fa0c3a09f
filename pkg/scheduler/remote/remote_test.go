package remote_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/scheduler/remote"
)

var update = flag.Bool("update", false, "write the golden files")

// keeper is a scheduler with books: each replica gets the first eligible node that it does not have to avoid.
type keeper struct {
	mu          sync.Mutex
	allocations []scheduler.Allocation
	seen        scheduler.Ask
	placed      []scheduler.Placed
	term        string
	err         error
}

func (k *keeper) EligibleNodes(_ context.Context, v *scheduler.View) ([]string, scheduler.Reasons, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen, k.placed = v.Ask(), slices.Collect(v.Pods())
	nodes, others := v.Eligible()
	var names []string
	for _, n := range nodes {
		if n.Label("maintenance") != "" {
			others["maintenance"]++
			continue
		}
		names = append(names, n.Name())
	}
	return names, others, k.err
}

func (k *keeper) AllocatedNodes(_ context.Context, o scheduler.Owner) ([]scheduler.Allocation, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.term = o.Term
	return slices.Clone(k.allocations), k.err
}

func (k *keeper) AllocateNodes(_ context.Context, o scheduler.Owner, v *scheduler.View,
	wants []scheduler.Want,
) ([]scheduler.Allocation, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.term = o.Term
	nodes, _ := v.Eligible()
	var given []scheduler.Allocation
	for _, w := range wants {
		if i := slices.IndexFunc(nodes,
			func(n scheduler.Node) bool { return !slices.Contains(w.Avoid, n.Name()) }); i >= 0 {
			given = append(given, scheduler.Allocation{Pod: w.Pod, Node: nodes[i].Name()})
		}
	}
	k.allocations = append(k.allocations, given...)
	return given, k.err
}

func (k *keeper) DeallocateNodes(_ context.Context, _ scheduler.Owner, allocations []scheduler.Allocation) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.allocations = slices.DeleteFunc(k.allocations, func(a scheduler.Allocation) bool {
		return slices.Contains(allocations, a)
	})
	return k.err
}

func id(i int) pod.Identity {
	return pod.Identity{RCID: "01m81nvfj7av9tvd8yd4gk9qsw", Role: "main", Index: i}
}

var owner = scheduler.Owner{RCID: id(0).RCID, Term: "01m7/00000000000000000042"}

// view returns a view of five nodes. Two of them are not eligible.
func view() *scheduler.View {
	nodes := map[string]*node.View{}
	for i, rack := range []string{"a", "a", "b", "c", "a"} {
		name := fmt.Sprint("n", i)
		nodes[name] = node.NewView(node.Node{
			Name: name, Address: fmt.Sprint("10.0.0.", i), Labels: map[string]string{"rack": rack},
			Capacity: node.Capacity{Slots: 10, CPU: 4000, Memory: 8 << 30},
			Host:     "secret", API: "https://10.0.0.1:7462", ConsulNode: "c", Incarnation: "i", Version: "v",
		}, node.Ops{}, i != 4)
	}
	nodes["n1"].SetOps(node.Ops{Labels: map[string]string{"maintenance": "soon"}})
	sel, err := labels.Parse("rack in (a,b)")
	if err != nil {
		panic(err)
	}
	return scheduler.NewView(scheduler.Cluster{
		Ask: scheduler.Ask{
			RCID: id(0).RCID, RCName: "web", Labels: map[string]string{"team": "shop"}, PodID: "web",
			PodLabels: map[string]string{"app": "web"}, Strategy: "dynamic",
			Selector: "rack in (a,b)", Spread: "rack", SpreadSkew: 1, SpreadRole: "main", MaxPerNode: 2, Desired: 3,
			CPU: 500, Memory: 1 << 30, Ports: []int{8080}, DynamicPorts: []string{"admin"},
			Manifest: secretive().WithoutSecrets(),
		},
		Nodes: nodes, Rule: &scheduler.Rule{Selector: sel}, Pods: slices.Values(placed),
	})
}

// secretive returns a manifest with secrets in all places that may have secrets.
func secretive() *manifest.Manifest {
	return &manifest.Manifest{
		Version: 1, ID: "web", Config: manifest.Config{"password": secret},
		Launchables: []manifest.Launchable{
			{
				Name: "server", Artifact: manifest.Artifact{Kind: manifest.ArtifactExec, Path: "/bin/web"},
				Env: map[string]string{"PASSWORD": secret},
			},
			{
				Name: "helper", Artifact: manifest.Artifact{Kind: manifest.ArtifactExec, Path: "/bin/help"},
				Env: map[string]string{"TOKEN": secret},
			},
		},
		Ports:  []manifest.Port{{Name: "http", Port: 8080}, {Name: "admin", Dynamic: true}},
		Labels: map[string]string{"tier": "front"},
	}
}

const secret = "Ahng8ohz"

// A question has the manifest without its secrets, even if the caller's view has them. The manifest itself is not
// changed.
func TestNoSecretIsAsked(t *testing.T) {
	t.Parallel()
	m := secretive()
	v := scheduler.NewView(scheduler.Cluster{Ask: scheduler.Ask{RCID: "rc", Manifest: m}})
	bodies := make(chan string, 2)
	c := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- string(body)
		_, _ = io.WriteString(w, `{"version":1}`)
	}))
	if _, _, err := c.EligibleNodes(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AllocateNodes(t.Context(), owner, v, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		body := <-bodies
		if !strings.Contains(body, `"path":"/bin/help"`) || !strings.Contains(body, `"tier":"front"`) {
			t.Errorf("it does not have the manifest: %s", body)
		}
		for _, not := range []string{secret, `"env"`, `"config"`, "PASSWORD", "TOKEN", "password"} {
			if strings.Contains(body, not) {
				t.Errorf("it has %s: %s", not, body)
			}
		}
	}
	if !reflect.DeepEqual(m, secretive()) {
		t.Errorf("the manifest is %+v by now", m)
	}
}

// placed has the pods of the view.
var placed = []scheduler.Placed{{Pod: id(0), Node: "n0"}, {Pod: id(3), Node: "n1", Stopping: true}}

// served starts a server and returns a client for it.
func served(t *testing.T, h http.Handler) *remote.Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return client(t, remote.Config{URL: server.URL})
}

func client(t *testing.T, cfg remote.Config) *remote.Client {
	t.Helper()
	c, err := remote.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A scheduler in another process sees the same as a scheduler in the farm, and its answers arrive unchanged. The
// messages are equal to the golden files, which are examples for authors of schedulers.
func TestAllMethodsOverTheWire(t *testing.T) {
	t.Parallel()
	k := &keeper{}
	var mu sync.Mutex
	said := map[string][]byte{} // by file
	note := func(file string, data []byte) {
		mu.Lock()
		defer mu.Unlock()
		said[file] = data
	}
	inner := remote.Handler(k)
	c := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		method := strings.TrimPrefix(r.URL.Path, "/v1/")
		note(method+".question.json", body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		rec := httptest.NewRecorder()
		inner.ServeHTTP(rec, r)
		note(method+".answer.json", rec.Body.Bytes())
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	}))
	names, refused, err := c.EligibleNodes(t.Context(), view())
	if err != nil || !slices.Equal(names, []string{"n0", "n2"}) ||
		refused.String() != "maintenance: 1, not alive: 1, selector: 1" {
		t.Errorf("eligible: %v, %v, %v", names, refused, err)
	}
	if want := view().Ask(); !reflect.DeepEqual(k.seen, want) || !slices.Equal(k.placed, placed) {
		t.Errorf("it was shown %+v and %v, want %+v and %v", k.seen, k.placed, want, placed)
	}
	given, err := c.AllocateNodes(t.Context(), owner, view(),
		[]scheduler.Want{{Pod: id(1)}, {Pod: id(2), Avoid: []string{"n0", "n1"}}, {Pod: id(0), Node: "n0"}})
	if err != nil || len(given) != 3 || given[1] != (scheduler.Allocation{Pod: id(2), Node: "n2"}) {
		t.Errorf("allocated %v, %v", given, err)
	}
	if allocated, err := c.AllocatedNodes(t.Context(), owner); err != nil ||
		!slices.Equal(allocated, given) || k.term != owner.Term {
		t.Errorf("its books show %v of %v, %v; term %s", allocated, given, err, k.term)
	}
	if err := c.DeallocateNodes(t.Context(), owner, given[:1]); err != nil || len(k.allocations) != 2 {
		t.Errorf("deallocated: %v; left %v", err, k.allocations)
	}
	if len(said) != 8 {
		t.Fatalf("%d messages", len(said))
	}
	for file, data := range said {
		golden(t, file, data)
	}
}

func golden(t *testing.T, file string, data []byte) {
	t.Helper()
	var text bytes.Buffer
	if err := json.Indent(&text, data, "", "  "); err != nil {
		t.Fatalf("%s: %v: %s", file, err, data)
	}
	text.WriteByte('\n')
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(want, text.Bytes()) {
		t.Errorf("%s is not what was said (go test -update writes it), %v:\n%s", path, err, &text)
	}
}

// If a scheduler answers that it keeps no books, the client does not ask it for books again for a while.
func TestASchedulerWithoutBooks(t *testing.T) {
	t.Parallel()
	asked := 0
	h := remote.Handler(new(scheduler.ByLabel))
	c := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/allocated" {
			asked++
		}
		h.ServeHTTP(w, r)
	}))
	for range 3 {
		if _, err := c.AllocatedNodes(t.Context(), owner); !errors.Is(err, scheduler.ErrNoBooks) {
			t.Errorf("its books: %v", err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	if _, err := c.AllocateNodes(t.Context(), owner, view(), nil); !errors.Is(err, scheduler.ErrNoBooks) {
		t.Errorf("it allocates: %v", err)
	}
	if err := c.DeallocateNodes(t.Context(), owner, nil); err != nil {
		t.Error(err)
	}
	if names, _, err := c.EligibleNodes(t.Context(), view()); err != nil ||
		!slices.Equal(names, []string{"n0", "n1", "n2"}) {
		t.Errorf("%v, %v", names, err)
	}
}

// A bad answer is refused with a reason, which has at most one line of the answer.
func TestBadAnswersAreRefused(t *testing.T) {
	t.Parallel()
	many := `{"version":1,"nodes":["` + strings.Repeat(`n","`, 100_001) + `n"]}`
	for name, tt := range map[string]struct {
		status int
		body   string
		says   string
	}{
		"no JSON":             {200, "<html>", "cannot be read"},
		"something after it":  {200, `{"version":1} {"version":1}`, "cannot be read"},
		"cut off":             {200, `{"version":1,"nodes":["n1"`, "cannot be read"},
		"another type":        {200, `{"version":1,"nodes":"n1"}`, "cannot be read"},
		"empty":               {200, "", "cannot be read"},
		"no version":          {200, `{"nodes":["n1"]}`, "version 0; allowed: 1"},
		"another version":     {200, `{"version":2,"nodes":["n1"]}`, "version 2; allowed: 1"},
		"a name of no length": {200, `{"version":1,"nodes":[""]}`, `names a node ""`},
		"a long name": {
			200, `{"version":1,"nodes":["` + strings.Repeat("n", 300) + `"]}`,
			"allowed: 1 to 256 bytes",
		},
		"a share of no node": {
			200, `{"version":1,"allocations":[{"pod":{"rc_id":"r","role":"m","index":0}}]}`,
			`names a node ""`,
		},
		"a negative count":  {200, `{"version":1,"refused":{"full":-1}}`, "counts -1 nodes"},
		"a reason of lines": {200, `{"version":1,"refused":{"a\nb":1}}`, "on one line"},
		"many nodes":        {200, many, "100002 nodes"},
		"too large": {
			200, `{"version":1,"nodes":["` + strings.Repeat("x", remote.MaxAnswer) + `"]}`,
			"more than 4194304 bytes",
		},
		"redirected": {302, "", "answered 302 Found"},
		"a failure": {
			503, "out\nof \x1b[31morder" + strings.Repeat(" really", 1000),
			"answered 503 Service Unavailable: out of [31morder really",
		},
		"no content":         {204, "", "answered 204 No Content"},
		"a method not there": {404, "", "answered 404 Not Found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := served(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}))
			names, _, err := c.EligibleNodes(t.Context(), view())
			if err == nil || len(names) != 0 || !strings.Contains(err.Error(), tt.says) || len(err.Error()) > 900 ||
				strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("%v, %v; want an error with %q", names, err, tt.says)
			}
		})
	}
	c := served(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"version":1,"nodes":["n1"],"later":{"field":[1]}}`)
	}))
	if names, _, err := c.EligibleNodes(t.Context(), view()); err != nil || !slices.Equal(names, []string{"n1"}) {
		t.Errorf("a field of a later version: %v, %v", names, err)
	}
}

// If a scheduler does not answer, or if its answer does not end, the call ends with the caller's context.
func TestACallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]http.HandlerFunc{
		"no answer": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			<-r.Context().Done()
		},
		"drop by drop": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := served(t, handle)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if names, _, err := c.EligibleNodes(ctx, view()); err == nil {
				t.Errorf("it named %v", names)
			}
		})
	}
}

// A token is sent only to the configured scheduler.
func TestATokenGoesNowhereElse(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	server := httptest.NewServer(remote.WithToken(file, remote.Handler(new(scheduler.ByLabel))))
	defer server.Close()
	for cfg, want := range map[remote.Config]string{
		{URL: server.URL, TokenFile: file}: "",
		{URL: server.URL}:                  "401",
		{URL: server.URL, TokenFile: filepath.Join(t.TempDir(), "none")}: "token for the scheduler",
	} {
		_, _, err := client(t, cfg).EligibleNodes(t.Context(), view())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	write("two words")
	if _, _, err := client(t, remote.Config{URL: server.URL, TokenFile: file}).EligibleNodes(t.Context(),
		view()); err == nil || !strings.Contains(err.Error(), "holds 2 words") {
		t.Errorf("a token of two words: %v", err)
	}
	write("second")
	elsewhere := make(chan string, 1)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		elsewhere <- r.Header.Get("Authorization")
	}))
	defer other.Close()
	var bore string
	c := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	redirecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bore = r.Header.Get("Authorization")
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	defer redirecting.Close()
	if _, _, err := client(t, remote.Config{URL: redirecting.URL, TokenFile: file}).EligibleNodes(t.Context(),
		view()); err == nil || bore != "Bearer second" {
		t.Errorf("%v; it bore %q", err, bore)
	}
	if _, _, err := c.EligibleNodes(t.Context(), view()); err == nil || len(elsewhere) != 0 {
		t.Errorf("a redirect was followed: %v", err)
	}
}

// The scheduler of an https URL is identified by its certificate.
func TestCertificates(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(remote.Handler(new(scheduler.ByLabel)))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // no errors about clients that refuse the certificate
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	own, none := filepath.Join(dir, "own.pem"), filepath.Join(dir, "none.pem")
	if err := os.WriteFile(own, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(none, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := client(t, remote.Config{URL: server.URL, CAFile: own}).EligibleNodes(t.Context(),
		view()); err != nil {
		t.Error(err)
	}
	if _, _, err := client(t, remote.Config{URL: server.URL}).EligibleNodes(t.Context(), view()); err == nil ||
		!strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown server is believed: %v", err)
	}
	for _, file := range []string{none, filepath.Join(dir, "missing")} {
		if _, err := remote.New(remote.Config{URL: server.URL, CAFile: file}); err == nil {
			t.Errorf("%s is taken", file)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	for cfg, want := range map[remote.Config]string{
		{URL: "http://127.0.0.1:7470"}:                                 "",
		{URL: "https://scheduler.example/farm/", TokenFile: "t"}:       "",
		{URL: "http://localhost:1", TokenFile: "t"}:                    "",
		{URL: "http://[::1]:1", TokenFile: "t"}:                        "",
		{URL: "http://scheduler.example", TokenFile: "t"}:              "scheduler-token-file",
		{URL: "http://127.0.0.1.example", TokenFile: "t"}:              "scheduler-token-file",
		{URL: "http://scheduler.example", CAFile: "c"}:                 "scheduler-ca",
		{URL: "http://scheduler.example", CAFile: "c", TokenFile: "t"}: "scheduler-token-file",
		{URL: ""}:                         "scheduler-url",
		{URL: "scheduler.example:1"}:      "scheduler-url",
		{URL: "unix:///run/scheduler"}:    "scheduler-url",
		{URL: "https://user:pw@example"}:  "scheduler-url",
		{URL: "https://example/?token=x"}: "scheduler-url",
		{URL: "https://example/#part"}:    "scheduler-url",
		{URL: "https://exa mple/"}:        "scheduler-url",
	} {
		err := cfg.Check().Err()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
		if _, made := remote.New(cfg); want != "" && made == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

// A bad question gets an answer with what is wrong, and does not reach the scheduler.
func TestBadQuestions(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(remote.Handler(&keeper{err: errors.New("out of order")}))
	defer server.Close()
	for name, tt := range map[string]struct {
		path, body string
		status     int
		says       string
	}{
		"no JSON":         {"v1/eligible", "{", 400, "cannot be read"},
		"another version": {"v1/eligible", `{"version":2,"ask":{}}`, 400, "version 2; allowed: 1"},
		"nothing asked":   {"v1/eligible", `{"version":1}`, 400, "ask is missing"},
		"nobody asks":     {"v1/allocated", `{"version":1}`, 400, "owner is missing"},
		"too large": {"v1/eligible", `{"version":1,"ask":{"rc_name":"` +
			strings.Repeat("x", remote.MaxQuestion) + `"}}`, 400, "too large"},
		"its own failure": {"v1/eligible", `{"version":1,"ask":{}}`, 503, "out of order"},
		"another path":    {"v2/eligible", `{"version":1,"ask":{}}`, 404, ""},
	} {
		resp, err := http.Post(server.URL+"/"+tt.path, "application/json", strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		said, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tt.status || !strings.Contains(string(said), tt.says) {
			t.Errorf("%s: %d %s, want %d with %q", name, resp.StatusCode, said, tt.status, tt.says)
		}
	}
}

// A scheduler in its own process. Farms use it with --scheduler-url http://127.0.0.1:7470.
func ExampleHandler() {
	s := new(scheduler.ByLabel) // or your own scheduler
	server := &http.Server{Addr: "127.0.0.1:7470", Handler: remote.Handler(s), ReadHeaderTimeout: 10 * time.Second}
	defer server.Close()
	// log.Fatal(server.ListenAndServe())

	req := httptest.NewRequest(http.MethodPost, "/v1/eligible", strings.NewReader(
		`{"version":1,"ask":{"rc_id":"01m81","rc_name":"web","strategy":"dynamic","desired":2},`+"\n"+
			`"nodes":[{"name":"n2","capacity":{"slots":10}},{"name":"n1","capacity":{"slots":10}}]}`))
	rec := httptest.NewRecorder()
	server.Handler.ServeHTTP(rec, req)
	fmt.Println(rec.Code, rec.Body)
	// Output: 200 {"version":1,"nodes":["n1","n2"]}
}
