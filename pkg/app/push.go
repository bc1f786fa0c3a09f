package app

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// NodeAccess has the credentials for the APIs of nodes.
type NodeAccess struct {
	// TokenDir has a file for each node, with its name, that contains the token of its preparer; empty: the farm uses
	// no node's API.
	TokenDir string
	CAFile   string // PEM; the CA certificates of nodes; empty: the machine's
}

func (n *NodeAccess) check(errs *field.Errors) {
	if info, err := os.Stat(n.TokenDir); n.TokenDir != "" && (err != nil || !info.IsDir()) {
		errs.Add("node-token-dir", n.TokenDir, "an existing directory")
	}
	if _, err := nodeapi.Roots(n.CAFile); err != nil {
		errs.Add("node-ca", n.CAFile, "a readable file of certificates in PEM")
	}
}

// maxClients limits the clients of nodes that are kept with connections. Nodes close idle ones after a minute.
const maxClients = 4096

// nodeSender sends requests to nodes. Each node gets only its own token.
type nodeSender struct {
	access NodeAccess
	roots  *x509.CertPool

	mu      sync.Mutex
	clients map[string]*nodeClient // by node
}

type nodeClient struct {
	*nodeapi.Client
	api, token string
}

func newNodeSender(access NodeAccess) (*nodeSender, error) {
	roots, err := nodeapi.Roots(access.CAFile)
	if err != nil {
		return nil, fmt.Errorf("node-ca: %w", err)
	}
	return &nodeSender{access: access, roots: roots, clients: map[string]*nodeClient{}}, nil
}

// send returns push.ErrOutdated if the node has had a later request.
func (n *nodeSender) send(ctx context.Context, to push.Target, r scale.Request) error {
	client, err := n.client(to)
	if err != nil {
		return err
	}
	_, err = client.Scale(ctx, r)
	if refused, is := errors.AsType[*nodeapi.RefusedError](err); is && refused.Status == http.StatusConflict {
		return fmt.Errorf("%w: %w", push.ErrOutdated, err)
	}
	return err
}

// client reads the token each time, because operators can change it. TLS checks the node's certificate before the token
// is sent.
func (n *nodeSender) client(to push.Target) (*nodeClient, error) {
	if n.access.TokenDir == "" {
		return nil, errors.New("this farm has no --node-token-dir, and so no token of any node")
	}
	token, err := nodeapi.ReadTokenOf(n.access.TokenDir, to.Node)
	if err != nil {
		return nil, fmt.Errorf("node-token-dir: %w", err)
	}
	target, err := nodeapi.ParseTarget(to.API)
	if err != nil {
		return nil, err
	}
	if !target.Secure() {
		return nil, fmt.Errorf("api: %s is not https", to.API)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.clients[to.Node]
	if c == nil || c.api != to.API || c.token != token {
		if c != nil {
			c.Close()
		}
		if len(n.clients) >= maxClients {
			n.forget()
		}
		c = &nodeClient{nodeapi.NewClient(to.Node, target, token, n.roots), to.API, token}
		n.clients[to.Node] = c
	}
	return c, nil
}

func (n *nodeSender) forget() {
	for _, c := range n.clients {
		c.Close()
	}
	clear(n.clients)
}

func (n *nodeSender) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forget()
}

func pushFailures(of []push.Unreachable) (u store.Untold) {
	u.Count = len(of)
	for _, n := range of[:min(len(of), store.MaxUntold)] {
		u.Nodes = append(u.Nodes,
			store.UntoldNode{Node: n.Node, Since: n.Since.UTC(), Reason: field.Cut(n.Reason, 200)})
	}
	return u
}
