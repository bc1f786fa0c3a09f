package trust_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/trust"
)

type node struct {
	t               *testing.T
	policy, signers string // files
}

func newNode(t *testing.T, policy, signers string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{t: t, policy: filepath.Join(dir, "policy.yaml"), signers: filepath.Join(dir, "allowed_signers")}
	n.write(n.policy, strings.ReplaceAll(policy, "SIGNERS", n.signers))
	n.write(n.signers, signers)
	return n
}

func (n *node) write(file, text string) {
	n.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// key leaves out the comment.
func key(t *testing.T, name string) string {
	t.Helper()
	fields := strings.Fields(read(t, "key_"+name+".pub"))
	return fields[0] + " " + fields[1]
}

const strict = `
require_signature: true
allowed_signers: SIGNERS
rules:
- {signers: [alice@example.com], pods: [web, "shop-*"]}
- {signers: ["bob@example.com", carol@example.com], pods: ["?pi"]}
- {signers: ["*"], pods: [sandbox]}
`

func TestCheck(t *testing.T) {
	message := read(t, "manifest.json")
	now := time.Date(2030, 6, 15, 12, 0, 0, 0, time.UTC)
	alice, bob := "alice@example.com "+key(t, "ed25519"), "bob@example.com "+key(t, "rsa")
	byAlice, byBob := read(t, "ed25519.sig"), read(t, "rsa.sig")
	const lenient = "require_signature: false\nallowed_signers: SIGNERS\nrules: [{signers: [alice@example.com], " +
		"pods: ['*']}]"
	for _, tt := range []struct {
		name, policy, signers, pod, signature string
		want                                  string // part of the reason; empty: it may run
	}{
		{"rule for the pod", strict, alice, "web", byAlice, ""},
		{"rule with a pattern", strict, alice, "shop-cart", byAlice, ""},
		{"pattern of one character", strict, bob, "api", byBob, ""},
		{"pattern that is too short", strict, bob, "apis", byBob, "no rule lets bob@example.com run pods called " +
			"apis; sign it with the key of somebody who may, or add a rule"},
		{"rule for everybody", strict, bob, "sandbox", byBob, ""},
		{"other's pod", strict, alice + "\n" + bob, "web", byBob, "no rule lets bob@example.com run pods called web"},
		{"unsigned", strict, alice, "web", "", "it is not signed; sign it: rcctl apply -f FILE --sign-key KEY"},
		{"unknown key", strict, alice, "web", byBob, "it is signed with ssh-rsa SHA256:"},
		{
			"other manifest", strict, alice, "web", sign(t, "key_ed25519", "x"),
			"the signature was made for another manifest",
		},
		{
			"other namespace", strict, alice, "web", read(t, "namespace.sig"),
			`namespace "file"; allowed: rcfarm-manifest`,
		},
		{"certificate", strict, alice, "web", read(t, "cert.sig"), "the key is a ssh-ed25519-cert-v01@openssh.com"},
		{"no signature", strict, alice, "web", "hello", "this is no SSH signature"},
		{"comments and empty lines", strict, "# signers\n\n  " + alice + " laptop of alice\n", "web", byAlice, ""},
		{"quoted principals", strict, `"x@example.com,alice@example.com" ` + key(t, "ed25519"), "web", byAlice, ""},
		{"principals by pattern", strict, "*@example.com " + key(t, "ed25519"), "web", byAlice, ""},
		{
			"principals by pattern, but", strict, "*@example.com,!alice@example.com " + key(t, "ed25519"), "web",
			byAlice, "no rule lets",
		},
		{
			"second line of the same key", strict, "bob@example.com " + key(t, "ed25519") + "\n" + alice,
			"web", byAlice, "",
		},
		{
			"right namespace", strict, `alice@example.com namespaces="git,rcfarm-*" ` + key(t, "ed25519"),
			"web", byAlice, "",
		},
		{
			"wrong namespace", strict, `alice@example.com namespaces="git" ` + key(t, "ed25519"), "web", byAlice,
			`its key is for the namespaces "git", not for rcfarm-manifest`,
		},
		{
			"forbidden namespace", strict, `alice@example.com namespaces="*,!rcfarm-*" ` + key(t, "ed25519"), "web",
			byAlice, "its key is for the namespaces",
		},
		{
			"valid", strict, `alice@example.com valid-after="20300101Z",valid-before="20310101Z" ` + key(t, "ed25519"),
			"web", byAlice, "",
		},
		{
			"valid to the second", strict,
			`alice@example.com valid-after="20300615120000Z",VALID-BEFORE="20300615120001Z" ` +
				key(t, "ed25519"), "web", byAlice, "",
		},
		{
			"not yet", strict, `alice@example.com valid-after="20300615120001Z" ` + key(t, "ed25519"), "web", byAlice,
			"its key is not valid before 2030-06-15T12:00:01Z",
		},
		{
			"not any more", strict, `alice@example.com valid-before=203006151159Z ` + key(t, "ed25519"), "web", byAlice,
			"its key is not valid after 2030-06-15T11:59:00Z",
		},
		{
			"expired line and a good one", strict, `alice@example.com valid-before=2029 ` + key(t, "ed25519"),
			"web", byAlice, "",
		},
		{"unsigned where that is allowed", lenient, alice, "web", "", ""},
		{"signed where that is not required", lenient, alice, "web", byAlice, ""},
		{
			"wrongly signed where that is not required", lenient, alice, "web", sign(t, "key_ed25519", "x"),
			"the signature was made for another manifest",
		},
		{"unknown key where that is not required", lenient, alice, "web", byBob, "which is not in "},
		{"no signers at all", "require_signature: false", "", "web", "hello", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Contains(tt.signers, "valid-before=2029 ") {
				tt.signers = strings.Replace(tt.signers, "=2029", "=20290101", 1) +
					"\nalice@example.com " + key(t, "ed25519")
			}
			p, err := trust.Load(newNode(t, tt.policy, tt.signers).policy)
			if err != nil {
				t.Fatal(err)
			}
			err = p.Check(now, &manifest.Manifest{ID: tt.pod}, []byte(message), tt.signature)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (!errors.Is(err, trust.ErrRefused) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

// A rule can limit the users, node paths and resources of a signer's pods.
func TestRuleBounds(t *testing.T) {
	const message = "x"
	signature := sign(t, "key_ed25519", message)
	tar := manifest.Launchable{
		Name:     "main",
		Artifact: manifest.Artifact{Kind: manifest.ArtifactTar, URL: "https://example.com/a"},
	}
	with := func(change func(*manifest.Launchable)) *manifest.Manifest {
		l := tar
		change(&l)
		return &manifest.Manifest{ID: "web", Launchables: []manifest.Launchable{l}}
	}
	as := func(user string) *manifest.Manifest { return with(func(l *manifest.Launchable) { l.User = user }) }
	from := func(url string) *manifest.Manifest {
		return with(func(l *manifest.Launchable) { l.Artifact.URL = url })
	}
	size := func(cpu manifest.Millicores, memory manifest.Bytes) *manifest.Manifest {
		return with(func(l *manifest.Launchable) { l.Resources = manifest.Resources{CPU: cpu, Memory: memory} })
	}
	exec := with(func(l *manifest.Launchable) {
		l.Artifact = manifest.Artifact{Kind: manifest.ArtifactExec, Path: "/usr/bin/web"}
	})
	of := func(ref string) *manifest.Manifest {
		return with(func(l *manifest.Launchable) {
			pinned := ref + "@sha256:" + strings.Repeat("a", 64)
			l.Artifact = manifest.Artifact{Kind: manifest.ArtifactImage, Ref: pinned}
		})
	}
	image, ofDocker := of("r.example/team/web:1"), of("docker.io/web:1")
	secret := with(func(*manifest.Launchable) {})
	secret.Config = manifest.Config{"a": []any{map[string]any{"b": map[string]any{manifest.FileKey: "/etc/shadow"}}}}
	hook := with(func(*manifest.Launchable) {})
	hook.Hooks = &manifest.Hooks{AfterStop: &manifest.Hook{Path: "/usr/bin/hook"}}
	check := with(func(*manifest.Launchable) {})
	check.Health = &manifest.Health{Script: &manifest.ScriptCheck{Path: "/usr/bin/check"}}
	two := size(400, 100)
	two.Launchables = append(two.Launchables, two.Launchables[0])
	for _, tt := range []struct {
		name, rule string
		m          *manifest.Manifest
		want       string // part of the reason; empty: it may run
	}{
		{"nothing said", "", as("root"), ""},
		{"no user asked for", "users: []", as(""), ""},
		{
			"no user allowed", "users: []", as("root"),
			`rules[0] lets alice@example.com run pods called web, but not this: launchables[0].user: "root" is not valid; allowed: none`,
		},
		{"another user", "users: [deploy, app-*]", as("app-1"), ""},
		{
			"not that user", "users: [deploy, app-*]", as("root"),
			`launchables[0].user: "root" is not valid; allowed: deploy, app-*`,
		},
		{"no path named", "paths: []", with(func(*manifest.Launchable) {}), ""},
		{"program of the node", "paths: []", exec, `a path of the node: "/usr/bin/web" is not valid; allowed: none`},
		{"this program", "paths: [/usr/bin/web]", exec, ""},
		{
			"file in the configuration", "paths: [/etc/web/*]", secret,
			`a path of the node: "/etc/shadow" is not valid; allowed: /etc/web/*`,
		},
		{"hook", "paths: [/etc/web/*]", hook, `"/usr/bin/hook" is not valid`},
		{"check", "paths: [/etc/web/*]", check, `"/usr/bin/check" is not valid`},
		{
			"directory", "paths: [/etc/web/*]", with(func(l *manifest.Launchable) { l.WorkDir = "/root" }),
			`"/root" is not valid`,
		},
		{"image", "images: [r.example/team/*], paths: []", image, ""},
		{"image of Docker's registry", "images: [r.example/*, docker.io/library/web]", ofDocker, ""},
		{
			"image of another repository", "images: [r.example/teams/*]", image,
			`launchables[0].artifact.ref: "r.example/team/web:1@sha256:` + strings.Repeat("a", 52) +
				`..." is not valid; allowed: r.example/teams/*`,
		},
		{"no image", "images: []", image, "allowed: none"},
		{"archive in place of an image", "images: []", from("https://r.example/a"), ""},
		{"archive", "paths: [/srv/*]", from("file:///srv/a.tar.gz"), ""},
		{"archive elsewhere", "paths: [/srv/*]", from("file:///etc/a.tar.gz"), `"/etc/a.tar.gz" is not valid`},
		{
			"archive by a detour", "paths: [/srv/*]", from("file:///srv/%2e%2e/etc/a.tar.gz"),
			`"/srv/../etc/a.tar.gz" is not valid`,
		},
		{"small enough", "resources: {cpu: 500m, memory: 100}", size(500, 100), ""},
		{
			"too large", "resources: {cpu: 500, memory: 100}", size(501, 100),
			"resources.cpu: 501 is not valid; allowed: thousandths of a core, at most 500 of all launchables together",
		},
		{"too large together", "resources: {cpu: 500}", two, "resources.cpu: 800 is not valid"},
		{
			"without a limit", "resources: {cpu: 500, memory: 100}", size(500, 0),
			"launchables[0].resources.memory: missing; allowed: bytes, at most 100 of all",
		},
		{"processes by default", "resources: {pids: 4096}", with(func(*manifest.Launchable) {}), ""},
		{
			"too many of them", "resources: {pids: 100}", with(func(*manifest.Launchable) {}),
			"resources.pids: 4096 is not valid; allowed: processes and threads, at most 100",
		},
		{"another rule", "users: []}\n- {signers: ['*'], pods: [web], paths: [/x]", as("root"), ""},
	} {
		policy := "require_signature: true\nallowed_signers: SIGNERS\nrules:\n- {signers: [alice@example.com], pods: " +
			"[web], " + tt.rule + "}\n"
		p, err := trust.Load(newNode(t, policy, "alice@example.com "+key(t, "ed25519")).policy)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		err = p.Check(time.Now(), tt.m, []byte(message), signature)
		if tt.want == "" && err != nil || tt.want != "" &&
			(!errors.Is(err, trust.ErrRefused) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

// A policy or file of signers with a mistake is refused as a whole, and the error names the place.
func TestBadPolicies(t *testing.T) {
	good := "alice@example.com " + key(t, "ed25519")
	option := func(o string) string { return "a@b " + o + " " + key(t, "ed25519") }
	for _, tt := range []struct{ name, policy, signers, want string }{
		{"empty", "", good, "document: missing; allowed: one YAML or JSON document: the trust policy of a node"},
		{"two documents", "require_signature: false\n---\nrequire_signature: true", good, "a file with 2 documents"},
		{
			"twice", "require_signature: true\nrequire_signature: false", good,
			"require_signature: a second time (line 2) is not valid; allowed: each key once",
		},
		{
			"unknown field", "require_signatures: true", good,
			"require_signatures: unknown field; allowed: allowed_signers, require_signature, rules",
		},
		{"nothing said", "{}", good, "require_signature: missing; allowed: true or false"},
		{"no signers", "require_signature: true", good, "allowed_signers: missing; allowed: the absolute path"},
		{
			"relative", "require_signature: false\nallowed_signers: a", good,
			`allowed_signers: "a" is not valid; allowed: an absolute path`,
		},
		{
			"no rules", "require_signature: false\nallowed_signers: SIGNERS", good,
			`rules: missing; allowed: 1 to 256 entries; {signers: ["*"], pods: ["*"]} lets every allowed signer run every pod`,
		},
		{
			"rule without signers", "require_signature: true\nallowed_signers: SIGNERS\nrules: [{pods: [web]}]", good,
			"rules[0].signers: missing",
		},
		{
			"rule without pods", "require_signature: true\nallowed_signers: SIGNERS\nrules: [{signers: [a]}]", good,
			"rules[0].pods: missing",
		},
		{
			"pattern of signers",
			"require_signature: true\nallowed_signers: SIGNERS\nrules: [{signers: ['*@b'], pods: [web]}]", good,
			`rules[0].signers[0]: "*@b" is not valid; allowed: a principal such as`,
		},
		{
			"pod in upper case",
			"require_signature: true\nallowed_signers: SIGNERS\nrules: [{signers: [a], pods: [Web]}]",
			good, `rules[0].pods[0]: "Web" is not valid; allowed: a pod id`,
		},
		{"relative path", "require_signature: true\nallowed_signers: SIGNERS\nrules: [{signers: [a], pods: [web], " +
			"paths: [srv/*]}]", good, `rules[0].paths[0]: "srv/*" is not valid; allowed: an absolute path`},
		{"path that leads up", "require_signature: true\nallowed_signers: SIGNERS\nrules: [{signers: [a], pods: " +
			"[web], paths: [/srv/../etc/*]}]", good, `rules[0].paths[0]: "/srv/../etc/*" is not valid`},
		{
			"no user",
			"require_signature: true\nallowed_signers: SIGNERS\nrules: [{signers: [a], pods: [web], users: ['']}]",
			good, `rules[0].users[0]: "" is not valid; allowed: an account`,
		},
		{
			"less than nothing", "require_signature: true\nallowed_signers: SIGNERS\nrules: [{signers: [a], pods: " +
				"[web], resources: {cpu: -1}}]", good,
			`rules[0].resources.cpu: -1 is not valid; allowed: thousandths of a core`,
		},
		{
			"missing file",
			"require_signature: true\nallowed_signers: /nonexistent\nrules: [{signers: [a], pods: [web]}]",
			good, "allowed signers: open /nonexistent",
		},
		{"no key", strict, "# nothing\n", "it lists no key; allowed: PRINCIPALS"},
		{
			"short line", strict, good + "\nalice",
			"line 2: the line is too short; allowed: PRINCIPALS [OPTIONS] KEYTYPE KEY [COMMENT]",
		},
		{"no principals", strict, key(t, "ed25519"), "line 1: no key of a known type"},
		{"open quote", strict, `"a b`, "line 1: a quote is not closed"},
		{"spoiled key", strict, good[:len(good)-8], "line 1: no key of a known type"},
		{
			"certificate", strict, "a@b " + strings.Join(strings.Fields(read(t, "key_cert-cert.pub"))[:2], " "),
			"line 1: the key is a ssh-ed25519-cert-v01@openssh.com",
		},
		{"short key", strict, "a@b " + key(t, "short"), "line 1: the key is a short ssh-rsa"},
		{
			"authority", strict, option("cert-authority"),
			"line 1: option cert-authority is not supported; list the signers' own keys",
		},
		{
			"unknown option", strict, option("no-touch-required"),
			`line 1: option "no-touch-required" is not known; allowed: namespaces, valid-after and valid-before`,
		},
		{
			"option twice", strict, option(`valid-after="20300101",valid-after="20310101"`),
			"line 1: option valid-after is given twice",
		},
		{"no namespaces", strict, option(`namespaces=""`), "line 1: option namespaces has no value"},
		{
			"time", strict, option(`valid-after="2030-01-01"`),
			`line 1: option valid-after has the value "2030-01-01"; allowed: a time as YYYYMMDD`,
		},
		{"no time", strict, option(`valid-before`), `line 1: option valid-before has the value ""`},
		{"month", strict, option(`valid-after="20301301"`), `line 1: option valid-after has the value "20301301"`},
		{
			"upside down", strict, option(`valid-after="20300101",valid-before="20300101"`),
			"line 1: valid-before is not later than valid-after",
		},
	} {
		_, err := trust.Load(newNode(t, tt.policy, tt.signers).policy)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
}

// Times without a zone are in the machine's zone.
func TestLocalTimes(t *testing.T) {
	at := time.Now().Add(-time.Minute)
	for _, tt := range []struct {
		option  string
		refused bool
	}{
		{at.Format("valid-before=20060102150405"), true},
		{at.UTC().Format("valid-before=20060102150405Z"), true},
		{at.Format("valid-after=20060102150405"), false},
		{at.UTC().Format("valid-after=20060102150405Z"), false},
	} {
		n := newNode(t, strict, "alice@example.com "+tt.option+" "+key(t, "ed25519"))
		err := trust.NewNode(n.policy).Check(&manifest.Manifest{ID: "web"}, []byte(read(t, "manifest.json")),
			read(t, "ed25519.sig"))
		if refused := err != nil; refused != tt.refused {
			t.Errorf("%s: %v", tt.option, err)
		}
	}
}

// A change of the policy or of its signers applies at the next decision. If a file cannot be read, no manifest may run.
func TestNodeReadsAgain(t *testing.T) {
	n := newNode(t, strict, "alice@example.com "+key(t, "ed25519"))
	message := []byte(read(t, "manifest.json"))
	check := func(when, want string) {
		t.Helper()
		err := trust.NewNode(n.policy).Check(&manifest.Manifest{ID: "web"}, message, read(t, "ed25519.sig"))
		if want == "" && err != nil || want != "" &&
			(!errors.Is(err, trust.ErrRefused) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", when, err, want)
		}
	}
	check("at first", "")
	n.write(n.signers, "bob@example.com "+key(t, "rsa"))
	check("key removed", "which is not in "+n.signers)
	n.write(n.signers, "alice@example.com "+key(t, "ed25519"))
	check("key there again", "")
	n.write(n.policy, "require_signature: maybe")
	check("policy broken", "the policy cannot be read, so nothing new is run; mend it: "+n.policy+
		`: require_signature: "maybe" is not valid; allowed: true or false`)
	n.write(n.policy,
		fmt.Sprintf("require_signature: true\nallowed_signers: %s\nrules: [{signers: [bob@example.com], pods: [web]}]",
			n.signers))
	check("rule changed", "no rule lets alice@example.com run pods called web")
	if err := os.Remove(n.policy); err != nil {
		t.Fatal(err)
	}
	check("policy gone", "no such file")
}

// If other users than the owner may write the policy or its signers, Load returns an error, because these users could
// decide what runs.
func TestGuardedFiles(t *testing.T) {
	n := newNode(t, strict, "alice@example.com "+key(t, "ed25519"))
	for _, file := range []string{n.policy, n.signers} {
		for _, mode := range []os.FileMode{0o620, 0o602} {
			if err := os.Chmod(file, mode); err != nil {
				t.Fatal(err)
			}
			if _, err := trust.Load(n.policy); err == nil ||
				!strings.Contains(err.Error(), "others than its owner may write it; allowed: chmod go-w") {
				t.Errorf("%s with %o: %v", file, mode, err)
			}
		}
		if err := os.Chmod(file, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := trust.Load(n.policy); err != nil {
		t.Error(err)
	}
	if _, err := trust.Load(filepath.Dir(n.policy)); err == nil {
		t.Error("a directory is a policy")
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := trust.Load(pipe); err == nil ||
		!strings.Contains(err.Error(), "is a named pipe; allowed: a regular file") {
		t.Errorf("a named pipe: %v", err)
	}
}
