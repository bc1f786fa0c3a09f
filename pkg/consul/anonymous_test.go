package consul_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// Anonymous asks Consul without the client's own token, and writes nothing. If ACLs are off, such a request has all
// rights. Else it has the rights of the anonymous token, or of the agent's default token.
func TestAnonymous(t *testing.T) {
	t.Parallel()
	rights := []consul.Right{
		{Resource: "key", Segment: "anon/rcs/x", Access: "write"},
		{Resource: "key", Segment: "other/x", Access: "write"},
		{Resource: "acl", Access: "write"},
		{Resource: "session", Segment: "here", Access: "write"},
		{Resource: "service", Segment: "web", Access: "write"},
	}
	open, _, _ := setup(t)
	if got, err := open.ACL.Anonymous(t.Context(), rights); err != nil || !slices.Equal(got, rights) {
		t.Errorf("without ACLs: %v, %v", got, err)
	}
	g := startGuarded(t)
	c := clientOf(t, consul.Config{Address: g.addr, Token: managementToken})
	var got []consul.Right
	consultest.Eventually(t, patience, func() (err error) { // wait until there is an anonymous token
		got, err = c.ACL.Anonymous(t.Context(), rights)
		return err
	})
	if len(got) != 0 {
		t.Errorf("where nothing is allowed: %v", got)
	}
	policy, _, err := g.raw.ACL().PolicyCreate(
		&api.ACLPolicy{Name: "anonymous", Rules: `key_prefix "anon/" { policy = "write" }`}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := g.raw.ACL().TokenUpdate(&api.ACLToken{
		AccessorID: "00000000-0000-0000-0000-000000000002",
		Policies:   []*api.ACLLink{{ID: policy.ID}},
	}, nil); err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, patience, func() error {
		if got, err = c.ACL.Anonymous(t.Context(), rights); err == nil && !slices.Equal(got, rights[:1]) {
			err = fmt.Errorf("%v", got)
		}
		return err
	})
	if _, err := g.raw.Agent().UpdateDefaultACLToken(managementToken, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := c.ACL.Anonymous(t.Context(), rights); err != nil || !slices.Equal(got, rights) {
		t.Errorf("with a default token of the agent: %v, %v", got, err)
	}
	p := consultest.StartProxy(t, g.addr)
	p.Set(func(r *http.Request) consultest.Verdict {
		if r.Header.Get("X-Consul-Token") != "" {
			t.Errorf("asked with a token")
		}
		return consultest.CutBefore
	})
	if got, err := clientOf(t, consul.Config{Address: p.Addr, Token: managementToken}).ACL.Anonymous(t.Context(),
		rights); err == nil {
		t.Errorf("without an answer: %v", got)
	}
}
