package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
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
func (k *Keys) Policy(role Role, node, agent string) string {
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
		p.add("key_prefix", k.Intents.Below(node), "read")
		p.add("key", k.Intents.Below(node), "write") // the marker
		p.add("key_prefix", k.Realities.Below(node), "write")
		p.add("key_prefix", k.OrphanPages.Below(node), "write")
		p.add("key", k.Nodes.Key(node), "write")
		p.add("key", k.HeardNodes.Key(node), "write")
		p.add("key", k.Reservations.Key(node), "write") // for the version of its labels; see NodeSession.AcquireNode
		p.add("key_prefix", k.prefix+"bells/", "write")
		p.add("key_prefix", k.Drops.Key(), "write")
		p.add("key", k.Schema.Key(), "read")
		p.add("key", k.Gate.Key(), "read")
		p.add("key_prefix", k.Manifests.Key(), "read")
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
		p.add("node_prefix", "", "read") // which machines have failed
	}
	return p.String()
}

type policy struct{ strings.Builder }

func (p *policy) add(kind, name, access string) {
	fmt.Fprintf(p, "%s %q { policy = %q }\n", kind, name, access)
}

// OpenDoors returns, in words, what a request without a token may do at the local agent that would have something started on a node, or keep its
// preparer from its work. Pods reach that agent. Nothing is written.
func (s *Agents) OpenDoors(ctx context.Context, node string) ([]string, error) {
	agent, err := s.c.AgentNode(ctx)
	if err != nil {
		return nil, err
	}
	k := s.keys
	var rights []consul.Right
	for _, key := range []string{k.Intents.Below(node) + "x", k.RCs.Key("x"), k.Pods.Below("x") + "x", k.Manifests.Key("x"), k.Nodes.Key(node), k.NodeOps.Key(node), k.Locks.Key("x")} {
		rights = append(rights, consul.Right{Resource: "key", Segment: key, Access: "write"})
	}
	rights = append(rights, consul.Right{Resource: "acl", Access: "write"}, consul.Right{Resource: "session", Segment: agent, Access: "write"},
		consul.Right{Resource: "service", Segment: consul.ServiceName("preparer"), Access: "write"})
	allowed, err := s.c.ACL.Anonymous(ctx, rights)
	return field.Each(allowed, consul.Right.String), err
}
