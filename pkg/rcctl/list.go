package rcctl

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
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
	recs, corrupt, err := s.RCs.List(c.Context, store.Default)
	if err != nil {
		return err
	}
	found, corruptStatus, err := s.Statuses.List(c.Context, store.Default)
	if err != nil {
		return err
	}
	farms, err := s.farms(c.Context)
	if err != nil {
		return err
	}
	views := inspect.Selected(inspect.JoinRCs(recs, found, farms), selectorOf(c), func(v *inspect.RCView) map[string]string { return v.Labels })
	return printList(c, std, s, views, append(corrupt, corruptStatus...), none("rcs", c.IsSet("selector"), "create one: rcctl apply -f rc.yaml"),
		table{header: []string{"NAME", "ID", "AVAILABLE", "STATE", "GEN", "MANIFEST"}, paint: 3, colourOf: rcColour}, func(v *inspect.RCView) []string {
			available := "-"
			if v.Status != nil {
				available = fmt.Sprint(v.Status.Available)
			}
			return []string{v.Name, v.ID, fmt.Sprintf("%s/%d", available, v.Replicas), v.State, fmt.Sprint(v.Generation), inspect.Short(v.ManifestDigest)}
		})
}

// printList prints what a command lists in the format that the command line asks for, and says what could not be read. none is the line of
// an empty table, and row makes the cells of any other below the header of tb.
func printList[V any](c *cli.Context, std *stdio, s *conn, views []V, corrupt []error, none string, tb table, row func(*V) []string) error {
	if len(views) == 0 {
		if err := s.empty(c.Context, std.err); err != nil {
			return err
		}
	}
	return std.print(c, views, corrupt, func(w io.Writer) error {
		if len(views) == 0 {
			_, err := fmt.Fprintln(w, none)
			return err
		}
		for i := range views {
			tb.rows = append(tb.rows, row(&views[i]))
		}
		return tb.write(w, coloured(w))
	})
}

const selectorAllowed = "a selector of labels in Kubernetes' syntax, such as app=web,tier in (a,b),!old"

// selectorFlag chooses by labels what is listed. What is no selector is refused before anything else is looked at.
func selectorFlag(what string) cli.Flag {
	return &cli.StringFlag{
		Name: "selector", Aliases: []string{"l"}, Usage: "only " + what + " whose labels this `SELECTOR` selects, in Kubernetes' syntax: app=web,tier in (a,b)",
		Action: func(c *cli.Context, text string) error {
			if _, err := rc.ParseSelector(text); err != nil {
				return badFlag(c, "--selector", text, selectorAllowed)
			}
			return nil
		},
	}
}

// selectorOf is the selector of a command line; without one it selects everything.
func selectorOf(c *cli.Context) labels.Selector {
	sel, err := rc.ParseSelector(c.String("selector"))
	if err != nil {
		return labels.Nothing() // the flag has refused it
	}
	return sel
}

// none says that nothing is listed, and what to do about it; where a selector chose, it may be that.
func none(what string, selected bool, next string) string {
	if selected {
		return "no " + what + " with such labels"
	}
	return "no " + what + "; " + next
}
