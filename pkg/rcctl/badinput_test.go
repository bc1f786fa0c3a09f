package rcctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/document"
)

// goodDocument is valid. Each case below spoils one thing in it.
const goodDocument = `name: web
replicas: 3
node_selector: rack in (a,b)
labels: {team: shop}
pod:
  version: 1
  id: web
  launchables:
  - name: server
    artifact:
      kind: tar
      url: https://files.example/web.tar.gz
      sha256: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
    env: {MODE: fast}
    stop_grace: 5s
  ports:
  - {name: http, port: 8080}
  health:
    http: {port: http, path: /health}
    interval: 2s
`

// spoil replaces the text old in goodDocument by the text new.
type spoil struct{ old, new string }

// badDocument is a document that must change nothing. wants are the field, the value (if there is one) and the allowed
// values. All of them must be in the output.
type badDocument struct {
	name  string
	spoil spoil
	whole string // the whole document, instead of spoil
	wants []string
}

func badDocuments() []badDocument {
	return []badDocument{
		{
			name: "unknown field", spoil: spoil{"replicas: 3", "replica: 3"},
			wants: []string{"replica: unknown field", "replica_groups, replicas"},
		},
		{
			name: "unknown field, nested", spoil: spoil{"kind: tar", "kind: tar\n      digest: x"},
			wants: []string{
				"pod.launchables[0].artifact.digest: unknown field", "kind, path, platform, ref, sha256, url",
			},
		},
		{
			name: "field in upper case", spoil: spoil{"replicas: 3", "Replicas: 3"},
			wants: []string{"Replicas: unknown field", "replicas"},
		},
		{
			name: "wrong type", spoil: spoil{"replicas: 3", `replicas: "three"`},
			wants: []string{"replicas:", `"three"`, "a whole number"},
		},
		{
			name: "fraction", spoil: spoil{"replicas: 3", "replicas: 2.5"},
			wants: []string{"replicas:", "2.5", "a whole number"},
		},
		{
			name: "list for a map", spoil: spoil{"labels: {team: shop}", "labels: [team]"},
			wants: []string{"labels:", "a list", "a map"},
		},
		{
			name: "bare truth for a string", spoil: spoil{"{team: shop}", "{team: yes}"},
			wants: []string{"labels.team:", "true", "a string; put it in quotes"},
		},
		{
			name: "negative replicas", spoil: spoil{"replicas: 3", "replicas: -1"},
			wants: []string{"replicas:", "-1", "from 0 to 10000"},
		},
		{
			name: "too many replicas", spoil: spoil{"replicas: 3", "replicas: 10001"},
			wants: []string{"replicas:", "10001", "from 0 to 10000"},
		},
		{
			name: "replicas beyond any integer", spoil: spoil{"replicas: 3", "replicas: 99999999999999999999"},
			wants: []string{"replicas:", "100000000000000000000", "a whole number"},
		},
		{
			name:  "both kinds of replicas",
			spoil: spoil{"replicas: 3", "replicas: 3\nreplica_groups: [{role: a, count: 1}]"},
			wants: []string{"replicas:", "replicas together with replica_groups", "exactly one"},
		},
		{
			name: "no replicas", spoil: spoil{"replicas: 3\n", ""},
			wants: []string{"replicas: missing", "exactly one of replicas and replica_groups"},
		},
		{
			name:  "duplicate role",
			spoil: spoil{"replicas: 3", "replica_groups: [{role: a, count: 1}, {role: a, count: 2}]"},
			wants: []string{"replica_groups[1].role:", `"a"`, "no other group has"},
		},
		{
			name: "group without count", spoil: spoil{"replicas: 3", "replica_groups: [{role: a}]"},
			wants: []string{"replica_groups[0].count: missing", "from 0 to 10000"},
		},
		{
			name:  "groups too large together",
			spoil: spoil{"replicas: 3", "replica_groups: [{role: a, count: 9000}, {role: b, count: 9000}]"},
			wants: []string{"replica_groups:", "18000 replicas", "at most 10000"},
		},
		{name: "missing pod", whole: "name: web\nreplicas: 1\n", wants: []string{"pod: missing", "the pod's manifest"}},
		{
			name: "missing name", spoil: spoil{"name: web\n", ""},
			wants: []string{"name: missing", "1 to 63 lower-case letters"},
		},
		{
			name: "name too long", spoil: spoil{"name: web", "name: " + strings.Repeat("w", 64)},
			wants: []string{"name:", strings.Repeat("w", 64), "1 to 63"},
		},
		{
			name: "upper-case name", spoil: spoil{"name: web", "name: Web"},
			wants: []string{"name:", `"Web"`, "lower-case"},
		},
		{
			name: "name with a slash", spoil: spoil{"name: web", "name: web/../x"},
			wants: []string{"name:", `"web/../x"`, "lower-case"},
		},
		{
			name: "bad selector", spoil: spoil{"rack in (a,b)", "rack in a,b"},
			wants: []string{"node_selector:", `"rack in a,b"`, "a Kubernetes label selector"},
		},
		{
			name: "spread over no key", spoil: spoil{"replicas: 3", "replicas: 3\nspread: rack a"},
			wants: []string{"spread:", `"rack a"`, "the key of a node label", "such as rack"},
		},
		{
			name: "spread over a list", spoil: spoil{"replicas: 3", "replicas: 3\nspread: [rack, zone]"},
			wants: []string{"spread:", "a list", "the key of a node label, or a map"},
		},
		{
			name: "label key", spoil: spoil{"{team: shop}", "{te am: shop}"},
			wants: []string{"labels.te am:", `"te am=shop"`, "Kubernetes' syntax"},
		},
		{
			name: "label value", spoil: spoil{"{team: shop}", "{team: a/b}"},
			wants: []string{"labels.team:", `"team=a/b"`, "Kubernetes' syntax"},
		},
		{
			name: "reserved label", spoil: spoil{"labels: {team: shop}", "pod_labels: {replication_controller_id: x}"},
			wants: []string{"pod_labels.replication_controller_id:", `"x"`, "rcfarm sets this one"},
		},
		{
			name: "strategy", spoil: spoil{"replicas: 3", "replicas: 3\nstrategy: best"},
			wants: []string{"strategy:", `"best"`, "dynamic or static"},
		},
		{
			name: "node loss action", spoil: spoil{"replicas: 3", "replicas: 3\nnode_loss: {action: drop}"},
			wants: []string{"node_loss.action:", `"drop"`, "replace or keep"},
		},
		{
			name: "negative minimum", spoil: spoil{"replicas: 3", "replicas: 3\nmin_available: -2"},
			wants: []string{"min_available:", "-2", "from 0 to 10000"},
		},
		{name: "version", spoil: spoil{"version: 1", "version: 2"}, wants: []string{"pod.version:", "2", "allowed: 1"}},
		{
			name: "missing launchables",
			spoil: spoil{
				goodDocument[strings.Index(goodDocument, "  launchables"):strings.Index(goodDocument, "  ports")], "",
			}, wants: []string{
				"pod.launchables: missing", "1 to 16 entries",
			},
		},
		{
			name: "duplicate launchable",
			spoil: spoil{
				"  launchables:\n",
				"  launchables:\n  - name: server\n    artifact: {kind: tar, url: file:///a, sha256: " +
					strings.Repeat("b", 64) + "}\n",
			},
			wants: []string{"pod.launchables[1].name:", `"server"`, "no other entry has"},
		},
		{
			name: "artifact kind", spoil: spoil{"kind: tar", "kind: docker"},
			wants: []string{"pod.launchables[0].artifact.kind:", `"docker"`, "tar"},
		},
		{
			name: "missing digest", spoil: spoil{"      sha256: " + strings.Repeat("a", 64) + "\n", ""},
			wants: []string{"artifact.sha256: missing", "64 lower-case hex digits"},
		},
		{
			name: "bad digest", spoil: spoil{strings.Repeat("a", 64), strings.Repeat("a", 63) + "G"},
			wants: []string{"artifact.sha256:", strings.Repeat("a", 63) + "G", "64 lower-case hex digits"},
		},
		{
			name: "digest of digits without quotes", spoil: spoil{strings.Repeat("a", 64), strings.Repeat("1", 64)},
			wants: []string{"artifact.sha256:", "the number", "put it in quotes"},
		},
		{
			name: "missing url", spoil: spoil{"      url: https://files.example/web.tar.gz\n", ""},
			wants: []string{"artifact.url: missing", "file:///absolute/path or https://host/path"},
		},
		{
			name: "http url", spoil: spoil{"https://", "http://"},
			wants: []string{
				"artifact.url:", `"http://files.example/web.tar.gz"`,
				"file:///absolute/path or https://host/path",
			},
		},
		{
			name: "url scheme", spoil: spoil{"https://", "ftp://"},
			wants: []string{"artifact.url:", `"ftp://files.example/web.tar.gz"`, "https://host/path"},
		},
		{
			name: "relative file url", spoil: spoil{"https://files.example/", "file://./"},
			wants: []string{"artifact.url:", `"file://./web.tar.gz"`, "file:///absolute/path"},
		},
		{
			name: "url without scheme", spoil: spoil{"https://files.example/", "/srv/"},
			wants: []string{"artifact.url:", `"/srv/web.tar.gz"`, "file:///absolute/path"},
		},
		{
			name: "env name", spoil: spoil{"{MODE: fast}", "{MY-MODE: fast}"},
			wants: []string{"pod.launchables[0].env.MY-MODE:", `"MY-MODE"`, "letters, digits and '_'"},
		},
		{
			name: "env value that is a number", spoil: spoil{"{MODE: fast}", "{MODE: 1}"},
			wants: []string{"pod.launchables[0].env.MODE:", "the number 1", "put it in quotes"},
		},
		{
			name: "duration without unit", spoil: spoil{"stop_grace: 5s", "stop_grace: 5"},
			wants: []string{"stop_grace:", "5", "with a unit"},
		},
		{
			name: "bad duration", spoil: spoil{"stop_grace: 5s", "stop_grace: 5 seconds"},
			wants: []string{"stop_grace:", `"5 seconds"`, "with a unit"},
		},
		{
			name: "negative duration", spoil: spoil{"stop_grace: 5s", "stop_grace: -5s"},
			wants: []string{"stop_grace:", `"-5s"`, "zero or more"},
		},
		{
			name: "duplicate port name", spoil: spoil{"port: 8080}", "port: 8080}\n  - {name: http, port: 8081}"},
			wants: []string{"pod.ports[1].name:", `"http"`, "no other entry has"},
		},
		{
			name: "duplicate port number", spoil: spoil{"port: 8080}", "port: 8080}\n  - {name: admin, port: 8080}"},
			wants: []string{"pod.ports[1].port:", `"8080"`, "no other entry has"},
		},
		{
			name: "port out of range", spoil: spoil{"port: 8080", "port: 70000"},
			wants: []string{"pod.ports[0].port:", "70000", "from 1 to 65535"},
		},
		{
			name: "port zero", spoil: spoil{"port: 8080", "port: 0"},
			wants: []string{"pod.ports[0].port:", "0", "from 1 to 65535"},
		},
		{
			name: "unknown port in the health check", spoil: spoil{"http: {port: http", "http: {port: web"},
			wants: []string{"pod.health.http.port:", `"web"`, "one of the pod's ports: http"},
		},
		{
			name: "both http and tcp", spoil: spoil{"path: /health}", "path: /health}\n    tcp: {port: http}"},
			wants: []string{"pod.health:", "http together with tcp", "exactly one of http, tcp and script"},
		},
		{
			name: "neither http nor tcp", spoil: spoil{"    http: {port: http, path: /health}\n", ""},
			wants: []string{"pod.health: missing", "exactly one of http, tcp and script"},
		},
		{
			name: "relative health path", spoil: spoil{"/health", "health"},
			wants: []string{"pod.health.http.path:", `"health"`, "starts with '/'"},
		},
		{
			name: "health path that climbs", spoil: spoil{"/health", "/../../etc"},
			wants: []string{"pod.health.http.path:", `"/../../etc"`, "'..' segments"},
		},
		{
			name: "health path with a line break", spoil: spoil{"/health", `"/health\r\nHost: x"`},
			wants: []string{"pod.health.http.path:", `"/health\r\nHost: x"`, "without spaces"},
		},
		{
			name: "zero interval", spoil: spoil{"interval: 2s", "interval: 0s"},
			wants: []string{"pod.health.interval:", `"0s"`, "1s or more"},
		},
		{
			name: "interval below Consul's", spoil: spoil{"interval: 2s", "interval: 10ms"},
			wants: []string{"pod.health.interval:", `"10ms"`, "1s or more"},
		},
		{
			name: "negative resources", spoil: spoil{"stop_grace: 5s", "resources: {cpu: -1}"},
			wants: []string{"resources.cpu:", "-1", "thousandths of a core"},
		},
		{
			name: "duplicate YAML key", spoil: spoil{"replicas: 3", "replicas: 3\nreplicas: 4"},
			wants: []string{"replicas: a second time (line 3)", "each key once"},
		},
		{
			name: "duplicate JSON key", whole: `{"name": "web", "name": "api"}`,
			wants: []string{"name: a second time", "each key once"},
		},
		{name: "two documents", whole: goodDocument + "---\n" +
			goodDocument, wants: []string{"document:", "2 documents", "one YAML or JSON document"}},
		{name: "empty document", whole: "", wants: []string{"document: missing", "one YAML or JSON document"}},
		{
			name: "only comments", whole: "---\n# nothing\n\n",
			wants: []string{"document: missing", "one YAML or JSON document"},
		},
		{name: "null", whole: "null", wants: []string{"document:", "null", "a map with the fields"}},
		{name: "a list", whole: "- name: web", wants: []string{"document:", "a list", "a map with the fields"}},
		{name: "not YAML", whole: "name: [web\nreplicas: 3", wants: []string{"document:", "line 1", "YAML or JSON"}},
		{name: "binary", whole: "\x00\x01\xff", wants: []string{"document:", "YAML or JSON"}},
		{
			name: "not a number", spoil: spoil{"replicas: 3", "replicas: .nan"},
			wants: []string{"document:", "NaN", "YAML or JSON"},
		},
		{
			name: "file too large", whole: goodDocument + "# " +
				strings.Repeat("x", document.MaxBytes),
			wants: []string{"document:", "more than 1048576 bytes", "at most 1048576 bytes"},
		},
		{
			name:  "manifest too large",
			spoil: spoil{"env: {MODE: fast}", "args: [" + strings.Repeat(strings.Repeat("x", 4000)+", ", 17) + "]"},
			wants: []string{"pod:", "bytes of canonical JSON", "at most 65536 bytes"},
		},
		{
			name: "two mistakes are two lines", spoil: spoil{"replicas: 3", "replicas: -3\nstrategy: best"},
			wants: []string{"replicas: -3", "\nrc.yaml: strategy: ", "dynamic or static"},
		},
	}
}

// A document that is not valid changes nothing (P9): rcctl writes no key, not even the schema.
func TestBadDocuments(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	client, prefix := consultest.Client(t)
	for _, tt := range badDocuments() {
		t.Run(tt.name, func(t *testing.T) {
			text := tt.whole
			if tt.spoil.old != "" {
				if !strings.Contains(goodDocument, tt.spoil.old) {
					t.Fatalf("the good document has no %q", tt.spoil.old)
				}
				text = strings.Replace(goodDocument, tt.spoil.old, tt.spoil.new, 1)
			}
			if err := os.WriteFile(filepath.Join(dir, "rc.yaml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			code, out, errs := run(t, prefix, "", "apply", "-f", "rc.yaml")
			if code != exitUsage || out != "" {
				t.Errorf("exit code %d, output %q", code, out)
			}
			for _, want := range append(tt.wants, "rc.yaml: ", "\nnothing was written\n") {
				if !strings.Contains(errs, want) {
					t.Errorf("no %q in\n%s", want, errs)
				}
			}
			if keys := keysBelow(t, client, prefix); len(keys) > 0 {
				t.Errorf("written: %v", keys)
			}
		})
	}
}

// Command lines that make no sense. None of them writes anything.
func TestBadCommandLines(t *testing.T) {
	client, prefix := consultest.Client(t)
	for _, tt := range []struct {
		args  []string
		wants []string
	}{
		{[]string{"rc", "scale", "web", "-1"}, []string{"N:", `"-1"`, "from 0 to 10000", "nothing was written"}},
		{[]string{"rc", "scale", "web", "many"}, []string{"N:", `"many"`, "from 0 to 10000", "nothing was written"}},
		{[]string{"rc", "scale", "web", "10001"}, []string{"N:", `"10001"`, "from 0 to 10000"}},
		{[]string{"rc", "scale", "web", "1.5"}, []string{"N:", `"1.5"`, "from 0 to 10000"}},
		{[]string{"rc", "scale", "web"}, []string{"N: missing", "from 0 to 10000"}},
		{[]string{"rc", "scale"}, []string{"REF: missing", "the name of an rc"}},
		{[]string{"rc", "scale", "web", "1", "2"}, []string{`"2"`, "REF and N"}},
		{[]string{"rc", "get"}, []string{"REF: missing", "the name of an rc"}},
		{[]string{"rc", "get", "Web"}, []string{"REF:", `"Web"`, "the name of an rc"}},
		{[]string{"rc", "get", "../names"}, []string{"REF:", `"../names"`, "the name of an rc"}},
		{[]string{"rc", "get", "a", "b"}, []string{`"b"`, "one REF"}},
		{[]string{"rc", "list", "-o", "xml"}, []string{"--output:", `"xml"`, "table, json or yaml"}},
		{[]string{"pods", "-o", ""}, []string{"--output:", "table, wide, json or yaml"}},
		{[]string{"pods", "--rc", "Web"}, []string{"--rc:", `"Web"`, "the name of an rc"}},
		{[]string{"pods", "--node", ""}, []string{"--node: missing", "the name of a node"}},
		{[]string{"nodes", "n1"}, []string{`"n1"`, "allowed: none"}},
		{[]string{"apply"}, []string{"--file: missing", "the name of a file", "nothing was written"}},
		{[]string{"apply", "rc.yaml"}, []string{"--file: missing", "the name of a file"}},
		{[]string{"apply", "-f"}, []string{"-f: missing value"}},
		{[]string{"apply", "-f", "-", "more"}, []string{`"more"`, "allowed: none"}},
		{[]string{"apply", "-f", "a.yaml", "-f", "b.yaml"}, []string{"--file: given twice", "allowed: once"}},
		{
			[]string{"apply", "-f", "/does/not/exist"},
			[]string{"/does/not/exist: open: no such file", "nothing was written"},
		},
		{[]string{"apply", "-f", "/"}, []string{"/: read: is a directory", "nothing was written"}},
		{[]string{"apply", "-f", "-", "--timeout", "0s"}, []string{"--timeout:", `"0s"`, "greater than zero"}},
		{[]string{"apply", "-f", "-", "--timeout", "soon"}, []string{"--timeout:", `"soon"`, "greater than zero"}},
		{[]string{"apply", "--force", "-f", "-"}, []string{"--force: unknown flag"}},
		{[]string{"rc", "delete"}, []string{"REF: missing", "nothing was written"}},
		{[]string{"rc", "remove", "web"}, []string{`"remove"`, allowedIn("rc")}},
		{[]string{"rc", "disable"}, []string{"REF: missing", "the name of an rc", "nothing was written"}},
		{[]string{"rc", "disable", "web", "api"}, []string{`"api"`, "one REF", "nothing was written"}},
		{[]string{"rc", "disable", "web", "--wait"}, []string{"--wait: unknown flag", "nothing was written"}},
		{[]string{"rc", "enable", "Web"}, []string{"REF:", `"Web"`, "the name of an rc", "nothing was written"}},
		{
			[]string{"rc", "enable", "web", "--timeout", "0s"},
			[]string{"--timeout:", `"0s"`, "greater than zero", "nothing was written"},
		},
		{[]string{"rc", "explain"}, []string{"REF: missing", "the name of an rc"}},
		{
			[]string{"rc", "status", "web", "--until", "Converged"},
			[]string{"--until:", `"Converged"`, "together with --watch"},
		},
		{
			[]string{"rc", "status", "web", "--watch", "--until", "Done"},
			[]string{"--until:", `"Done"`, "Converged, Gone, "},
		},
		{
			[]string{"rc", "status", "web", "--watch", "--timeout", "5s"},
			[]string{"--timeout:", `"5s"`, "together with --until"},
		},
		{
			[]string{"rc", "status", "web", "--watch", "--until", "Gone", "--timeout", "-5s"},
			[]string{"--timeout:", `"-5s"`, "greater than zero"},
		},
		{
			[]string{"rc", "status", "web", "--watch", "-o", "json"},
			[]string{"--output:", `"json"`, "table, with --watch"},
		},
		{[]string{"node", "drain"}, []string{"NODE: missing", "the name of a node", "nothing was written"}},
		{[]string{"node", "drain", "N1"}, []string{"NODE:", `"N1"`, "the name of a node", "nothing was written"}},
		{[]string{"node", "drain", "n1", "n2"}, []string{`"n2"`, "one NODE", "nothing was written"}},
		{
			[]string{"node", "drain", "n1", "--deadline", "soon"},
			[]string{"--deadline:", `"soon"`, "zero or more", "nothing was written"},
		},
		{[]string{"node", "drain", "n1", "--deadline", "-1s"}, []string{"--deadline:", `"-1s"`, "zero or more"}},
		{[]string{"node", "drain", "n1", "--timeout", "0"}, []string{"--timeout:", `"0"`, "greater than zero"}},
		{
			[]string{"node", "undrain", "../n1"},
			[]string{"NODE:", `"../n1"`, "the name of a node", "nothing was written"},
		},
		{[]string{"node", "cordon"}, []string{"NODE: missing", "nothing was written"}},
		{[]string{"node", "uncordon", "n1", "n2"}, []string{`"n2"`, "one NODE", "nothing was written"}},
		{[]string{"label"}, []string{"KIND: missing", "pod, node or rc", "nothing was written"}},
		{[]string{"label", "farm", "f1"}, []string{"KIND:", `"farm"`, "pod, node or rc", "nothing was written"}},
		{[]string{"label", "node"}, []string{"NODE: missing", "nothing was written"}},
		{[]string{"label", "node", "n1", "a=b", "--wait"}, []string{"--wait", "for a pod only"}},
		{[]string{"label", "pod", "web-main-0", "pod_id=x"}, []string{`"pod_id=x"`, "any other key"}},
		{[]string{"label", "node", "n1", "rack"}, []string{"LABEL:", `"rack"`, "KEY=VALUE", "nothing was written"}},
		{[]string{"label", "node", "n1", "rack=a b"}, []string{"LABEL:", `"rack=a b"`, "Kubernetes' syntax"}},
		{[]string{"label", "node", "n1", "=a"}, []string{"LABEL:", `"=a"`, "KEY=VALUE"}},
		{[]string{"label", "node", "n1", "rack=a", "rack-"}, []string{"LABEL:", `"rack-"`, "each key once"}},
		{[]string{"node", "sweep"}, []string{"NODE: missing", "nothing was written"}},
		{[]string{"node", "sweep", "n1", "--yes"}, []string{"--yes: unknown flag"}},
		{[]string{"node"}, []string{allowedIn("node")}},
		{[]string{"pod", "forget"}, []string{"POD: missing", "web-main-0", "nothing was written"}},
		{[]string{"pod", "forget", "web/main.0"}, []string{"POD:", `"web/main.0"`, "as rcctl pods shows it"}},
		{[]string{"pod", "forget", "web-main-0", "--node", ""}, []string{"--node: missing", "the name of a node"}},
		{[]string{"pod", "forget", "a", "b"}, []string{`"b"`, "one POD"}},
		{[]string{"pod"}, []string{allowedIn("pod")}},
		{[]string{"farm"}, []string{allowedIn("farm")}},
		{[]string{"farm", "resume", "now"}, []string{`"now"`, "allowed: none", "nothing was written"}},
		{[]string{"farms", "f1"}, []string{`"f1"`, "allowed: none"}},
		{[]string{"farms", "-o", "csv"}, []string{"--output:", `"csv"`, "table, wide, json or yaml"}},
		{[]string{"service", "list", "-o", "wide"}, []string{"--output:", `"wide"`, "table, json or yaml"}},
		{[]string{"audit", "web"}, []string{`"web"`, "allowed: none"}},
		{[]string{"audit", "--since", "yesterday"}, []string{"--since:", `"yesterday"`, "90m", "2026-01-02T15:04:05Z"}},
		{[]string{"audit", "--since", "-1h"}, []string{"--since:", `"-1h"`, "90m"}},
		{[]string{"audit", "--since", "1h", "--until", "2h"}, []string{"--until:", `"2h"`, "a moment after --since"}},
		{[]string{"audit", "--rc", "Web"}, []string{"--rc:", `"Web"`, "the name of an rc"}},
		{[]string{"audit", "--node", ""}, []string{"--node: missing", "the name of a node"}},
		{[]string{"rc"}, []string{allowedIn("rc")}},
		{[]string{"aply"}, []string{`"aply"`, "apply, "}},
		{[]string{}, []string{"command: missing", "apply, "}},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			code, out, errs := run(t, prefix, goodDocument, tt.args...)
			if code != exitUsage || out != "" {
				t.Errorf("exit code %d, output %q", code, out)
			}
			for _, want := range append(tt.wants, "rcctl") {
				if !strings.Contains(errs, want) &&
					(want != "rcctl" || !strings.Contains(errs, "nothing was written")) {
					t.Errorf("no %q in\n%s", want, errs)
				}
			}
			if keys := keysBelow(t, client, prefix); len(keys) > 0 {
				t.Errorf("written: %v", keys)
			}
		})
	}
}

// A prefix that could mix two clusters is refused before anything is read.
func TestBadPrefix(t *testing.T) {
	for _, prefix := range []string{"", "rcfarm", "/rcfarm/", "rcfarm//", "/"} {
		code, _, errs := run(t, prefix, goodDocument, "apply", "-f", "-")
		if code != exitUsage || !strings.Contains(errs, "--prefix: ") || !strings.Contains(errs, `ends with "/"`) ||
			!strings.Contains(errs, "nothing was written") {
			t.Errorf("%q: exit code %d\n%s", prefix, code, errs)
		}
	}
}

// rcctl accepts goodDocument, which the cases above spoil.
func TestGoodDocument(t *testing.T) {
	client, prefix := consultest.Client(t)
	code, out, errs := run(t, prefix, goodDocument, "apply", "-f", "-")
	if code != exitDone || !strings.Contains(out, "rc web created") || errs != "" {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if len(keysBelow(t, client, prefix)) == 0 {
		t.Error("nothing was written")
	}
}
