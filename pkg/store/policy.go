package store

import (
	"fmt"
	"strings"
)

// Role is what the bearer of a token does.
type Role string

// The roles that Policy knows.
const (
	RoleFarm     Role = "farm"
	RolePreparer Role = "preparer"
	RoleOperator Role = "operator" // whoever types commands of rcctl that change something
	RoleReader   Role = "reader"   // whoever only looks
)

// Roles are all of them.
var Roles = []Role{RoleFarm, RolePreparer, RoleOperator, RoleReader}

// Policy returns the rules, in Consul's language, that a role needs where the default policy is deny. node is the name of a preparer's
// node, and agent that of the Consul agent beside a daemon, where its sessions are; a role without need of them ignores them. Neither may
// hold quotes. It returns "" for a role that does not exist.
//
// A rule about a key is exact, one about a prefix holds below it; prefixes that are a node's end with a slash, because "node1" would
// match "node10", too. Of two rules the longer one counts.
func (k Keys) Policy(role Role, node, agent string) string {
	var p policy
	switch role {
	case RoleFarm:
		p.add("key_prefix", k.prefix, "write")
		p.add("session", agent, "write")
		p.add("agent", agent, "read")
		p.add("service", "rcfarm-farm", "write")
		p.add("service_prefix", "", "read") // which machines have failed is asked of their checks
		p.add("node_prefix", "", "read")
	case RolePreparer:
		p.add("key_prefix", k.Intents(node), "read")
		p.add("key", k.Intents(node), "write") // the marker
		p.add("key_prefix", k.Realities(node), "write")
		p.add("key_prefix", k.OrphanPages(node), "write")
		p.add("key", k.Node(node), "write")
		p.add("key", k.HeardNode(node), "write")
		p.add("key", k.Reservation(node), "write") // for the stamp of its labels; see NodeTenure.Hold
		p.add("key_prefix", k.prefix+"bells/", "write")
		p.add("key_prefix", k.Drops(""), "write")
		p.add("key", k.Schema(), "read")
		p.add("key_prefix", k.Manifest(""), "read")
		p.add("session", agent, "write")
		p.add("agent", agent, "read")
		p.add("service_prefix", "", "write") // pods choose the names of their services
		p.add("service_prefix", "rcfarm-", "read")
		p.add("service", "rcfarm-preparer", "write")
		p.add("node_prefix", "", "read")
	case RoleOperator:
		p.add("key_prefix", k.prefix, "write")
		p.add("service_prefix", "", "read") // for rcctl node forget, as of farms
		p.add("node_prefix", "", "read")
	case RoleReader:
		p.add("key_prefix", k.prefix, "read")
	}
	return p.String()
}

type policy struct{ strings.Builder }

func (p *policy) add(kind, name, access string) {
	fmt.Fprintf(p, "%s %q { policy = %q }\n", kind, name, access)
}
