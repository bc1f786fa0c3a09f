package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// Right is one thing that ACLs may allow, in Consul's words.
type Right struct {
	Resource string // such as "key" or "session"
	Segment  string `json:",omitempty"` // which one of them
	Access   string // "read" or "write"
}

// String says it in words.
func (r Right) String() string {
	return strings.TrimSpace(r.Access + " " + r.Resource + " " + r.Segment)
}

// maxAuthorized bounds what is read of an answer, in bytes.
const maxAuthorized = 1 << 20

// Anonymous returns which of some rights a request to the local agent has that bears no token, as those of pods do. It writes nothing. Without
// ACLs that is all of them. Consul's own pages ask in this way; no documentation tells of it, so that a test asks the real server.
func (c *Client) Anonymous(ctx context.Context, rights []Right) (allowed []Right, err error) {
	ctx, cancel := c.call(context.WithValue(ctx, withoutToken{}, true))
	defer cancel()
	body, err := json.Marshal(rights)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/internal/acl/authorize", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := c.web.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask what requests without a token may do: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAuthorized))
	if err != nil {
		return nil, fmt.Errorf("ask what requests without a token may do: %w", err)
	}
	var answer []struct {
		Right
		Allow bool
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized && strings.Contains(string(data), "ACL support disabled"):
		return slices.Clone(rights), nil
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("ask what requests without a token may do: status %d: %.200s", resp.StatusCode, data)
	}
	if err := json.Unmarshal(data, &answer); err != nil || len(answer) != len(rights) {
		return nil, fmt.Errorf("ask what requests without a token may do: %d answers to %d questions: %w", len(answer), len(rights), err)
	}
	for i, a := range answer {
		if a.Right != rights[i] {
			return nil, fmt.Errorf("ask what requests without a token may do: asked for %q, told about %q", rights[i], a.Right)
		}
		if a.Allow {
			allowed = append(allowed, a.Right)
		}
	}
	return allowed, nil
}
