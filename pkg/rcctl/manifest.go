package rcctl

import (
	"io"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/docs"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// manifestCommand groups the commands about manifests. None of them needs Consul.
func manifestCommand() *cli.Command {
	return group("manifest", "check documents of all kinds: pod manifests, rcs and services; needs no Consul",
		leaf(&cli.Command{
			Name: "check", Usage: "say whether a document is valid, and the digest of its manifest",
			UsageText: "rcctl manifest check -f FILE",
			Description: `Reads a manifest, the document of an rc, or one or more documents of services, and names every
mistake in it (exit code 2). Which of them a document is follows from its fields. What is valid and will not work on
most nodes is a warning, which changes no exit code. No artifact is asked for: a service's manifest has no digest yet
where one of its artifacts has no sha256.

Examples:
  rcctl manifest check -f web.yaml
  rcctl manifest check -f rc.yaml
  rcctl manifest check -f service.yaml`,
			Flags:  []cli.Flag{fileFlag()},
			Action: offline(checkDocuments),
		}),
		leaf(&cli.Command{
			Name: "canonical", Usage: "print the canonical JSON of a manifest: what is hashed and signed",
			UsageText: "rcctl manifest canonical -f FILE",
			Description: `Prints exactly the bytes that a digest and a signature are about, without a newline at the end.

Examples:
  rcctl manifest canonical -f web.yaml | sha256sum
  rcctl manifest canonical -f web.yaml | ssh-keygen -Y sign -f ~/.ssh/id_ed25519 -n rcfarm-manifest > web.sig`,
			Flags: []cli.Flag{fileFlag()},
			Action: onManifest(func(w io.Writer, _ *manifest.Manifest, canonical []byte) error {
				_, err := w.Write(canonical)
				return err
			}),
		}),
		schemaCommand("manifest", "manifests", "manifest.schema.json", "rcctl manifest check", docs.ManifestSchema),
	)
}

// onManifest is the action of a command about the manifest that -f names.
func onManifest(run func(w io.Writer, m *manifest.Manifest, canonical []byte) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		m, err := readManifest(c)
		if err != nil {
			return err
		}
		canonical, err := m.Canonical()
		if err != nil {
			return err
		}
		stdioOf(c).warnOf(m)
		return run(c.App.Writer, m, canonical)
	}
}

// schemaCommand prints the JSON Schema of one kind of documents. It needs no Consul.
func schemaCommand(group, of, file, moreIsSaidBy, schema string) *cli.Command {
	return leaf(&cli.Command{
		Name: "schema", Usage: "print the JSON Schema of " + of + ", for editors; needs no Consul",
		UsageText: "rcctl " + group + " schema",
		Description: `The schema accepts every valid document. What it cannot express, ` + moreIsSaidBy + ` says.

Examples:
  rcctl ` + group + ` schema > ` + file + `
and, as the first line of a document, for editors with yaml-language-server:
  # yaml-language-server: $schema=` + file,
		Action: offline(func(c *cli.Context, std *stdio) error {
			if _, err := noArgs(c); err != nil {
				return err
			}
			_, err := io.WriteString(std.out, schema)
			return err
		}),
	})
}
