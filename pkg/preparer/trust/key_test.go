package trust_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/rcfarm/rcfarm/pkg/preparer/trust"
)

// startAgent returns the socket of an ssh-agent with these keys.
func startAgent(t *testing.T, keys ...string) string {
	t.Helper()
	ring := agent.NewKeyring()
	for _, name := range keys {
		key, err := ssh.ParseRawPrivateKeyWithPassphrase([]byte(read(t, name)), []byte("secret"))
		if err != nil {
			t.Fatal(err)
		}
		if err := ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "agent") // a short name, because a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			served.Go(func() { _ = agent.ServeAgent(ring, conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		served.Wait()
		os.RemoveAll(dir)
	})
	return socket
}

// The agent signs for a key with a passphrase, or a public key.
func TestAgent(t *testing.T) {
	socket := startAgent(t, "key_locked", "key_locked_pem")
	for _, file := range []string{"key_locked", "key_locked.pub", "key_locked_pem", "key_locked_pem.pub"} {
		var armored string
		err := trust.WithKey(t.Context(), filepath.Join("testdata", file), socket, func(s ssh.Signer) (err error) {
			armored, err = trust.Sign([]byte("x"), s)
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		sig, err := trust.Parse(armored)
		if err != nil {
			t.Fatal(err)
		}
		if err := sig.Verify([]byte("x")); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestBadKeys(t *testing.T) {
	empty := startAgent(t)
	lonely := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(lonely, []byte(read(t, "key_locked_pem")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, file, socket, want string }{
		{"missing", "testdata/none", "", "no such file"},
		{"no key", "testdata/manifest.json", "", "no SSH key: "},
		{"passphrase without an agent", "testdata/key_locked", "", "the key has a passphrase, and SSH_AUTH_SOCK " +
			"names no ssh-agent to sign with it; start one and ssh-add the key"},
		{
			"public key without an agent", "testdata/key_ed25519.pub", "",
			"this is a public key, and SSH_AUTH_SOCK names no ssh-agent",
		},
		{"agent that is gone", "testdata/key_locked", "/nonexistent", "the ssh-agent of SSH_AUTH_SOCK does not answer"},
		{
			"agent without the key", "testdata/key_locked", empty,
			"the key has a passphrase, and the ssh-agent does not hold ssh-ed25519 SHA256:",
		},
		{"passphrase in an old format, alone", lonely, empty, "there is no public key beside it"},
		{"short", "testdata/key_short", "", "the key is a short ssh-rsa"},
	} {
		err := trust.WithKey(t.Context(), tt.file, tt.socket, func(s ssh.Signer) error {
			_, err := trust.Sign([]byte("x"), s)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
	other := errors.New("other")
	if err := trust.WithKey(t.Context(), "testdata/key_rsa", "",
		func(ssh.Signer) error { return other }); !errors.Is(err, other) {
		t.Error(err)
	}
}
