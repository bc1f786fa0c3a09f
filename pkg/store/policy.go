package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
)

// Role is the role of a token.
type Role string

// The roles.
const (
	RoleFarm     Role = "farm"
	RolePreparer Role = "preparer"
	RoleOperator Role = "operator" // people who use commands of rcctl that change something
	RoleReader   Role = "reader"   // people who only read
)

// Roles are all roles.
var Roles = []Role{RoleFarm, RolePreparer, RoleOperator, RoleReader}

// Policy returns the rules, in Consul's language, that a role needs if the default policy is deny; "" for another role.
// node is a preparer's node. agent is the local Consul agent of a farm or preparer, to which its sessions belong.
// Neither may contain quotes.
//
// A rule about a prefix ends with a slash, because the prefix of "node1" would also match "node10". If two rules match
// a key, the longer one applies.
func (k *Keys) Policy(role Role, node, agent string) string {
	var p policy
	switch role {
	case RoleFarm:
		p.add("key_prefix", k.prefix, "write")
		p.add("session", agent, "write")
		p.add("agent", agent, "read")
		p.add("service", "rcfarm-farm", "write")
		p.add("service_prefix", "", "read") // to find failed machines, which Consul derives from checks
		p.add("node_prefix", "", "read")
	case RolePreparer:
		p.add("key_prefix", k.Intents.Below(node), "read")
		p.add("key", k.Intents.Below(node), "write") // the marker
		p.add("key_prefix", k.Realities.Below(node), "write")
		p.add("key_prefix", k.OrphanPages.Below(node), "write")
		p.add("key", k.Nodes.Key(node), "write")
		p.add("key", k.HeardNodes.Key(node), "write")
		// for the label version; see NodeSession.AcquireNode
		p.add("key", k.Reservations.Key(node), "write")
		p.add("key_prefix", k.prefix+"bells/", "write")
		p.add("key_prefix", k.Drops.Key(), "write")
		p.add("key", k.Schema.Key(), "read")
		p.add("key", k.Gate.Key(), "read")
		p.add("key_prefix", k.Manifests.Key(), "read")
		p.add("session", agent, "write")
		p.add("agent", agent, "read")
		p.add("service_prefix", "", "write") // because pods choose the names of their services
		p.add("service_prefix", "rcfarm-", "read")
		p.add("service", "rcfarm-preparer", "write")
		p.add("node_prefix", "", "read")
	case RoleOperator:
		p.add("key_prefix", k.prefix, "write")
		p.add("service_prefix", "", "read") // needed by rcctl node forget; farms have this rule too
		p.add("node_prefix", "", "read")
	case RoleReader:
		p.add("key_prefix", k.prefix, "read")
		p.add("node_prefix", "", "read") // to find failed machines
	}
	return p.String()
}

type policy struct{ strings.Builder }

func (p *policy) add(kind, name, access string) {
	fmt.Fprintf(p, "%s %q { policy = %q }\n", kind, name, access)
}

// OpenDoors names the dangerous rights of requests without a token, such as to start a program on the node, or to keep
// its preparer from its work. Pods can send such requests to the local agent. OpenDoors writes nothing.
func (a *Agents) OpenDoors(ctx context.Context, node string) ([]string, error) {
	agent, err := a.c.AgentNode(ctx)
	if err != nil {
		return nil, err
	}
	k := a.keys
	var rights []consul.Right
	for _, key := range []string{
		k.Intents.Below(node) + "x", k.RCs.Key("x"), k.Pods.Below("x") + "x",
		k.Manifests.Key("x"), k.Nodes.Key(node), k.NodeOps.Key(node), k.Locks.Key("x"),
	} {
		rights = append(rights, consul.Right{Resource: "key", Segment: key, Access: "write"})
	}
	rights = append(rights, consul.Right{Resource: "acl", Access: "write"},
		consul.Right{Resource: "session", Segment: agent, Access: "write"},
		consul.Right{Resource: "service", Segment: consul.ServiceName("preparer"), Access: "write"})
	allowed, err := a.c.ACL.Anonymous(ctx, rights)
	return field.Each(allowed, consul.Right.String), err
}
