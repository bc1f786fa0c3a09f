package trust_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/trust"
)

// For any signature and any file of signers, Check accepts only what OpenSSH signed with the listed key, and does not
// panic.
func FuzzCheck(f *testing.F) {
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		return string(data)
	}
	message, key := []byte(read("manifest.json")), read("key_ed25519.pub")
	for _, sig := range []string{"ed25519.sig", "rsa.sig", "ecdsa.sig", "cert.sig", "namespace.sig"} {
		f.Add("alice@example.com "+key, read(sig))
	}
	f.Add(`"a b" namespaces="x,!y",valid-after="20300101Z" `+key, "")
	f.Add("a cert-authority "+key, read("ed25519.sig"))
	dir := f.TempDir()
	policy, signers := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "allowed_signers")
	text := "require_signature: true\nallowed_signers: " + signers + "\nrules: [{signers: ['*'], pods: ['*']}]\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, list, signature string) {
		if err := os.WriteFile(signers, []byte(list), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := trust.Load(policy)
		if err != nil || p.Check(time.Now(), &manifest.Manifest{ID: "web"}, message, signature) != nil {
			return
		}
		sig, err := trust.Parse(signature)
		if err != nil || sig.Verify(message) != nil {
			t.Fatalf("believed: %q by %q", signature, list)
		}
		if err := p.Check(time.Now(), &manifest.Manifest{ID: "web"}, append(message, ' '), signature); err == nil {
			t.Fatalf("believed of another manifest: %q by %q", signature, list)
		}
	})
}
