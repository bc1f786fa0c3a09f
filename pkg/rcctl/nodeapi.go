package rcctl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"unicode"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// nodeFlags are those of the program that say how preparers are reached.
func nodeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "node-token-file", EnvVars: []string{"RCFARM_NODE_TOKEN_FILE"}, Usage: "`FILE` with the token of the preparers, for logs and exec"},
		&cli.StringFlag{Name: "node-ca", EnvVars: []string{"RCFARM_NODE_CA"}, Usage: "`FILE` with the certificates, in PEM, that vouch for preparers (default: the system's)"},
		&cli.BoolFlag{Name: "node-insecure", EnvVars: []string{"RCFARM_NODE_INSECURE"}, Usage: "send the token to preparers without TLS, too"},
	}
}

// nodeAccess is what the flags of the program say about that.
type nodeAccess struct {
	command       string // whose flags they are
	tokenFile, ca string
	insecure      bool
}

func accessOf(c *cli.Context) nodeAccess {
	return nodeAccess{command: commandName(c), tokenFile: c.String("node-token-file"), ca: c.String("node-ca"), insecure: c.Bool("node-insecure")}
}

// bad is a flag that names a file of no use.
func (a *nodeAccess) bad(flag, file, allowed string) error {
	return &usageError{command: a.command, err: &field.Error{Field: flag, Value: file, Allowed: allowed}}
}

// preparerOf finds the copy of a pod that the command line means, and returns a client of its node's preparer.
func (t *tool) preparerOf(c *cli.Context, ref string) (PodView, *nodeapi.Client, error) {
	s, err := t.connect(c)
	if err != nil {
		return PodView{}, nil, err
	}
	defer s.close()
	target, err := s.findPod(c, ref)
	if err != nil {
		return target, nil, err
	}
	client, err := t.nodeClient(c.Context, s, target.Node)
	return target, client, err
}

// nodeClient returns a client of the preparer of a node.
func (t *tool) nodeClient(ctx context.Context, s *conn, name string) (*nodeapi.Client, error) {
	rec, err := s.Node(ctx, name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, &notFoundError{text: fmt.Sprintf("node %s has no record; rcctl nodes shows all", name)}
	case err != nil:
		return nil, fmt.Errorf("read node %s: %w", name, err)
	case rec.Value.API == "":
		return nil, refusedf("the preparer of node %s offers no logs and commands; its flag --api-addr does", name)
	}
	address, err := url.Parse(rec.Value.API)
	if err != nil || address.Host == "" {
		return nil, fmt.Errorf("node %s: api: %q is not valid; allowed: a URL", name, rec.Value.API)
	}
	client := &nodeapi.Client{URL: strings.TrimSuffix(rec.Value.API, "/"), Node: name}
	if file := s.nodes.tokenFile; file != "" {
		data, err := os.ReadFile(file)
		words := strings.Fields(string(data))
		if err != nil || len(words) != 1 || strings.ContainsFunc(words[0], unicode.IsControl) {
			return nil, s.nodes.bad("--node-token-file", file, "a file that can be read and holds a token, which is one word")
		}
		client.Token = words[0]
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	if file := s.nodes.ca; file != "" {
		data, err := os.ReadFile(file)
		pool := x509.NewCertPool()
		if err != nil || !pool.AppendCertsFromPEM(data) {
			return nil, s.nodes.bad("--node-ca", file, "a file of certificates in PEM that can be read")
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	client.HTTP = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	// The record says where, and whoever may write it must not be given what opens every node.
	if client.Token != "" && address.Scheme != "https" && !onThisMachine(address) && !s.nodes.insecure {
		return nil, refusedf("the token would go to %s in clear, and to whoever listens there: give the preparer --api-tls-cert, or add --node-insecure; nothing was sent", address.Host)
	}
	if rec.Session == "" {
		fmt.Fprintf(t.err, "rcctl: the preparer of node %s does not hold its record: it may not run\n", name)
	}
	return client, nil
}

// onThisMachine reports whether an address is a loopback one: that of this machine, be it meant or not.
func onThisMachine(address *url.URL) bool {
	return address.Hostname() == "localhost" || net.ParseIP(address.Hostname()).IsLoopback()
}

// nodeError says what a failed request means to whoever typed it.
func nodeError(client *nodeapi.Client, err error) error {
	if err == nil {
		return nil
	}
	address, parseErr := url.Parse(client.URL)
	local := parseErr == nil && onThisMachine(address)
	var dial *net.OpError
	switch {
	case errors.Is(err, nodeapi.ErrUnauthorized):
		return refusedf("the preparer of node %s: %v; --node-token-file or RCFARM_NODE_TOKEN_FILE names the file that holds it", client.Node, err)
	case errors.Is(err, nodeapi.ErrNotFound):
		return &notFoundError{text: fmt.Sprintf("node %s: %v", client.Node, err)}
	case local && (errors.Is(err, nodeapi.ErrOtherNode) || errors.As(err, &dial) && dial.Op == "dial"):
		return refusedf("the preparer of node %s listens on its own loopback address, %s: type this on that machine, or give the preparer another --api-addr", client.Node, address.Host)
	case errors.As(err, &dial) && dial.Op == "dial":
		return &nodeAway{fmt.Errorf("the preparer of node %s cannot be reached: %w", client.Node, errors.New(dial.Error()))}
	default:
		return &nodeAway{err}
	}
}

// nodeAway is trouble with a preparer, as opposed to Consul.
type nodeAway struct{ err error }

func (e *nodeAway) Error() string { return e.err.Error() }
