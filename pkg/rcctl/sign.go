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
	return leaf("sign -f FILE --key KEY", "sign a pod's manifest with an SSH key; needs no Consul",
		`Reads a manifest, or the document of an rc with one as its pod, and prints the armored signature of its
canonical bytes, as ssh-keygen -Y sign -n rcfarm-manifest would. If replica groups of the rc have other manifests, it
prints one more signature for each. A key with a passphrase, or the public half of a key, is used through the ssh-agent
of SSH_AUTH_SOCK. Nodes whose trust policy requires it run signed manifests only.

Examples:
  rcctl sign -f rc.yaml --key ~/.ssh/id_ed25519 > rc.sig
  rcctl apply -f rc.yaml --signature rc.sig
  rcctl apply -f rc.yaml --sign-key ~/.ssh/id_ed25519      both in one`,
		offline(runSign), fileFlag(), option("key", "`FILE` with an SSH key"),
	)
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

// signWith returns *inputError about the key.
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

func signKeyFlag() []cli.Flag {
	return option("sign-key", "`FILE` with an SSH key to sign the pods' manifests with")
}

func signatureFlags() []cli.Flag {
	return slices.Concat(
		option("signature",
			"`FILE` with signatures of the pods' manifests, from rcctl sign (default: keep the stored ones)"),
		signKeyFlag(),
	)
}

// manifestsOf returns the manifest of the document's pod, then the manifests of groups with another one.
func manifestsOf(spec *rc.Spec) []*manifest.Manifest {
	all := []*manifest.Manifest{spec.Pod}
	for i := range spec.ReplicaGroups {
		if m := rc.GroupManifest(spec.Pod, &spec.ReplicaGroups[i]); m != spec.Pod {
			all = append(all, m)
		}
	}
	return all
}

// signaturesOf returns signatures by the digests of their manifests; none without such flags. A file must have one for
// each manifest.
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
	return readFile(c, file, func(_ string, data []byte) (map[string]string, error) {
		return matched(string(data), manifests)
	})
}

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

const endOfSignature = "-----END SSH SIGNATURE-----"

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

// newSignature returns "" if the stored signature is valid and of the same key. Some kinds of keys never make the same
// signature twice.
func newSignature(given, stored string, canonical []byte) string {
	if given != "" && stored != "" && describeSignature(given) == describeSignature(stored) &&
		fits(stored, canonical) == nil {
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
