package manifest_test

import (
	"encoding/json"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

const full = `{"version":1,"id":"web","launchables":[{"name":"server","artifact":{"kind":"tar","url":"https://files.example/web.tar.gz",` +
	`"sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},"args":["-v"],"env":{"A":"1","B":"2"},` +
	`"resources":{"cpu":500,"memory":1048576},"stop_grace":"5s"}],"ports":[{"name":"http","port":8080}],` +
	`"health":{"http":{"port":"http","path":"/health?full=1"},"interval":"1s","timeout":"500ms","min_ready":"0s"},"labels":{"app":"web"}}`

// all has nearly all fields, in canonical form.
const all = `{"version":1,"id":"all","launchables":[{"name":"server","artifact":{"kind":"tar","url":"https://files.example/all.tar.gz",` +
	`"sha256":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"},"command":"bin/run","args":["-v"],"env":{"A":"1"},` +
	`"user":"web","work_dir":"data","restart":{"policy":"on-failure","backoff_min":"200ms","backoff_max":"30s"},` +
	`"resources":{"cpu":500,"memory":1048576,"pids":64},"stop_signal":"SIGINT","stop_grace":"5s"},` +
	`{"name":"probe","artifact":{"kind":"exec","path":"/usr/bin/probe"}}],` +
	`"config":{"half":0.50,"large":123456789012345678901234567890,"list":[1,1.0,1e2,null,true],"password":{"$file":"/etc/all/password"}},` +
	`"ports":[{"name":"http","port":8080},{"name":"admin","dynamic":true}],` +
	`"health":{"http":{"port":"http","path":"/health"},"interval":"1s","timeout":"500ms","initial_delay":"3s",` +
	`"success_threshold":2,"failure_threshold":3,"min_ready":"1s"},` +
	`"hooks":{"before_install":{"path":"hooks/a"},"after_install":{"path":"hooks/b"},"before_launch":{"path":"hooks/c"},` +
	`"after_launch":{"path":"hooks/d"},"before_stop":{"path":"hooks/e"},` +
	`"after_stop":{"launchable":"probe","path":"/usr/bin/f","args":["x"],"timeout":"5s","required":true}},` +
	`"disconnect":{"stop_after":"1h0m0s"},"volumes":[{"name":"data"}],"labels":{"app":"all"}}`

// A manifest has only one check. allService, allReady, allHung and allDrain have fields that were added later.
const (
	allTCP = `{"version":1,"id":"web","launchables":[{"name":"server","artifact":{"kind":"exec","path":"/opt/web"}}],` +
		`"ports":[{"name":"http","port":1}],"health":{"tcp":{"port":"http"}}}`
	allScript = `{"version":1,"id":"web","launchables":[{"name":"server","artifact":{"kind":"exec","path":"/opt/web"}}],` +
		`"health":{"script":{"launchable":"server","path":"/opt/check","args":["-q"]}}}`
	allService = `{"version":1,"id":"web","launchables":[{"name":"server","artifact":{"kind":"exec","path":"/opt/web"}}],` +
		`"ports":[{"name":"http","port":1}],"service":{"name":"shop","port":"http","tags":["v1"],"meta":{"team":"a"}}}`
	allReady = `{"version":1,"id":"web","launchables":[{"name":"server","artifact":{"kind":"exec","path":"/opt/web"}}],"min_ready":"2s"}`
	allHung  = `{"version":1,"id":"web","launchables":[{"name":"server","artifact":{"kind":"exec","path":"/opt/web"}}],` +
		`"health":{"script":{"path":"/opt/check"},"restart_after":"30s"}}`
	allDrain = `{"version":1,"id":"web","launchables":[{"name":"server","artifact":{"kind":"exec","path":"/opt/web"}}],"service":{"drain":"2s"}}`
)

// allImage has the fields of images, in canonical form.
const allImage = `{"version":1,"id":"image","launchables":[{"name":"server","artifact":{"kind":"image",` +
	`"ref":"r.example:5000/team/web:1.2@sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc",` +
	`"platform":"linux/arm/v7"},"command":"/usr/bin/web","args":["-v"],"user":"web:33","work_dir":"/srv",` +
	`"tmpfs":[{"path":"/tmp","size":1048576},{"path":"/run"}],"shm_size":4096,"read_only_root":true,` +
	`"capabilities":{"add":["NET_RAW"],"drop":["ALL"]}},` +
	`{"name":"probe","artifact":{"kind":"exec","path":"/usr/bin/probe"}}],` +
	`"health":{"script":{"launchable":"probe","path":"/usr/bin/check"}},` +
	`"hooks":{"before_stop":{"launchable":"probe","path":"/usr/bin/drain"}},` +
	`"volumes":[{"name":"data","path":"/data","read_only":true}]}`

const least = `{"version":1,"id":"web","launchables":[{"name":"server","artifact":{"kind":"tar","url":"file:///srv/web.tar.gz",` +
	`"sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}]}`

func decode(t *testing.T, text string) *manifest.Manifest {
	t.Helper()
	m, err := manifest.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Existing stores name manifests by these digests. If a constant of this test changes, the record format has changed.
func TestCanonicalIsForEver(t *testing.T) {
	for _, tt := range []struct{ in, digest string }{
		{least, "d4787d558a0385cf93ab9459255e7add9f86c56e7ae2cf56040546c376ab49bf"},
		{full, "ded7a146e1381eed38c07bc97995b2230e8d94ed835b13ac9f2bd0f4d3db4fea"},
		{all, "a8bde0b9d134c19b52d0aff8adc0d658e62cff7cc77af7d6ee511c4cd6ce4c39"},
		{allService, "7694a2b83db15c2ab963fd14825bafd9785a86e75785e022a81255b6468f567b"},
		{allReady, "f5e60948e280648ff70f0cb5f7d0e39a08b56a7d21d6e20b91264af2c477375b"},
		{allTCP, "93edf3b65bc1ce4118989c4e5cef40768d6bab13ae4163587fb471655f4fdb7e"},
		{allScript, "9b906cb3ef6f67e6ef2572e496fbf5fb200e1d3661f9c5a3e4d87f1eb99423e3"},
		{allImage, "8f16dabbf54eb884e8e051ea00f4172f8562ff6b0e55e303fe0fa86797962aa6"},
	} {
		canonical, err := decode(t, tt.in).Canonical()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.in, string(canonical)); diff != "" {
			t.Error(diff)
		}
		if got := manifest.Digest(canonical); got != tt.digest {
			t.Errorf("digest of %s is %s", canonical, got)
		}
	}
}

// The digest depends neither on spaces nor on the order of fields and keys.
func TestCanonicalForgetsOrder(t *testing.T) {
	shuffled := `{"launchables": [{"env": {"B": "2", "A": "1"}, "stop_grace": "5000ms", "args": ["-v"],
		"resources": {"memory": 1048576, "cpu": 500}, "name": "server",
		"artifact": {"sha256": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "url": "https://files.example/web.tar.gz", "kind": "tar"}}],
		"labels": {"app": "web"}, "id": "web", "ports": [{"port": 8080, "name": "http"}],
		"health": {"min_ready": "0s", "timeout": "0.5s", "interval": "1s", "http": {"path": "/health?full=1", "port": "http"}}, "version": 1}`
	canonical, err := decode(t, shuffled).Canonical()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full, string(canonical)); diff != "" {
		t.Error(diff)
	}
}

func TestCanonicalIsStable(t *testing.T) {
	text := rapid.StringN(0, 20, 40).Filter(func(s string) bool { return !strings.ContainsRune(s, 0) })
	rapid.Check(t, func(rt *rapid.T) {
		m := decode(t, least)
		m.Launchables[0].Args = rapid.SliceOfN(text, 0, 3).Draw(rt, "args")
		m.Launchables[0].Env = rapid.MapOfN(rapid.StringMatching(`[A-Z_][A-Z0-9_]{0,5}`), text, 0, 3).Draw(rt, "env")
		grace := field.Duration(rapid.Int64Min(0).Draw(rt, "grace"))
		m.Launchables[0].StopGrace = &grace
		m.Config = rapid.MapOfN(text, anyJSON(3), 0, 3).Draw(rt, "config")
		first, err := m.Canonical()
		if err != nil {
			rt.Fatal(err)
		}
		again, err := manifest.Decode(first)
		if err != nil {
			rt.Fatalf("%s: %v", first, err)
		}
		second, err := again.Canonical()
		if err != nil || manifest.Digest(first) != manifest.Digest(second) {
			rt.Fatalf("%s became %s, %v", first, second, err)
		}
	})
}

// anyJSON also makes numbers that no Go type can hold.
func anyJSON(depth int) *rapid.Generator[any] {
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,4})?`)
	text := rapid.StringN(0, 20, 40)
	scalar := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Map(number, func(s string) any { return json.Number(s) }), rapid.Map(text,
			func(s string) any { return s }),
	)
	if depth == 0 {
		return scalar
	}
	return rapid.OneOf(scalar,
		rapid.Map(rapid.SliceOfN(anyJSON(depth-1), 0, 3), func(l []any) any { return l }),
		rapid.Map(rapid.MapOfN(text, anyJSON(depth-1), 0, 3), func(m map[string]any) any { return m }))
}

// A number in config is stored, and written into the pod's file, with exactly its digits.
func TestConfigKeepsNumbers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tree := rapid.MapOfN(rapid.StringMatching(`[a-z]{1,5}`), anyJSON(3), 1, 3).Draw(rt, "config")
		config, err := json.Marshal(tree)
		if err != nil {
			rt.Fatal(err)
		}
		m, err := manifest.Decode(
			[]byte(strings.Replace(least, `"version":1,`, `"version":1,"config":`+string(config)+`,`, 1)))
		if err != nil {
			rt.Fatal(err)
		}
		if kept, err := json.Marshal(m.Config); err != nil || string(kept) != string(config) {
			rt.Fatalf("%s became %s, %v", config, kept, err)
		}
		canonical, err := m.Canonical()
		if err != nil || !strings.Contains(string(canonical), `"config":`+string(config)) {
			rt.Fatalf("%s is not in %s, %v", config, canonical, err)
		}
	})
}

func TestUse(t *testing.T) {
	m := decode(t, full)
	grace := field.Duration(time.Minute)
	m.Launchables = append(m.Launchables,
		manifest.Launchable{Resources: manifest.Resources{CPU: 1, Memory: 2}, StopGrace: &grace}, manifest.Launchable{})
	if got := m.Resources(); got != (manifest.Usage{CPU: 501, Memory: 1048578, PIDs: 3 * manifest.DefaultPIDs}) {
		t.Errorf("resources are %+v", got)
	}
	if got := m.Grace(); got != time.Minute {
		t.Errorf("grace is %s", got)
	}
	if got := m.PortMap(); !maps.Equal(got, map[string]int{"http": 8080}) {
		t.Errorf("ports are %v", got)
	}
	if got := decode(t, least).Grace(); got != manifest.DefaultStopGrace {
		t.Errorf("default grace is %s", got)
	}
}

func TestDecodeReportsPathsFromTheTop(t *testing.T) {
	_, err := manifest.Decode([]byte(strings.Replace(full, `"cpu":500`, `"cpu":"x"`, 1)))
	want := `launchables[0].resources.cpu: "x" is not valid; allowed: thousandths of a core as a whole number, or cores as text, such as "500m" or "1.5"`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// The canonical form does not have fields that the user left out.
func TestDefaultsAreNotWritten(t *testing.T) {
	canonical, err := decode(t, least).Canonical()
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(canonical, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ports", "health", "labels"} {
		if _, written := fields[name]; written {
			t.Errorf("%s is written", name)
		}
	}
	if strings.Contains(string(canonical), "stop_grace") || strings.Contains(string(canonical), "resources") {
		t.Errorf("defaults are written: %s", canonical)
	}
}

// If min_ready is absent, the default is the same for manifests with and without a check.
func TestReadyAfter(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		least: 10 * time.Second, allTCP: 10 * time.Second, full: 0, all: time.Second, allReady: 2 * time.Second,
		strings.Replace(least, `"version":1,`, `"version":1,"min_ready":"0s",`, 1): 0,
	} {
		if got := decode(t, text).ReadyAfter(); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestStopsItself(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		``:                 0,
		`"disconnect": {}`: 0,
		`"disconnect": {"stop_after": "2562047h"}, "hooks": {"before_stop": {"path": "bin/x", "timeout": "2562047h"}}`: math.MaxInt64 - 1,
		`"disconnect": {"stop_after": "30s"}`:                                                               40 * time.Second,
		`"disconnect": {"stop_after": "30s"}, "hooks": {"before_stop": {"path": "bin/x"}}`:                  100 * time.Second,
		`"disconnect": {"stop_after": "30s"}, "hooks": {"before_stop": {"path": "bin/x", "timeout": "5s"}}`: 45 * time.Second,
		`"disconnect": {"stop_after": "30s"}, "hooks": {"after_stop": {"path": "bin/x", "timeout": "5s"}}`:  40 * time.Second,
	} {
		var m manifest.Manifest
		if err := json.Unmarshal([]byte("{"+text+"}"), &m); err != nil {
			t.Fatal(err)
		}
		if got, ever := m.StopsItself(); got != want || ever != (want > 0) {
			t.Errorf("%s: %s, %t; want %s", text, got, ever, want)
		}
	}
}
