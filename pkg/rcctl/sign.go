package rcctl

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/crypto/ssh"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/trust"
)

func signCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "sign", Usage: "sign a pod's manifest with an SSH key; needs no Consul",
		UsageText: "rcctl sign -f FILE --key KEY",
		Description: `Reads a manifest, or the document of an rc with one as its pod, and prints the armored signature of its canonical
bytes, as ssh-keygen -Y sign -n rcfarm-manifest would. A key with a passphrase, or the public half of a key, is used
through the ssh-agent of SSH_AUTH_SOCK. Nodes with a trust policy that requires it run signed manifests only.

Examples:
  rcctl sign -f rc.yaml --key ~/.ssh/id_ed25519 > rc.sig
  rcctl apply -f rc.yaml --signature rc.sig
  rcctl apply -f rc.yaml --sign-key ~/.ssh/id_ed25519      both in one`,
		Flags:  []cli.Flag{fileFlag(), &cli.StringFlag{Name: "key", Usage: "`FILE` with an SSH key"}},
		Action: offline(runSign),
	})
}

func runSign(c *cli.Context, std *stdio) error {
	if c.String("key") == "" {
		return badFlag(c, "--key", "", "the file of an SSH key, such as ~/.ssh/id_ed25519")
	}
	m, err := readManifest(c)
	if err != nil {
		return err
	}
	armored, err := signWith(c, m, c.String("key"))
	if err != nil {
		return err
	}
	fmt.Fprint(std.out, armored)
	return nil
}

// signWith signs a manifest. Its errors are *inputError about the key.
func signWith(c *cli.Context, m *manifest.Manifest, key string) (armored string, err error) {
	canonical, err := m.Canonical()
	if err != nil {
		return "", err
	}
	err = trust.WithKey(c.Context, key, os.Getenv("SSH_AUTH_SOCK"), func(signer ssh.Signer) (err error) {
		armored, err = trust.Sign(canonical, signer)
		return err
	})
	if err != nil {
		return "", &inputError{source: key, err: unwrapPath(err)}
	}
	return armored, nil
}

func signatureFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "signature", Usage: "`FILE` with a signature of the pod's manifest, from rcctl sign (default: the stored one stays)"},
		&cli.StringFlag{Name: "sign-key", Usage: "`FILE` with an SSH key to sign the pod's manifest with"},
	}
}

// signatureOf returns the signature that flags ask for, empty where they ask for none. One that is read must fit.
func signatureOf(c *cli.Context, m *manifest.Manifest) (string, error) {
	file, key := c.String("signature"), c.String("sign-key")
	switch {
	case file != "" && key != "":
		return "", usagef(c, "--signature together with --sign-key; allowed: one of them")
	case key != "":
		return signWith(c, m, key)
	case file == "":
		return "", nil
	case file == "-" && c.String("file") == "-":
		return "", usagef(c, "--signature and --file both read standard input; allowed: one of them")
	}
	canonical, err := m.Canonical()
	if err != nil {
		return "", err
	}
	return readFile(c, file, func(_ string, data []byte) (string, error) { return string(data), fits(string(data), canonical) })
}

func fits(armored string, canonical []byte) error {
	sig, err := trust.Parse(armored)
	if err != nil {
		return err
	}
	if err = sig.Verify(canonical); errors.Is(err, trust.ErrOther) {
		return fmt.Errorf("%w; sign it again: rcctl sign", trust.ErrOther)
	}
	return err
}

// newSignature returns the signature to store, empty when the stored one says the same: some kinds of keys never make the
// same signature twice.
func newSignature(given, stored string, canonical []byte) string {
	if given != "" && stored != "" && describeSignature(given) == describeSignature(stored) && fits(stored, canonical) == nil {
		return ""
	}
	return given
}

func describeSignature(armored string) string {
	if strings.TrimSpace(armored) == "" {
		return "(none)"
	}
	sig, err := trust.Parse(armored)
	if err != nil {
		return "(unreadable)"
	}
	return sig.Key()
}
