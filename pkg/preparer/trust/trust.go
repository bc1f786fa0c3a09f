// Package trust verifies who signed a manifest, and decides which signers may run which pods on a node. Signatures are
// in OpenSSH's format (ssh-keygen -Y sign), over a manifest's canonical bytes. They have their own namespace, so that a
// signature for another purpose is not valid here, and the other way round.
package trust

import (
	"bytes"
	"crypto/rsa"
	"errors"
	"fmt"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

// Namespace is the -n of ssh-keygen -Y sign.
const Namespace = "rcfarm-manifest"

// MaxSignature is in bytes; a long RSA key needs about 3,000.
const MaxSignature = 16_384

const minRSABits = 2048

// Signature is a parsed signature, which Verify verifies.
type Signature struct{ sig *sshsig.Signature }

// Parse reads the output of Sign or of ssh-keygen -Y sign.
func Parse(armored string) (*Signature, error) {
	if len(armored) > MaxSignature {
		return nil, fmt.Errorf("the signature has %d bytes; allowed: at most %d", len(armored), MaxSignature)
	}
	sig, err := sshsig.Unarmor([]byte(armored))
	if err != nil {
		return nil, fmt.Errorf("this is no SSH signature, which begins with -----BEGIN SSH SIGNATURE-----: %w", err)
	}
	if err := checkKey(sig.PublicKey); err != nil {
		return nil, err
	}
	return &Signature{sig: sig}, nil
}

// checkKey refuses weak keys. It also refuses certificates, because this package does not verify their authority.
func checkKey(key ssh.PublicKey) error {
	const allowed = "allowed: ssh-ed25519, ecdsa-sha2-nistp256 and up, ssh-rsa of 2048 bits and more, and their " +
		"security-key kinds"
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoSKECDSA256:
		return nil
	case ssh.KeyAlgoRSA:
		if rsaBits(key) >= minRSABits {
			return nil
		}
		return fmt.Errorf("the key is a short ssh-rsa; %s", allowed)
	default:
		return fmt.Errorf("the key is a %s; %s", key.Type(), allowed)
	}
}

// rsaBits returns zero if the length is not known. It parses the key's bytes, because keys from an agent have only
// bytes.
func rsaBits(key ssh.PublicKey) int {
	parsed, err := ssh.ParsePublicKey(key.Marshal())
	if err != nil {
		return 0
	}
	public, _ := parsed.(ssh.CryptoPublicKey)
	if public == nil {
		return 0
	}
	if key, ok := public.CryptoPublicKey().(*rsa.PublicKey); ok {
		return key.N.BitLen()
	}
	return 0
}

// ErrOther is returned by Verify if the signature is not for these bytes.
var ErrOther = errors.New("the signature was made for another manifest, or the manifest was changed since")

// Verify verifies that the key in the signature has signed these bytes as a manifest. Otherwise it returns ErrOther, or
// an error about the namespace.
func (s *Signature) Verify(canonical []byte) error {
	err := sshsig.Verify(bytes.NewReader(canonical), s.sig, s.sig.PublicKey, s.sig.HashAlgorithm, Namespace)
	switch {
	case errors.Is(err, sshsig.ErrNamespaceMismatch):
		return fmt.Errorf("the signature was made in the namespace %q; allowed: %s", s.sig.Namespace, Namespace)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrOther, err)
	}
	return nil
}

// Key returns text such as "ssh-ed25519 SHA256:...".
func (s *Signature) Key() string { return describe(s.sig.PublicKey) }

func describe(key ssh.PublicKey) string { return key.Type() + " " + ssh.FingerprintSHA256(key) }

// Sign returns the armored signature of a manifest's canonical bytes.
func Sign(canonical []byte, signer ssh.Signer) (string, error) {
	if err := checkKey(signer.PublicKey()); err != nil {
		return "", err
	}
	sig, err := sshsig.Sign(bytes.NewReader(canonical), signer, sshsig.HashSHA512, Namespace)
	if err != nil {
		return "", fmt.Errorf("sign with %s: %w", describe(signer.PublicKey()), err)
	}
	return string(sshsig.Armor(sig)), nil
}
