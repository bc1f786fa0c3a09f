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

// preparerOf finds the copy of a pod that the command line means, and a client of its node's preparer. The connections
// to Consul are closed: what follows may take long.
func preparerOf(s *conn, ref string) (target inspect.PodView, client *nodeapi.Client, err error) {
	defer s.close()
	if target, err = s.findPod(ref); err == nil {
		client, err = nodeClient(s.Context, s, target.Node)
	}
	return target, client, err
}

// recordOf reads where a node is. Without a leader it may be what Consul knew before: whoever looks after a node then has no better, and the node itself says whose it is.
func recordOf(ctx context.Context, s *conn, name string) (store.Rec[node.Node], error) {
	rec, err := s.Nodes.Get(ctx, store.Consistent, name)
	if err == nil || errors.Is(err, store.ErrNotFound) || ctx.Err() != nil {
		return rec, err
	}
	stale, staleErr := s.Nodes.Get(ctx, store.Stale, name)
	if staleErr != nil {
		return rec, err
	}
	fmt.Fprintf(s.err, "rcctl: the record of node %s may be old: %v\n", name, err)
	return stale, nil
}

// nodeClient returns a client of the preparer of a node.
func nodeClient(ctx context.Context, s *conn, name string) (*nodeapi.Client, error) {
	rec, err := recordOf(ctx, s, name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, notFoundf("node %s has no record; rcctl nodes shows all", name)
	case err != nil:
		return nil, fmt.Errorf("read node %s: %w", name, err)
	case rec.Value.API == "":
		return nil, refusedf("the preparer of node %s offers no logs and commands; its flag --api-addr does", name)
	}
	target, err := nodeapi.ParseTarget(rec.Value.API)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	var token string
	if dir := s.String("node-token-dir"); dir != "" && target.Socket() == "" {
		if token, err = nodeapi.ReadTokenOf(dir, name); err != nil {
			return nil, badFlag(s.flags, "--node-token-dir", dir, fmt.Sprintf("a directory with a file %q that can be read and holds the token of that node's preparer, which is one word", name))
		}
	}
	roots, err := nodeapi.Roots(s.String("node-ca"))
	if err != nil {
		return nil, badFlag(s.flags, "--node-ca", s.String("node-ca"), "a file of certificates in PEM that can be read")
	}
	// The record says where, and whoever may write it must not be given what opens the node.
	if token != "" && target.InClear() {
		return nil, refusedf("the token of node %s would go to %s in clear, and to whoever listens there: give its preparer --api-tls-cert; nothing was sent", name, target.Host())
	}
	if rec.Session == "" {
		fmt.Fprintf(s.err, "rcctl: the preparer of node %s does not hold its record: it may not run\n", name)
	}
	return nodeapi.NewClient(name, target, token, roots), nil
}

// nodeError says what a failed request means to whoever typed it.
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
	const otherwise = "or start its preparer with --api-addr HOST:PORT, --api-token-file, --api-tls-cert and --api-tls-key"
	switch {
	case errors.Is(err, nodeapi.ErrUnauthorized):
		return refusedf("the preparer of node %s: %v; --node-token-dir or RCFARM_NODE_TOKEN_DIR names a directory with a file %q that holds it", node, err, node)
	case errors.Is(err, nodeapi.ErrNotFound):
		return notFoundf("node %s: %v", node, err)
	case target.Socket() != "" && errors.Is(err, fs.ErrPermission):
		return refusedf("the API of node %s is for root and the user of its preparer alone: type this as one of them, %s", node, otherwise)
	case target.Socket() != "" && elsewhere:
		return refusedf("the API of node %s listens on a socket of its machine, %s: type this there, while its preparer runs, %s", node, target.Socket(), otherwise)
	case target.Loopback() && elsewhere:
		return refusedf("the preparer of node %s listens on its own loopback address, %s: type this on that machine, or give the preparer another --api-addr", node, target.Host())
	case notReached:
		return awayf("the preparer of node %s cannot be reached: %v", node, dial)
	case notBelieved && otherName:
		return awayf("the certificate of the preparer of node %s at %s: %v; give the preparer one for the name %s: --api-tls-cert",
			node, target.Host(), certificate.Err, node)
	case notBelieved:
		return awayf("the certificate of the preparer of node %s at %s: %v; --node-ca or RCFARM_NODE_CA names the file with those that vouch for it",
			node, target.Host(), certificate.Err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return awayf("the preparer of node %s: what listens at %s answers without TLS; it has TLS with --api-tls-cert and --api-tls-key",
			node, target.Host())
	default:
		return awayf("%v", err)
	}
}

// awayf is trouble with a preparer, as opposed to Consul.
func awayf(format string, args ...any) error {
	return &codedError{code: exitError, text: fmt.Sprintf(format, args...)}
}
