package rcctl

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/node"
)

func cordonCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "cordon", Usage: "keep new pods off a machine; those that are there stay",
		UsageText: "rcctl node cordon NODE",
		Description: `Farms place nothing new on the node from when they hear of it. To move its pods away too: rcctl node drain.

Examples:
  rcctl node cordon node-17
  rcctl node uncordon node-17`,
		Action: onNode("cordoned", func(ops node.Ops) nodeChange { return computeCordon(ops, true) }),
	})
}

func uncordonCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "uncordon", Usage: "let new pods onto a machine again",
		UsageText: "rcctl node uncordon NODE",
		Description: `The opposite of rcctl node cordon. A drain is not ended by it: rcctl node undrain.

Examples:
  rcctl node uncordon node-17`,
		Action: onNode("uncordoned", func(ops node.Ops) nodeChange { return computeCordon(ops, false) }),
	})
}

func computeCordon(ops node.Ops, ineligible bool) nodeChange {
	c := nodeChange{what: "cordon", ops: ops}
	if !ineligible {
		c.what = "uncordon"
	}
	if ops.Unschedulable != ineligible {
		c.lines = []string{fmt.Sprintf("unschedulable: %t -> %t", ops.Unschedulable, ineligible)}
	}
	c.ops.Unschedulable = ineligible
	return c
}
