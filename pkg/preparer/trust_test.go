package preparer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/trust"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// trustOnly returns the path of a policy for one key of trust/testdata.
func (b *bench) trustOnly(key string) string {
	b.t.Helper()
	dir := b.t.TempDir()
	public, err := os.ReadFile("trust/testdata/" + key + ".pub")
	if err != nil {
		b.t.Fatal(err)
	}
	signers, policy := filepath.Join(dir, "allowed_signers"), filepath.Join(dir, "policy.yaml")
	b.writeFile(signers, "alice@example.com "+string(public))
	b.writeFile(policy, "require_signature: true\n"+
		"allowed_signers: "+signers+"\n"+
		"rules: [{signers: [alice@example.com], pods: [web]}]\n")
	b.cfg.Trust = trust.NewNode(policy)
	return policy
}

func (b *bench) writeFile(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// uploadSigned does not sign with an empty key; a stored signature stays.
func (b *bench) uploadSigned(m manifest.Manifest, key string) (digest string) {
	b.t.Helper()
	digest, err := b.storeSigned(m, key)
	if err != nil {
		b.t.Fatal(err)
	}
	return digest
}

func (b *bench) storeSigned(m manifest.Manifest, key string) (digest string, err error) {
	canonical, err := m.Canonical()
	if err != nil {
		return "", err
	}
	digest = manifest.Digest(canonical)
	signature := ""
	if key != "" {
		err = trust.WithKey(b.t.Context(), "trust/testdata/"+key, "", func(s ssh.Signer) (err error) {
			signature, err = trust.Sign(canonical, s)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	audit := store.NewAudit("test", "sign", "rc1", nil)
	signed := []store.DeployManifest{{Digest: digest, Canonical: canonical, Signature: signature}}
	return digest, store.New(b.client, b.keys).Operator.SignManifests(b.t.Context(), "rc1", signed, audit)
}

// A manifest that the policy refuses does not run until it is allowed. The report has the reason and the cure, and the
// old version continues to run.
func TestManifestRunsOnlyIfTheTrustPolicyAllowsIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	policy := b.trustOnly("key_ed25519")
	b.start()
	first := b.uploadSigned(b.sleeper("1"), "key_ed25519")
	b.write(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	pid := b.pid(0)

	second := b.uploadSigned(b.sleeper("2"), "")
	b.write(intent(0, second, pod.Running, 20))
	b.awaitState(
		0, pod.StateFailed, 20,
		"this node's trust policy refuses it: it is not signed; sign it: rcctl apply -f FILE --sign-key KEY",
	)
	b.mustKeepPID(0, pid)
	b.uploadSigned(b.sleeper("2"), "key_rsa")
	b.awaitState(0, pod.StateFailed, 20, "it is signed with ssh-rsa SHA256:")
	b.mustKeepPID(0, pid)
	b.uploadSigned(b.sleeper("2"), "key_ed25519")
	b.awaitReady(0, second, 20)

	// No new manifest runs. Running pods continue to run, also after a crash.
	text, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	b.writeFile(policy, "require_signature: maybe")
	third := b.uploadSigned(b.sleeper("3"), "key_ed25519")
	b.write(intent(0, third, pod.Running, 30))
	b.awaitState(0, pod.StateFailed, 30, "the policy cannot be read, so nothing new is run; mend it: "+policy)
	b.killAndAwait(0)
	b.writeFile(policy, string(text))
	b.awaitReady(0, third, 30)
}

func (b *bench) killAndAwait(index int) {
	b.t.Helper()
	old := b.pid(index)
	process, err := os.FindProcess(old)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		b.t.Fatal(err)
	}
	b.eventually(func() error {
		procs := b.procs(index)
		if len(procs) != 1 || procs[0].Phase != runtime.Running || procs[0].PID == old {
			return fmt.Errorf("processes %+v, want one that runs with another pid than %d", procs, old)
		}
		return nil
	})
}

// Concurrent writes of a manifest's record keep the signature in any order.
func TestConcurrentWritesKeepTheSignature(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.sleeper("1")
	digest, _ := encodeManifest(t, m)
	for round := range 10 {
		b.commit(consul.Delete(b.keys.Manifests.Key(digest)))
		var writers errgroup.Group
		for _, key := range []string{"", "key_ed25519", "", ""} {
			writers.Go(func() error {
				_, err := b.storeSigned(m, key)
				return err
			})
		}
		if err := writers.Wait(); err != nil {
			t.Fatal(err)
		}
		_, signature, err := store.New(b.client, b.keys).SignedManifest(t.Context(), digest)
		if err != nil || !strings.Contains(signature, "BEGIN SSH SIGNATURE") {
			t.Fatalf("round %d: the signature is %q, %v", round, signature, err)
		}
	}
}

// A signature that is revoked between intent and installation prevents the installation. In between, the pod waits for
// its artifact, for a hook, or for a preparer.
func TestRevokedSignatureIsRefusedBeforeTheInstallation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	policy := b.trustOnly("key_ed25519")
	text := b.text(policy)
	revoke := func() { b.writeFile(policy, strings.ReplaceAll(text, "[alice@example.com]", "[bob@example.com]")) }
	const refused = "this node's trust policy refuses it: signed with ssh-ed25519"
	a := b.start()

	m := b.sleeper("1")
	b.artifacts.setMissing(m.Launchables[0].Artifact, true)
	first := b.uploadSigned(m, "key_ed25519")
	b.write(intent(0, first, pod.Running, 10))
	b.awaitState(0, pod.StateFailed, 10, "artifact of main: no such file")
	revoke()
	b.artifacts.setMissing(m.Launchables[0].Artifact, false)
	b.awaitState(0, pod.StateFailed, 10, refused)
	a.stop()
	b.start()
	b.awaitState(0, pod.StateFailed, 10, refused)
	if procs := b.procs(0); len(procs) > 0 {
		t.Fatalf("it runs: %+v", procs)
	}
	b.writeFile(policy, text)
	b.awaitReady(0, first, 10)
	pid := b.pid(0)

	// The hook completes, and the version is not installed.
	begun, goOn := filepath.Join(t.TempDir(), "begun"), filepath.Join(t.TempDir(), "go-on")
	hooked := b.sleeper("2")
	b.addProgram(hooked, "bin/wait", fmt.Sprintf("touch %s; while [ ! -e %s ]; do sleep 0.05; done", begun, goOn))
	hooked.Hooks = &manifest.Hooks{BeforeInstall: &manifest.Hook{Path: "bin/wait", Required: true}}
	second := b.uploadSigned(hooked, "key_ed25519")
	b.write(intent(0, second, pod.Running, 20))
	b.eventually(func() error { _, err := os.Stat(begun); return err })
	revoke()
	b.writeFile(goOn, "")
	b.awaitState(0, pod.StateFailed, 20, refused)
	b.mustKeepPID(0, pid)

	// Another signer's signature is accepted, although the node has the manifest.
	public := b.text("trust/testdata/key_rsa.pub")
	b.writeFile(filepath.Join(filepath.Dir(policy), "allowed_signers"), "bob@example.com "+public)
	b.awaitState(0, pod.StateFailed, 20, "which is not in ")
	b.uploadSigned(hooked, "key_rsa")
	b.awaitReady(0, second, 20)
}
