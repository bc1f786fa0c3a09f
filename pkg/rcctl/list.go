package rcctl

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
)

func listCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "list", Aliases: []string{"ls"}, Usage: "list all rcs",
		UsageText: "rcctl rc list [-l SELECTOR] [-o table|json|yaml]",
		Description: `Examples:
  rcctl rc list
  rcctl rc list -l team=shop
  rcctl rc list -o json | jq -r '.[] | select(.state != "Converged") | .name'`,
		Flags:  []cli.Flag{selectorFlag("rcs"), outputFlag()},
		Action: onList(runList),
	})
}

func runList(c *cli.Context, std *stdio, s *conn) error {
	recs, corrupt, err := s.ListRCs(c.Context)
	if err != nil {
		return err
	}
	found, corruptStatus, err := s.ListStatus(c.Context)
	if err != nil {
		return err
	}
	farms, err := s.farms(c.Context)
	if err != nil {
		return err
	}
	views := inspect.Selected(inspect.JoinRCs(recs, found, farms), selectorOf(c), func(v *inspect.RCView) map[string]string { return v.Labels })
	if len(views) == 0 {
		if err := s.empty(c.Context, std.err); err != nil {
			return err
		}
	}
	if err := std.print(c, views, func(w io.Writer) error { return writeRCs(w, views, c.IsSet("selector"), coloured(w)) }); err != nil {
		return err
	}
	return std.warn(append(corrupt, corruptStatus...))
}

func writeRCs(w io.Writer, views []inspect.RCView, selected, colours bool) error {
	if len(views) == 0 {
		return none(w, "rcs", selected, "create one: rcctl apply -f rc.yaml")
	}
	tb := table{header: []string{"NAME", "ID", "AVAILABLE", "STATE", "GEN", "MANIFEST"}, paint: 3, colourOf: rcColour}
	for _, v := range views {
		available := "-"
		if v.Status != nil {
			available = fmt.Sprint(v.Status.Available)
		}
		tb.rows = append(tb.rows, []string{v.Name, v.ID, fmt.Sprintf("%s/%d", available, v.Replicas), v.State, fmt.Sprint(v.Generation), inspect.Short(v.ManifestDigest)})
	}
	return tb.write(w, colours)
}
