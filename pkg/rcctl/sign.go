package rcctl

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/crypto/ssh"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/trust"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func signCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "sign", Usage: "sign a pod's manifest with an SSH key; needs no Consul",
		UsageText: "rcctl sign -f FILE --key KEY",
		Description: `Reads a manifest, or the document of an rc with one as its pod, and prints the armored signature of its canonical
bytes, as ssh-keygen -Y sign -n rcfarm-manifest would, and one more for each other manifest that the rc's replica
groups have. A key with a passphrase, or the public half of a key, is used
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
	manifests, err := readManifests(c)
	if err != nil {
		return err
	}
	for _, m := range manifests {
		armored, err := signWith(c, m, c.String("key"))
		if err != nil {
			return err
		}
		fmt.Fprint(std.out, armored)
	}
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
		&cli.StringFlag{Name: "signature", Usage: "`FILE` with signatures of the pods' manifests, from rcctl sign (default: the stored ones stay)"},
		&cli.StringFlag{Name: "sign-key", Usage: "`FILE` with an SSH key to sign the pods' manifests with"},
	}
}

// manifestsOf returns the manifests that a document makes: that of its pod, then those of groups that have another.
func manifestsOf(spec *rc.Spec) []*manifest.Manifest {
	all := []*manifest.Manifest{spec.Pod}
	for i := range spec.ReplicaGroups {
		if m := rc.GroupManifest(spec.Pod, &spec.ReplicaGroups[i]); m != spec.Pod {
			all = append(all, m)
		}
	}
	return all
}

// signaturesOf returns the signatures that flags ask for, by the digests of their manifests; none where they ask for none. Those that are
// read must be of these manifests, and of all of them.
func signaturesOf(c *cli.Context, manifests []*manifest.Manifest) (map[string]string, error) {
	file, key := c.String("signature"), c.String("sign-key")
	switch {
	case file != "" && key != "":
		return nil, usagef(c, "--signature together with --sign-key; allowed: one of them")
	case key != "":
		return signAll(c, manifests, key)
	case file == "":
		return nil, nil
	case file == "-" && c.String("file") == "-":
		return nil, usagef(c, "--signature and --file both read standard input; allowed: one of them")
	}
	return readFile(c, file, func(_ string, data []byte) (map[string]string, error) { return matched(string(data), manifests) })
}

// signAll signs manifests. The signatures come by the digests.
func signAll(c *cli.Context, manifests []*manifest.Manifest, key string) (map[string]string, error) {
	signatures := map[string]string{}
	for _, m := range manifests {
		canonical, err := m.Canonical()
		if err != nil {
			return nil, err
		}
		if signatures[manifest.Digest(canonical)], err = signWith(c, m, key); err != nil {
			return nil, err
		}
	}
	return signatures, nil
}

// endOfSignature is the last line of an armored signature.
const endOfSignature = "-----END SSH SIGNATURE-----"

// matched gives each manifest the signature of a text that is its own.
func matched(text string, manifests []*manifest.Manifest) (map[string]string, error) {
	signatures := map[string]string{}
	left := strings.SplitAfter(strings.TrimSpace(text), endOfSignature)
	if len(left) > 1 && strings.TrimSpace(left[len(left)-1]) == "" {
		left = left[:len(left)-1]
	}
	for _, m := range manifests {
		canonical, err := m.Canonical()
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(left, func(armored string) bool { return fits(armored, canonical) == nil })
		if at < 0 {
			return nil, fits(left[0], canonical)
		}
		signatures[manifest.Digest(canonical)] = strings.TrimLeft(left[at], "\n") + "\n"
	}
	return signatures, nil
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
