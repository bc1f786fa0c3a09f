package consul

import (
	"context"
	"fmt"
	"net/http"
)

// anonymousAccessor is the accessor of the token that Consul assumes for a request without one.
// Source: https://developer.hashicorp.com/consul/docs/security/acl/tokens#anonymous-token
const anonymousAccessor = "00000000-0000-0000-0000-000000000002"

// TokenName says for people whose ACL token the client uses: its description and accessor id, never the secret. It is
// empty when ACLs are off or no valid token is used; then Consul refuses whatever the anonymous token may not do.
func (c *Client) TokenName(ctx context.Context) (string, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	token, _, err := c.api.ACL().TokenReadSelf(Default.options(ctx))
	switch {
	case answered(err, http.StatusUnauthorized), answered(err, http.StatusForbidden): // "ACL support disabled", "ACL not found"
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read own ACL token: %w", err)
	case token.AccessorID == anonymousAccessor:
		return "", nil
	case token.Description == "":
		return "token " + token.AccessorID, nil
	default:
		return fmt.Sprintf("%s (token %s)", token.Description, token.AccessorID), nil
	}
}
