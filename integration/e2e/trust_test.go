package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// signatures: a node trusts one signer for a pod, and runs what this signer has signed for the pod. It refuses
// everything else, and reports the reason and the cure. Meanwhile the previous version continues to run. A broken
// policy stops no pod.
func signatures(e *env) {
	e.startConsul("")
	policy := e.trustPolicy("other")
	node := e.preparer(1, "--trust-policy", policy)
	e.farm("f1", "")
	version := func(v string) cluster.Hello { return e.hello(1, map[string]string{"HELLO_VERSION": v}) }

	e.apply(version("1"))
	e.distrusted("it is not signed; sign it: rcctl apply -f FILE --sign-key KEY")
	e.applySigned(version("1"), "ed25519")
	id := e.rcID("hello")
	e.within(limit, func() error { return e.converged(id, 1) })
	first := e.processes()

	e.apply(version("2"))
	e.distrusted("it is not signed")
	e.applySigned(version("2"), "rsa")
	e.distrusted("which is not in " + e.signersFile())
	e.applySigned(version("2"), "ecdsa")
	e.distrusted("no rule lets bob@example.com run pods called hello")
	e.sameProcesses(first, "a new version was refused four times")
	if out := e.rcctl("", "pods"); !strings.Contains(out, "failed") {
		e.t.Errorf("rcctl pods does not say failed:\n%s", out)
	}

	// Here the signature is made separately. Then the policy changes in place of the signature.
	file := filepath.Join(e.dir, "hello.sig")
	if err := os.WriteFile(file,
		[]byte(e.rcctl(cluster.HelloSpec(version("2")), "sign", "-f", "-", "--key", e.key("ed25519"))),
		0o600); err != nil {
		e.t.Fatal(err)
	}
	e.rcctl(cluster.HelloSpec(version("2")), "apply", "-f", "-", "--signature", file)
	e.within(limit, func() error { return e.converged(id, 1) })
	second := e.processes()
	e.mustDiffer(first, second)
	e.applySigned(version("3"), "ecdsa")
	e.distrusted("no rule lets bob@example.com")
	e.trustPolicy("*")
	e.within(limit, func() error { return e.converged(id, 1) })
	third := e.processes()
	e.mustDiffer(second, third)

	// No new pod starts and no pod stops, even if the preparer starts with this policy.
	e.write(policy, "require_signature: maybe\n")
	e.applySigned(version("4"), "ed25519")
	e.distrusted(`the policy cannot be read, so nothing new is run; mend it: ` + policy +
		`: require_signature: "maybe" is not valid; allowed: true or false`)
	node.kill()
	node.startAgain()
	e.within(limit, func() error {
		if !strings.Contains(node.logTail(1000), "trust policy unreadable") {
			return fmt.Errorf("the preparer does not say that its policy is broken")
		}
		return nil
	})
	e.distrusted("the policy cannot be read")
	e.sameProcesses(third, "the policy was broken and the preparer restarted")
	e.trustPolicy("*")
	e.within(limit, func() error { return e.converged(id, 1) })
	e.mustDiffer(third, e.processes())
}

// revoked: a signer is not trusted any more. A manifest with this signer's signature is not run, although the node
// accepted its intent before and only the artifact was missing. Installed pods continue to run. A rule of the policy
// limits which paths of the node a signer may name.
func revoked(e *env) {
	e.startConsul("")
	policy := e.trustPolicy("other")
	node := e.preparer(1, "--trust-policy", policy)
	e.farm("f1", "")
	h := e.hello(1, nil)
	archive, err := os.ReadFile(strings.TrimPrefix(h.Artifact.URL, "file://"))
	if err != nil {
		e.t.Fatal(err)
	}
	late := filepath.Join(e.dir, "late.tar.gz")
	h.Artifact.URL = "file://" + late
	e.applySigned(h, "ed25519")
	e.podsSay(late + ": no such file")

	signers, err := os.ReadFile(e.signersFile())
	if err != nil {
		e.t.Fatal(err)
	}
	e.write(e.signersFile(), strings.ReplaceAll(string(signers), "alice@", "mallory@"))
	e.write(late, string(archive))
	const gone = "no rule lets mallory@example.com run pods called hello"
	e.distrusted(gone)
	node.kill()
	node.startAgain()
	e.distrusted(gone)
	if running := e.processes(); len(running) > 0 {
		e.t.Fatalf("it runs: %v", running)
	}

	e.write(e.signersFile(), string(signers))
	id := e.rcID("hello")
	e.within(limit, func() error { return e.converged(id, 1) })
	running := e.processes()
	e.write(e.signersFile(), strings.ReplaceAll(string(signers), "alice@", "mallory@"))
	node.kill()
	node.startAgain()
	h.Env = map[string]string{"HELLO_VERSION": "two"}
	e.applySigned(h, "ed25519")
	e.distrusted(gone)
	e.sameProcesses(running, "its signer was revoked")

	e.write(e.signersFile(), string(signers))
	bounded := func(paths string) string {
		return fmt.Sprintf(
			"require_signature: true\nallowed_signers: %s\n"+
				"rules: [{signers: [alice@example.com], pods: [hello], users: [], paths: [%s]}]\n",
			e.signersFile(), paths)
	}
	e.write(policy, bounded("/srv/*"))
	e.distrusted(fmt.Sprintf("a path of the node: %q is not valid; allowed: /srv/*", late))
	e.sameProcesses(running, "its next version named a path that its signer may not")
	e.write(policy, bounded(e.dir+"/*"))
	e.within(limit, func() error { return e.converged(id, 1) })
	e.mustDiffer(running, e.processes())
}

// trustPolicy: alice may run hello, and bob pods that match the pattern.
func (e *env) trustPolicy(bobs string) string {
	e.t.Helper()
	list := ""
	for who, key := range map[string]string{"alice": "ed25519", "bob": "ecdsa"} {
		public, err := os.ReadFile(e.key(key) + ".pub")
		if err != nil {
			e.t.Fatal(err)
		}
		list += who + "@example.com " + string(public)
	}
	e.write(e.signersFile(), list)
	policy := filepath.Join(e.dir, "policy.yaml")
	e.write(policy, fmt.Sprintf(`require_signature: true
allowed_signers: %s
rules:
- {signers: [alice@example.com], pods: [hello]}
- {signers: [bob@example.com], pods: [%q]}
`, e.signersFile(), bobs))
	return policy
}

func (e *env) signersFile() string { return filepath.Join(e.dir, "allowed_signers") }

func (e *env) key(kind string) string {
	return filepath.Join(e.root, "pkg", "preparer", "trust", "testdata", "key_"+kind)
}

func (e *env) write(file, text string) {
	e.t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		e.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) applySigned(h cluster.Hello, key string) {
	e.t.Helper()
	e.rcctl(cluster.HelloSpec(h), "apply", "-f", "-", "--sign-key", e.key(key))
}

func (e *env) distrusted(reason string) {
	e.t.Helper()
	e.within(2*limit, func() error { // a node tries again after a minute at the latest
		recs, _, err := e.store.Realities.List(e.t.Context(), store.Default)
		if err != nil {
			return err
		}
		for _, r := range recs {
			if r.Value.State == pod.StateFailed &&
				strings.Contains(r.Value.Message, "this node's trust policy refuses it: ") &&
				strings.Contains(r.Value.Message, reason) {
				return nil
			}
		}
		return fmt.Errorf("no pod is refused because %s: %+v", reason, recs)
	})
}

func (e *env) mustDiffer(before, after map[string]int) {
	e.t.Helper()
	if !slices.Equal(slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after))) {
		e.t.Fatalf("the pods were %v, now %v", before, after)
	}
	for key, pid := range after {
		if before[key] == pid {
			e.t.Errorf("%s was not upgraded: its pid is still %d", key, pid)
		}
	}
}
