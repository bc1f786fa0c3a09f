package nodeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// Client is a client of one node's API.
type Client struct {
	node, token string
	target      Target
	http        *http.Client // without a time limit
}

// NewClient accepts an empty token. roots verify the node's certificate; nil: the machine's certificates.
func NewClient(node string, target Target, token string, roots *x509.CertPool) *Client {
	return &Client{node: node, token: token, target: target, http: target.client(node, &tls.Config{RootCAs: roots})}
}

// ReadTokenOf reads the token of a node's API from a directory with one file for each node. The token is one word
// without control characters, because it is sent in an HTTP header. Only the last element of the node's name is used,
// because the name can come from a record.
func ReadTokenOf(dir, node string) (string, error) {
	file := filepath.Join(dir, filepath.Base(node))
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return "", fmt.Errorf("%s: it must hold one word", file)
	}
	return token, nil
}

// Roots reads trusted certificates from a file in PEM. It returns nil, the machine's certificates, if file is empty.
func Roots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s: there is no certificate in PEM", file)
	}
	return roots, nil
}

// Node is the node's name.
func (c *Client) Node() string { return c.node }

// Target is the address of the node's API.
func (c *Client) Target() Target { return c.target }

var (
	// ErrUnauthorized means that the token is missing or wrong.
	ErrUnauthorized = errors.New("refused")
	// ErrNotFound means that the node does not know the pod, the process or the log.
	ErrNotFound = errors.New("not found")
	// ErrOtherNode means that another node's preparer listens at the address.
	ErrOtherNode = errors.New("another node answers")
)

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// LogOptions selects logs of a pod, and the part to read.
type LogOptions struct {
	Process  string // empty: all processes
	Tail     int    // number of last lines; negative: all lines
	Follow   bool
	Previous bool // the output of the previous start
}

// Logs returns the logs of a pod. The caller closes them.
func (c *Client) Logs(ctx context.Context, id pod.Identity, o LogOptions) (io.ReadCloser, error) {
	q := url.Values{}
	if o.Process != "" {
		q.Set(paramProcess, o.Process)
	}
	if o.Tail >= 0 {
		q.Set(paramTail, strconv.Itoa(o.Tail))
	}
	if o.Follow {
		q.Set(paramFollow, "1")
	}
	if o.Previous {
		q.Set(paramPrevious, "1")
	}
	return c.ask(ctx, http.MethodGet, id, "logs", q, nil)
}

// Exec runs a command in a pod. When ctx ends, the node kills the command. If stdin is nil, the command's input is
// empty.
func (c *Client) Exec(ctx context.Context, id pod.Identity, process string, argv []string, stdin io.Reader, stdout,
	stderr io.Writer,
) (Ended, error) {
	q := url.Values{paramArg: argv}
	if process != "" {
		q.Set(paramProcess, process)
	}
	var body io.Reader
	if stdin != nil {
		q.Set(paramStdin, "1")
		pipe, feed := io.Pipe() // a read of stdin can block for ever, and must not delay the return
		go func() {
			_, err := io.Copy(feed, stdin)
			_ = feed.CloseWithError(err)
		}()
		stop := context.AfterFunc(ctx, func() { _ = feed.CloseWithError(context.Cause(ctx)) })
		defer stop()
		defer func() { _ = pipe.Close() }()
		body = pipe
	}
	answer, err := c.ask(ctx, http.MethodPost, id, "exec", q, body)
	if err != nil {
		return Ended{}, err
	}
	defer func() { _ = answer.Close() }()
	ended, err := readFrames(answer, stdout, stderr)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return ended, err
}

var wellKnown = map[int]error{
	http.StatusUnauthorized:       ErrUnauthorized,
	http.StatusNotFound:           ErrNotFound,
	http.StatusMisdirectedRequest: ErrOtherNode,
}

// ask sends a request about a pod. The caller closes the answer.
func (c *Client) ask(ctx context.Context, method string, id pod.Identity, what string, q url.Values,
	body io.Reader,
) (io.ReadCloser, error) {
	parts := []string{"", "v1", "nodes", c.node, "pods", id.RCID, id.Role, strconv.Itoa(id.Index), what}
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	resp, err := c.send(ctx, method, strings.Join(parts, "/"), q, body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // on an error, the status is enough
	why := strings.TrimSpace(string(text))
	if known := wellKnown[resp.StatusCode]; known != nil {
		return nil, fmt.Errorf("%w: %s", known, why)
	}
	return nil, fmt.Errorf("the preparer of node %s: %s", c.node, why)
}

// send needs an escaped path.
func (c *Client) send(ctx context.Context, method, path string, q url.Values, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.target.base()+path+"?"+q.Encode(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set(askHeader, "1")
	if path == scale.Path { // other requests have a command's input or no body
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the preparer of node %s: %w", c.node, err)
	}
	return resp, nil
}
