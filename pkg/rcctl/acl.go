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
	return leaf(&cli.Command{
		Name: "policy", Usage: "print the rules that the token of a farm, preparer, operator or reader needs",
		UsageText: "rcctl acl policy farm|preparer|operator|reader [--node NODE] [--agent AGENT]",
		Description: `Where Consul denies what it does not allow, this is all that each of them needs, and nothing that another one's token is for.
Give each machine a token of its own: a preparer's is for one node. The agent is the name of the Consul agent beside a farm
or preparer (consul members shows it), whose sessions the token is for; of a preparer it is taken to be that of the
node, of a farm that of this host, unless --agent says otherwise. Nothing is asked of Consul.

Examples:
  rcctl acl policy preparer --node n1 | consul acl policy create -name rcfarm-n1 -rules -
  consul acl token create -description "rcfarm node n1" -policy-name rcfarm-n1
  rcctl acl policy farm --agent control-1`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "node", Usage: "`NODE` of a preparer, as its own flag --node says"},
			&cli.StringFlag{Name: "agent", Usage: "`AGENT` of Consul beside a farm or preparer"},
		},
		Action: offline(runPolicy),
	})
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
		return badFlag(c, "--prefix", keys.Prefix(), "no quotes, backslashes or control characters, which rules cannot hold")
	}
	node, agent := c.String("node"), c.String("agent")
	var errs field.Errors
	switch errs.CheckName("", node); {
	case role == store.RolePreparer && (node == "" || errs != nil):
		return badFlag(c, "--node", node, "the name of the preparer's node")
	case role != store.RolePreparer && node != "":
		return badFlag(c, "--node", node, "nothing: it is for the role preparer alone")
	case role != store.RolePreparer && role != store.RoleFarm && agent != "":
		return badFlag(c, "--agent", agent, "nothing: it is for the roles farm and preparer alone")
	case agent != "":
	case role == store.RolePreparer:
		agent = node
	default:
		if agent, err = os.Hostname(); err != nil {
			return badFlag(c, "--agent", "", "the name of the Consul agent beside the farm: this host's name is not known")
		}
	}
	if quoted(agent) {
		return badFlag(c, "--agent", agent, "the name of a Consul agent; consul members lists them")
	}
	fmt.Fprint(std.out, keys.Policy(role, node, agent))
	return nil
}

// quoted reports whether a name would have to be escaped in a rule.
func quoted(name string) bool {
	return strings.ContainsFunc(name, func(r rune) bool { return strings.ContainsRune(`"\$`, r) || !unicode.IsPrint(r) })
}
