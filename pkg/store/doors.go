package store

import (
	"context"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

// OpenDoors returns, in words, what a request without a token may do at the local agent that would have something started on a node, or keep its
// preparer from its work. Pods reach that agent. Nothing is written.
func (s *Store) OpenDoors(ctx context.Context, node string) ([]string, error) {
	agent, err := s.c.AgentNode(ctx)
	if err != nil {
		return nil, err
	}
	k := s.keys
	var rights []consul.Right
	for _, key := range []string{k.Intents(node) + "x", k.RC("x"), k.Pods("x") + "x", k.Manifest("x"), k.Node(node), k.NodeOps(node), k.Lock("x")} {
		rights = append(rights, consul.Right{Resource: "key", Segment: key, Access: "write"})
	}
	rights = append(rights, consul.Right{Resource: "acl", Access: "write"}, consul.Right{Resource: "session", Segment: agent, Access: "write"},
		consul.Right{Resource: "service", Segment: consul.ServiceName("preparer"), Access: "write"})
	allowed, err := s.c.Anonymous(ctx, rights)
	words := make([]string, len(allowed))
	for i, r := range allowed {
		words[i] = r.String()
	}
	return words, err
}
