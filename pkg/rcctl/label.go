package rcctl

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
)

func labelCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "label", Usage: "set and remove operators' labels of a machine",
		UsageText: "rcctl node label NODE KEY=VALUE ... KEY- ...",
		Description: `Operators' labels lie on top of those that the node's preparer was started with: they win where both have a key.
KEY- removes an operators' label; the preparer's own then shows again. From then on no pod is placed there by the
former labels. A pod whose controller does not select the node any more is moved, unless the controller is static.

Examples:
  rcctl node label node-17 disk=ssd rack=b
  rcctl node label node-17 disk-`,
		Action: onConn(readLabels, func(c *cli.Context, std *stdio, s *conn, args labelArgs) error {
			return actOnNode(c, std, s, args.name, "labelled", func(ops node.Ops) nodeChange { return computeLabels(ops, args.set, args.remove) })
		}),
	})
}

const labelsAllowed = `KEY=VALUE to set a label or KEY- to remove one, in Kubernetes' syntax for labels`

// labelArgs is what a command line says about labels of a node.
type labelArgs struct {
	name   string
	set    map[string]string
	remove []string
}

func readLabels(c *cli.Context) (args labelArgs, err error) {
	if args.name, err = nodeName.check(c, c.Args().First()); err == nil {
		args.set, args.remove, err = parseLabels(c, c.Args().Tail())
	}
	return args, err
}

// parseLabels reads what labels are to be set and removed. Every mistake is reported.
func parseLabels(c *cli.Context, args []string) (set map[string]string, remove []string, err error) {
	if len(args) == 0 {
		return nil, nil, badFlag(c, "LABEL", "", labelsAllowed)
	}
	set = map[string]string{}
	seen := map[string]bool{}
	for _, arg := range args {
		key, value, sets := strings.Cut(arg, "=")
		if !sets {
			var removes bool
			if key, removes = strings.CutSuffix(arg, "-"); !removes {
				return nil, nil, badFlag(c, "LABEL", arg, labelsAllowed)
			}
		}
		var errs field.Errors
		manifest.ValidateLabels(&errs, "LABEL", map[string]string{key: value})
		if key == "" || errs != nil {
			return nil, nil, badFlag(c, "LABEL", arg, labelsAllowed)
		}
		if seen[key] {
			return nil, nil, badFlag(c, "LABEL", arg, "each key once")
		}
		seen[key] = true
		if sets {
			set[key] = value
		} else {
			remove = append(remove, key)
		}
	}
	return set, remove, nil
}

func computeLabels(ops node.Ops, set map[string]string, remove []string) nodeChange {
	c := nodeChange{what: "label", ops: ops}
	c.ops.Labels = field.Merge(ops.Labels, set)
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if before, has := ops.Labels[key]; !has || before != set[key] {
			c.lines = append(c.lines, fmt.Sprintf("labels.%s: %s -> %s", key, orNone(before, has), set[key]))
		}
	}
	for _, key := range remove {
		if before, has := ops.Labels[key]; has {
			c.lines = append(c.lines, fmt.Sprintf("labels.%s: %s -> none", key, before))
		}
		delete(c.ops.Labels, key)
	}
	return c
}

func orNone(value string, has bool) string {
	if !has {
		return "none"
	}
	return value
}
