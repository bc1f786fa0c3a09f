package consul

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// anonymousAccessor is the token that Consul assumes for a request without one. Source:
// https://developer.hashicorp.com/consul/docs/security/acl/tokens#anonymous-token
const anonymousAccessor = "00000000-0000-0000-0000-000000000002"

// ACL has the requests about tokens and their rights.
type ACL struct{ c *Client }

// TokenName returns the token's description and accessor id for people, never the secret. It is empty if ACLs are off,
// or if there is no valid token.
func (a *ACL) TokenName(ctx context.Context) (string, error) {
	ctx, cancel := a.c.call(ctx)
	defer cancel()
	token, _, err := a.c.api.ACL().TokenReadSelf(Default.options(ctx))
	switch {
	// "ACL support disabled", "ACL not found"
	case answered(err, http.StatusUnauthorized), answered(err, http.StatusForbidden):
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

const aclHeader = "X-Consul-Token"

// tokenSource has the token for requests: fixed, or from a file.
type tokenSource struct {
	file        string // empty: the token is fixed
	onFileError func(error)

	mu    sync.Mutex
	token string
	state fileState // of the file when it was last read
	err   error     // why the last read failed
}

type fileState struct {
	modified time.Time
	size     int64
	inode    uint64
}

// current returns the token, and reads a changed file again. If that fails, it returns the last good token. It returns
// an error if there has never been one.
func (t *tokenSource) current() (string, error) {
	if t.file == "" {
		return t.token, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	state, err := stateOf(t.file)
	if err != nil || state != t.state {
		t.state = state
		t.read(err)
	}
	if t.token != "" {
		return t.token, nil
	}
	return "", t.err
}

// none reports whether requests have no token.
func (t *tokenSource) none() bool { return t.file == "" && t.token == "" }

// read reads the file, or stores err if that is set. t.mu must be held.
func (t *tokenSource) read(err error) {
	var token string
	if err == nil {
		if token, err = field.ReadWord(t.file); err != nil {
			err = fmt.Errorf("token file: %w", err)
		}
	}
	if err == nil {
		t.token, t.err = token, nil
		return
	}
	again := t.err != nil && t.err.Error() == err.Error()
	if t.err = err; t.token != "" && !again && t.onFileError != nil {
		t.onFileError(fmt.Errorf("%w; the token that it held before is used on", err))
	}
}

func stateOf(file string) (fileState, error) {
	info, err := os.Stat(file)
	if err != nil {
		return fileState{}, fmt.Errorf("token file: %w", err)
	}
	state := fileState{modified: info.ModTime(), size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		state.inode = sys.Ino
	}
	return state, nil
}

// withoutToken in a context: send the request without a token.
type withoutToken struct{}

type bearer struct {
	source *tokenSource
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b *bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	var token string
	if req.Context().Value(withoutToken{}) == nil {
		var err error
		if token, err = b.source.current(); err != nil {
			if req.Body != nil {
				_ = req.Body.Close() // a RoundTripper must close it
			}
			return nil, err
		}
	}
	req = req.Clone(req.Context())
	req.Header.Del(aclHeader)
	if token != "" {
		req.Header.Set(aclHeader, token)
	}
	return b.next.RoundTrip(req)
}

// CheckToken returns an error if no token could be read from the token file yet.
func (c *Client) CheckToken() error {
	_, err := c.source.current()
	return err
}

// TokenID identifies the token without revealing it. It is equal for all clients without a token.
func (c *Client) TokenID() string {
	token, err := c.source.current()
	if token == "" || err != nil {
		return "none"
	}
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:8])
}

// Right is one permission of ACLs, in Consul's terms.
type Right struct {
	Resource string // such as "key" or "session"
	Segment  string `json:",omitempty"` // which key, session and so on
	Access   string // "read" or "write"
}

// String returns the right in words.
func (r Right) String() string {
	return strings.TrimSpace(r.Access + " " + r.Resource + " " + r.Segment)
}

// Anonymous returns which rights a request without a token has at the local agent; all, if ACLs are off. A pod can send
// such a request. Anonymous writes nothing. It uses an endpoint of Consul's web pages that is not documented, so a test
// asks the real server.
func (a *ACL) Anonymous(ctx context.Context, rights []Right) (allowed []Right, err error) {
	ctx, cancel := a.c.call(context.WithValue(ctx, withoutToken{}, true))
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("ask what requests without a token may do: %w", err)
		}
	}()
	body, err := json.Marshal(rights)
	if err != nil {
		return nil, err
	}
	data, err := a.c.ask(ctx, http.MethodPost, "/v1/internal/acl/authorize", body)
	if status, is := errors.AsType[api.StatusError](err); is {
		if status.Code == http.StatusUnauthorized && strings.Contains(status.Body, "ACL support disabled") {
			return slices.Clone(rights), nil
		}
		return nil, fmt.Errorf("status %d: %.200s", status.Code, status.Body)
	}
	if err != nil {
		return nil, err
	}
	var answer []struct {
		Right
		Allow bool
	}
	if err := json.Unmarshal(data, &answer); err != nil || len(answer) != len(rights) {
		return nil, fmt.Errorf("%d answers to %d questions: %w", len(answer), len(rights), err)
	}
	for i, a := range answer {
		if a.Right != rights[i] {
			return nil, fmt.Errorf("asked for %q, the answer is about %q", rights[i], a.Right)
		}
		if a.Allow {
			allowed = append(allowed, a.Right)
		}
	}
	return allowed, nil
}
