package rcctl

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// manifestCommand groups the commands about manifests. None of them needs Consul.
func manifestCommand() *cli.Command {
	return group("manifest", "check pod manifests; needs no Consul",
		leaf(&cli.Command{
			Name: "check", Usage: "say whether a manifest is valid, and its digest",
			UsageText: "rcctl manifest check -f FILE",
			Description: `Reads a manifest, or the document of an rc with one as its pod, and names every mistake in it (exit code 2).

Examples:
  rcctl manifest check -f web.yaml
  rcctl manifest check -f rc.yaml`,
			Flags:  []cli.Flag{fileFlag()},
			Action: offline(runManifestCheck),
		}),
		leaf(&cli.Command{
			Name: "canonical", Usage: "print the canonical JSON of a manifest: what is hashed and signed",
			UsageText: "rcctl manifest canonical -f FILE",
			Description: `Prints exactly the bytes that a digest and a signature are about, without a newline at the end.

Examples:
  rcctl manifest canonical -f web.yaml | sha256sum
  rcctl manifest canonical -f web.yaml | ssh-keygen -Y sign -f ~/.ssh/id_ed25519 -n rcfarm-manifest > web.sig`,
			Flags:  []cli.Flag{fileFlag()},
			Action: offline(runManifestCanonical),
		}),
		manifestSchemaCommand(),
	)
}

func runManifestCheck(c *cli.Context, std *stdio) error {
	m, err := readManifest(c, std)
	if err != nil {
		return err
	}
	canonical, err := m.Canonical()
	if err != nil {
		return err
	}
	fmt.Fprintf(std.out, "manifest %s is valid, digest %s\n", m.ID, manifest.Digest(canonical))
	return nil
}

func runManifestCanonical(c *cli.Context, std *stdio) error {
	m, err := readManifest(c, std)
	if err != nil {
		return err
	}
	canonical, err := m.Canonical()
	if err != nil {
		return err
	}
	_, err = std.out.Write(canonical)
	return err
}
