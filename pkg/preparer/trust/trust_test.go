package trust_test

import (
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"github.com/rcfarm/rcfarm/pkg/preparer/trust"
)

// read reads a file that testdata/make.sh made with OpenSSH.
func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func sign(t *testing.T, key, message string) (signature string) {
	t.Helper()
	err := trust.WithKey(t.Context(), filepath.Join("testdata", key), "", func(s ssh.Signer) (err error) {
		signature, err = trust.Sign([]byte(message), s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return signature
}

// Verify accepts signatures of OpenSSH.
func TestVerifyOpenSSH(t *testing.T) {
	for _, key := range []string{"ed25519", "ecdsa", "rsa"} {
		sig, err := trust.Parse(read(t, key+".sig"))
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		if err := sig.Verify([]byte(read(t, "manifest.json"))); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		if err := sig.Verify([]byte(read(t, "manifest.json") + "\n")); !errors.Is(err, trust.ErrOther) {
			t.Errorf("%s: with another byte: %v", key, err)
		}
		public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(read(t, "key_"+key+".pub")))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := sig.Key(), public.Type()+" "+ssh.FingerprintSHA256(public); got != want {
			t.Errorf("the key is %s, want %s", got, want)
		}
	}
}

// If a signature has no random part, Sign returns the same bytes as OpenSSH.
func TestSignAsOpenSSH(t *testing.T) {
	for _, key := range []string{"ed25519", "rsa"} {
		ours, _ := pem.Decode([]byte(sign(t, "key_"+key, read(t, "manifest.json"))))
		theirs, _ := pem.Decode([]byte(read(t, key+".sig")))
		if diff := cmp.Diff(theirs, ours); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
	sig, err := trust.Parse(sign(t, "key_ecdsa", "x"))
	if err != nil {
		t.Fatal(err)
	}
	if err := sig.Verify([]byte("x")); err != nil {
		t.Error(err)
	}
}

func TestBadSignatures(t *testing.T) {
	good := read(t, "ed25519.sig")
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", "this is no SSH signature, which begins with -----BEGIN SSH SIGNATURE-----"},
		{"a key", read(t, "key_ed25519"), `invalid PEM type "OPENSSH PRIVATE KEY"`},
		{"cut", good[:len(good)/2], "this is no SSH signature"},
		{
			"short inside", "-----BEGIN SSH SIGNATURE-----\nU1NIU0lH\n-----END SSH SIGNATURE-----\n",
			"this is no SSH signature",
		},
		{"too long", good + strings.Repeat("x", trust.MaxSignature), "allowed: at most 16384"},
		{"short key", read(t, "short.sig"), "the key is a short ssh-rsa; allowed: ssh-ed25519"},
		{"certificate", read(t, "cert.sig"), "the key is a ssh-ed25519-cert-v01@openssh.com; allowed: ssh-ed25519"},
	} {
		if _, err := trust.Parse(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
	sig, err := trust.Parse(read(t, "namespace.sig"))
	if err != nil {
		t.Fatal(err)
	}
	want := `the signature was made in the namespace "file"; allowed: rcfarm-manifest`
	if err := sig.Verify([]byte(read(t, "manifest.json"))); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// With any single bit changed, a signature is not accepted, and nothing panics.
func TestFlippedBits(t *testing.T) {
	message := []byte(read(t, "manifest.json"))
	block, _ := pem.Decode([]byte(read(t, "ed25519.sig")))
	for i := range len(block.Bytes) * 8 {
		spoiled := append([]byte(nil), block.Bytes...)
		spoiled[i/8] ^= 1 << (i % 8)
		sig, err := trust.Parse(string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: spoiled})))
		if err == nil && sig.Verify(message) == nil {
			t.Errorf("bit %d does not matter", i)
		}
	}
}
