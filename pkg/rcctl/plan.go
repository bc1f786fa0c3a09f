package rcctl

import (
	"fmt"
	"io"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/inspect"
)

func planCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "plan", Usage: "show what deploying a document would do; writes nothing",
		UsageText: "rcctl plan -f FILE [--recreate] [--strategy STRATEGY] [-o table|json|yaml]",
		Description: `Exit code 0: the services are as the documents say. Exit code 6: there is something to do. What cannot work is refused with exit
code 4, the reason and what would work.

Examples:
  rcctl plan -f web.yaml
  rcctl plan -f web.yaml --strategy in-place
  rcctl plan -f web.yaml -o json | jq '.[].change.fields[] | [.path, .from, .to]'`,
		Flags:  append([]cli.Flag{fileFlag(), outputFlag()}, planFlags()...),
		Action: onConn(readServices, runPlan),
	})
}

func runPlan(c *cli.Context, std *stdio, s *conn, specs []*record.ServiceSpec) error {
	all, err := planAll(c, std, s, specs)
	if err != nil {
		return err
	}
	views := make([]inspect.PlanView, len(all))
	for i, p := range all {
		views[i] = inspect.NewPlanView(&p.plan)
	}
	err = std.print(c, views, nil, func(w io.Writer) error { writePlans(w, all, coloured(w)); return nil })
	if err == nil && anyChange(all) {
		return &codedError{code: exitChanges}
	}
	return err
}

func anyChange(all []*planned) bool {
	return slices.ContainsFunc(all, func(p *planned) bool { return !p.plan.Empty() })
}

// maxPlanFields bounds how many fields of one document are shown.
const maxPlanFields = 40

// writePlans shows plans: the difference by field, the tree of operations, a summary.
func writePlans(w io.Writer, all []*planned, colours bool) {
	total := map[plan.Sign]int{}
	for _, p := range all {
		writePlan(w, p, colours)
		for sign, n := range plan.Counts(p.plan.Format(0)) {
			total[sign] += n
		}
	}
	if len(total) == 0 {
		fmt.Fprintln(w, "plan: nothing to do")
		return
	}
	fmt.Fprintf(w, "plan: %d to add, %d to change, %d to replace, %d to remove\n", total[plan.Added], total[plan.Changed], total[plan.Replaced], total[plan.Removed])
}

func writePlan(w io.Writer, p *planned, colours bool) {
	name, before := p.plan.ServiceName, p.deployment.Service
	if p.plan.Empty() {
		fmt.Fprintf(w, "service %s: up to date, revision %d\n", name, before.InEffect().Revision)
		return
	}
	switch {
	case before == nil:
		fmt.Fprintf(w, "service %s: new\n", name)
	case len(p.plan.Change.Fields) == 0:
		fmt.Fprintf(w, "service %s: the same document, revision %d\n", name, before.InEffect().Revision)
	default:
		fmt.Fprintf(w, "service %s: %s, revision %d\n", name, p.plan.Change.Kind, before.InEffect().Revision)
		for i, f := range p.plan.Change.Fields {
			if i == maxPlanFields {
				fmt.Fprintf(w, "    and %d more fields; rcctl plan -o json shows all\n", len(p.plan.Change.Fields)-i)
				break
			}
			fmt.Fprintf(w, "    %s  (%s)\n", clean(forTerminal(f.String())), f.Why)
		}
	}
	fmt.Fprintln(w)
	for _, l := range p.plan.Format(0) {
		sign := fmt.Sprintf("%-3s", l.Sign) // all in the same width
		if colours {
			shade := map[plan.Sign]colour{plan.Added: green, plan.Removed: red, plan.Changed: yellow, plan.Replaced: yellow}[l.Sign]
			sign = string(shade) + sign + string(plainColour)
		}
		fmt.Fprintf(w, "  %*s%s %s\n", 2*l.Depth, "", sign, clean(l.Text))
	}
	for _, warning := range p.plan.Warnings {
		fmt.Fprintf(w, "  warning: %s\n", clean(warning))
	}
	fmt.Fprintln(w)
}
