package rcctl

import (
	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

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
