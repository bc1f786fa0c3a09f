package rcctl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// preparerOf closes the connections to Consul, because following a log may take long.
func preparerOf(s *conn, ref string) (target inspect.PodView, client *nodeapi.Client, err error) {
	defer s.close()
	if target, err = s.findPod(ref); err == nil {
		client, err = nodeClient(s.Context, s, target.Node)
	}
	return target, client, err
}

// recordOf makes a stale read if Consul has no leader, because only stale reads work then. The address may be old, but
// the API refuses requests for another node.
func recordOf(ctx context.Context, s *conn, name string) (store.Rec[node.Node], error) {
	rec, err := s.Nodes.Get(ctx, store.Consistent, name)
	if err == nil || isMissing(err) || ctx.Err() != nil {
		return rec, err
	}
	stale, staleErr := s.Nodes.Get(ctx, store.Stale, name)
	if staleErr != nil {
		return rec, err
	}
	s.note("the record of node %s may be old: %v", name, err)
	return stale, nil
}

func nodeClient(ctx context.Context, s *conn, name string) (*nodeapi.Client, error) {
	rec, err := recordOf(ctx, s, name)
	switch {
	case isMissing(err):
		return nil, notFoundf("node %s has no record; rcctl nodes shows all", name)
	case err != nil:
		return nil, fmt.Errorf("read node %s: %w", name, err)
	case rec.Value.API == "":
		return nil, refusedf("the preparer of node %s has no API for logs and commands; start it with --api-addr", name)
	}
	target, err := nodeapi.ParseTarget(rec.Value.API)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	var token string
	if dir := s.String("node-token-dir"); dir != "" && target.Socket() == "" {
		if token, err = nodeapi.ReadTokenOf(dir, name); err != nil {
			return nil, badFlag(s.flags, "--node-token-dir",
				dir, fmt.Sprintf("a directory with a readable file %q that "+
					"contains the token of that node's preparer, one word", name))
		}
	}
	roots, err := nodeapi.Roots(s.String("node-ca"))
	if err != nil {
		return nil, badOption(s.flags, "node-ca", "a file of certificates in PEM that can be read")
	}
	// The address comes from a record. Without TLS, anybody who can write that record would get the node's token.
	if token != "" && target.InClear() {
		return nil, refusedf("node %s: rcctl sends no token to %s, because it has no TLS, and another program could "+
			"listen there; start its preparer with --api-tls-cert and --api-tls-key; nothing was sent",
			name, target.Host())
	}
	if rec.Session == "" {
		s.note("the preparer of node %s does not hold the lock of its record, so it may not be running", name)
	}
	return nodeapi.NewClient(name, target, token, roots), nil
}

func nodeError(client *nodeapi.Client, err error) error {
	if err == nil {
		return nil
	}
	node, target := client.Node(), client.Target()
	var dial *net.OpError
	notReached := errors.As(err, &dial) && dial.Op == "dial"
	certificate, notBelieved := errors.AsType[*tls.CertificateVerificationError](err)
	_, otherName := errors.AsType[x509.HostnameError](err)
	elsewhere := errors.Is(err, nodeapi.ErrOtherNode) || notReached
	const otherwise = "or start its preparer with --api-addr HOST:PORT, --api-token-file, --api-tls-cert and " +
		"--api-tls-key"
	switch {
	case errors.Is(err, nodeapi.ErrUnauthorized):
		return refusedf("the preparer of node %s: %v; --node-token-dir or RCFARM_NODE_TOKEN_DIR names a directory "+
			"with a file %q that holds it", node, err, node)
	case errors.Is(err, nodeapi.ErrNotFound):
		return notFoundf("node %s: %v", node, err)
	case target.Socket() != "" && errors.Is(err, fs.ErrPermission):
		return refusedf("only root and the user of the preparer may use the API of node %s: run rcctl as one of "+
			"them, %s", node, otherwise)
	case target.Socket() != "" && elsewhere:
		return refusedf("the API of node %s listens on a socket of its machine, %s: run rcctl there while its "+
			"preparer runs, %s", node, target.Socket(), otherwise)
	case target.Loopback() && elsewhere:
		return refusedf("the preparer of node %s listens on its own loopback address, %s: run rcctl on that machine, "+
			"or give the preparer another --api-addr", node, target.Host())
	case notReached:
		return awayf("the preparer of node %s cannot be reached: %v", node, dial)
	case notBelieved && otherName:
		return awayf("the certificate of the preparer of node %s at %s: %v; start the preparer with a certificate for "+
			"the name %s: --api-tls-cert", node, target.Host(), certificate.Err, node)
	case notBelieved:
		return awayf("the certificate of the preparer of node %s at %s: %v; set --node-ca or RCFARM_NODE_CA to the "+
			"file with the certificates of its CA", node, target.Host(), certificate.Err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return awayf("the preparer of node %s: the server at %s answers without TLS; start the preparer with "+
			"--api-tls-cert and --api-tls-key", node, target.Host())
	default:
		return awayf("%v", err)
	}
}

// awayf is about a problem with a preparer, not with Consul.
func awayf(format string, args ...any) error {
	return &codedError{code: exitError, text: fmt.Sprintf(format, args...)}
}
