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
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/trust"
)

// trustOnly makes the node run what one key of pkg/trust signed, and nothing else. It returns the policy's file.
func (b *bench) trustOnly(key string) string {
	b.t.Helper()
	dir := b.t.TempDir()
	public, err := os.ReadFile("../trust/testdata/" + key + ".pub")
	if err != nil {
		b.t.Fatal(err)
	}
	signers, policy := filepath.Join(dir, "allowed_signers"), filepath.Join(dir, "policy.yaml")
	b.writeFile(signers, "alice@example.com "+string(public))
	b.writeFile(policy, "require_signature: true\nallowed_signers: "+signers+"\nrules: [{signers: [alice@example.com], pods: [web]}]\n")
	b.cfg.Trust = trust.NewNode(policy)
	return policy
}

func (b *bench) writeFile(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// uploadSigned stores a manifest as an operator does. An empty key leaves what is stored as its signature.
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
		err = trust.WithKey(b.t.Context(), "../trust/testdata/"+key, "", func(s ssh.Signer) (err error) {
			signature, err = trust.Sign(canonical, s)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	audit := store.NewAudit("test", "sign", "rc1", nil)
	return digest, store.New(b.client, b.keys).SignManifest(b.t.Context(), "rc1", digest, canonical, signature, audit)
}

// What the policy refuses is not run, with the reason and the cure in reality, and the old version stays up. It runs as
// soon as the policy lets it.
func TestTrust(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	policy := b.trustOnly("key_ed25519")
	b.start()
	first := b.uploadSigned(b.sleeper("1"), "key_ed25519")
	b.tell(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	pid := b.pid(0)

	second := b.uploadSigned(b.sleeper("2"), "")
	b.tell(intent(0, second, pod.Running, 20))
	b.awaitState(0, pod.StateFailed, 20, "this node's trust policy refuses it: it is not signed; sign it: rcctl apply -f FILE --sign-key KEY")
	b.mustKeepPID(0, pid)
	b.uploadSigned(b.sleeper("2"), "key_rsa")
	b.awaitState(0, pod.StateFailed, 20, "it is signed with ssh-rsa SHA256:")
	b.mustKeepPID(0, pid)
	b.uploadSigned(b.sleeper("2"), "key_ed25519")
	b.awaitReady(0, second, 20)

	// A broken policy keeps new manifests out and takes nothing down, also when the pod is started again.
	text, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	b.writeFile(policy, "require_signature: maybe")
	third := b.uploadSigned(b.sleeper("3"), "key_ed25519")
	b.tell(intent(0, third, pod.Running, 30))
	b.awaitState(0, pod.StateFailed, 30, "the policy cannot be read, so nothing new is run; mend it: "+policy)
	b.killAndAwait(0)
	b.writeFile(policy, string(text))
	b.awaitReady(0, third, 30)
}

// killAndAwait kills the pod's process and waits until its runtime has started it again.
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

// A record of a manifest that two operators write at once keeps the signature, whoever is last.
func TestSignatureIsNotLost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.sleeper("1")
	digest, _ := encodeManifest(t, m)
	for round := range 10 {
		b.commit(consul.Delete(b.keys.Manifest(digest)))
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
