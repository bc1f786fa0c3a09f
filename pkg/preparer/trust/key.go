package trust

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/rcfarm/rcfarm/pkg/internal/regular"
)

const maxKeyFile = 65_536

// WithKey calls f with the key in a file. A private key without a passphrase signs. For a public key, or a private key
// with a passphrase, the ssh-agent at socket must have the key, and signs. If socket is empty, there is no agent.
func WithKey(ctx context.Context, file, socket string, f func(ssh.Signer) error) error {
	data, err := readLimited(file, maxKeyFile)
	if err != nil {
		return err
	}
	signer, err := ssh.ParsePrivateKey(data)
	var locked *ssh.PassphraseMissingError
	switch {
	case err == nil:
		return f(signer)
	case errors.As(err, &locked):
		public := locked.PublicKey
		if public == nil { // formats older than OpenSSH's own lack the public key
			if public, err = publicKey(file + ".pub"); err != nil {
				return fmt.Errorf("the key has a passphrase, and there is no public key beside it that an agent "+
					"could be asked for: %w", err)
			}
		}
		return withAgent(ctx, socket, public, "the key has a passphrase", f)
	default:
		public, _, _, _, pubErr := ssh.ParseAuthorizedKey(data)
		if pubErr != nil {
			return fmt.Errorf("no SSH key: %w; allowed: a private key such as ~/.ssh/id_ed25519, or the public key "+
				"of one that an ssh-agent holds", err)
		}
		return withAgent(ctx, socket, public, "this is a public key", f)
	}
}

func publicKey(file string) (ssh.PublicKey, error) {
	data, err := readLimited(file, maxKeyFile)
	if err != nil {
		return nil, err
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(data)
	return key, err
}

func withAgent(ctx context.Context, socket string, public ssh.PublicKey, why string, f func(ssh.Signer) error) error {
	if socket == "" {
		return fmt.Errorf("%s, and SSH_AUTH_SOCK names no ssh-agent to sign with it; start one and ssh-add the key",
			why)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("%s, and the ssh-agent of SSH_AUTH_SOCK does not answer: %w", why, err)
	}
	hangUp := func() { _ = conn.Close() } // an error does not matter, because all is read by then
	defer hangUp()
	defer context.AfterFunc(ctx, hangUp)()
	signers, err := agent.NewClient(conn).Signers()
	if err != nil {
		return fmt.Errorf("ask the ssh-agent for its keys: %w", err)
	}
	for _, signer := range signers {
		if same(signer.PublicKey(), public) {
			return f(signer)
		}
	}
	return fmt.Errorf("%s, and the ssh-agent does not hold %s; ssh-add it", why, describe(public))
}

func same(a, b ssh.PublicKey) bool { return bytes.Equal(a.Marshal(), b.Marshal()) }

func readLimited(file string, most int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return regular.ReadAll(f, most)
}
