package rcctl

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func policyCommand() *cli.Command {
	return leaf("policy farm|preparer|operator|reader [--node NODE] [--agent AGENT]",
		"print the rules that the token of a farm, preparer, operator or reader needs",
		`The rules are for a Consul that denies by default. They allow all that the role needs, and nothing that only
another role needs. Give each machine a token of its own, because the rules of a preparer are for one node. --agent is
the name of the Consul agent beside the farm or preparer (consul members shows it); the token may create sessions
there. By default it is the name of the node for a preparer, and of this host for a farm. The command does not contact
Consul.

Examples:
  rcctl acl policy preparer --node n1 | consul acl policy create -name rcfarm-n1 -rules -
  consul acl token create -description "rcfarm node n1" -policy-name rcfarm-n1
  rcctl acl policy farm --agent control-1`,
		offline(runPolicy), option("node", "`NODE` of a preparer, as in its own flag --node"),
		option("agent", "`AGENT` of Consul beside a farm or preparer"),
	)
}

func runPolicy(c *cli.Context, std *stdio) error {
	role := store.Role(c.Args().First())
	if !slices.Contains(store.Roles, role) || c.NArg() > 1 {
		return usagef(c, "which role? allowed: one of farm, preparer, operator, reader")
	}
	keys, err := store.NewKeys(c.String("prefix"))
	if err != nil {
		return badFlagError(c, "--prefix", err)
	}
	if quoted(keys.Prefix()) {
		return badFlag(c, "--prefix", keys.Prefix(),
			"a prefix without quotes, backslashes, $ or control characters, because ACL rules cannot contain them")
	}
	node, agent := c.String("node"), c.String("agent")
	var errs field.Errors
	switch errs.CheckName("", node); {
	case role == store.RolePreparer && (node == "" || errs != nil):
		return badFlag(c, "--node", node, "the name of the preparer's node")
	case role != store.RolePreparer && node != "":
		return badFlag(c, "--node", node, "no --node for this role: only a preparer has one")
	case role != store.RolePreparer && role != store.RoleFarm && agent != "":
		return badFlag(c, "--agent", agent, "no --agent for this role: only a farm and a preparer have one")
	case agent != "":
	case role == store.RolePreparer:
		agent = node
	default:
		if agent, err = os.Hostname(); err != nil {
			return badFlag(c, "--agent", "",
				"the name of the Consul agent beside the farm, because the name of this host cannot be read")
		}
	}
	if quoted(agent) {
		return badFlag(c, "--agent", agent, "the name of a Consul agent; consul members lists them")
	}
	fmt.Fprint(std.out, keys.Policy(role, node, agent))
	return nil
}

func quoted(name string) bool {
	return strings.ContainsFunc(name, func(r rune) bool {
		return strings.ContainsRune(`"\$`, r) || !unicode.IsPrint(r)
	})
}
