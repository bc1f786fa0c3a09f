package consul

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// anonymousAccessor is the accessor of the token that Consul assumes for a request without one.
// Source: https://developer.hashicorp.com/consul/docs/security/acl/tokens#anonymous-token
const anonymousAccessor = "00000000-0000-0000-0000-000000000002"

// ACL is what tokens may do.
type ACL struct{ c *Client }

// TokenName says for people whose ACL token the client uses: its description and accessor id, never the secret. It is
// empty when ACLs are off or no valid token is used; then Consul refuses whatever the anonymous token may not do.
func (a *ACL) TokenName(ctx context.Context) (string, error) {
	ctx, cancel := a.c.call(ctx)
	defer cancel()
	token, _, err := a.c.api.ACL().TokenReadSelf(Default.options(ctx))
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

// aclHeader bears the ACL token of a request.
const aclHeader = "X-Consul-Token"

// tokenSource knows the token to use now. It is a file, or a fixed word.
type tokenSource struct {
	file        string // empty: the token is fixed
	onFileError func(error)

	mu    sync.Mutex
	token string
	state fileState // of the file when it was last read
	err   error     // why it could not be read then
}

// fileState tells two contents of a file apart without reading them.
type fileState struct {
	modified time.Time
	size     int64
	inode    uint64
}

// current returns the token. A file is read again when it has changed; what was good once is used until the file is good again. It
// returns an error where there has never been a token.
func (s *tokenSource) current() (string, error) {
	if s.file == "" {
		return s.token, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state, err := stateOf(s.file)
	if err != nil || state != s.state {
		s.state = state
		s.read(err)
	}
	if s.token != "" {
		return s.token, nil
	}
	return "", s.err
}

// none reports whether requests bear no token.
func (s *tokenSource) none() bool { return s.file == "" && s.token == "" }

// read takes the token from the file, unless err says that it cannot be read. The caller holds s.mu.
func (s *tokenSource) read(err error) {
	var token string
	if err == nil {
		if token, err = field.ReadWord(s.file); err != nil {
			err = fmt.Errorf("token file: %w", err)
		}
	}
	if err == nil {
		s.token, s.err = token, nil
		return
	}
	again := s.err != nil && s.err.Error() == err.Error()
	if s.err = err; s.token != "" && !again && s.onFileError != nil {
		s.onFileError(fmt.Errorf("%w; the token that it held before is used on", err))
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

// withoutToken is the key of a context whose requests bear no token.
type withoutToken struct{}

// bearer puts the present token on each request.
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
				_ = req.Body.Close() // as a RoundTripper must
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

// CheckToken returns why there is no token to use where one was promised: its file cannot be read.
func (c *Client) CheckToken() error {
	_, err := c.source.current()
	return err
}

// TokenID tells tokens apart without telling them: it changes when the token does. It is the same for all clients without one.
func (c *Client) TokenID() string {
	token, err := c.source.current()
	if token == "" || err != nil {
		return "none"
	}
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:8])
}

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
func (a *ACL) Anonymous(ctx context.Context, rights []Right) (allowed []Right, err error) {
	ctx, cancel := a.c.call(context.WithValue(ctx, withoutToken{}, true))
	defer cancel()
	body, err := json.Marshal(rights)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.c.base+"/v1/internal/acl/authorize", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := a.c.web.Do(req)
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
