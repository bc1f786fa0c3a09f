package consul

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
)

// aclHeader bears the ACL token of a request.
const aclHeader = "X-Consul-Token"

// tokenSource knows the token to use now. It is a file, or a fixed word.
type tokenSource struct {
	file string // empty: the token is fixed
	told func(error)

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
		token, err = readToken(s.file)
	}
	if err == nil {
		s.token, s.err = token, nil
		return
	}
	again := s.err != nil && s.err.Error() == err.Error()
	if s.err = err; s.token != "" && !again && s.told != nil {
		s.told(fmt.Errorf("%w; the token that it held before is used on", err))
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

// readToken returns the only word of a file.
func readToken(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	words := strings.Fields(string(data))
	if len(words) != 1 || strings.ContainsFunc(words[0], func(r rune) bool { return r > unicode.MaxASCII || unicode.IsControl(r) }) {
		return "", fmt.Errorf("token file: %s holds %d words; allowed: one, the token", file, len(words))
	}
	return words[0], nil
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
