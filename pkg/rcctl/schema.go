package rcctl

import (
	"github.com/urfave/cli/v2"
)

// schemaCommand prints the JSON Schema of one kind of documents. It needs no Consul.
func schemaCommand(group, of, file, moreIsSaidBy string, make func() ([]byte, error)) *cli.Command {
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
			text, err := make()
			if err != nil {
				return err
			}
			_, err = std.out.Write(text)
			return err
		}),
	})
}
