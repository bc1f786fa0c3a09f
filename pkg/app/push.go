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

// NodeAccess is what opens the APIs of nodes.
type NodeAccess struct {
	TokenDir string // with a file for each node, called as the node, that holds the token of its preparer; empty: none is opened
	CAFile   string // PEM; the certificates that are believed of nodes; empty: the machine's
}

func (a *NodeAccess) check(errs *field.Errors) {
	if info, err := os.Stat(a.TokenDir); a.TokenDir != "" && (err != nil || !info.IsDir()) {
		errs.Add("node-token-dir", a.TokenDir, "a directory that is there")
	}
	if _, err := nodeapi.Roots(a.CAFile); err != nil {
		errs.Add("node-ca", a.CAFile, "a file of certificates in PEM that can be read")
	}
}

// maxClients is how many nodes are remembered with what is open to them. Nodes close what is idle after a minute.
const maxClients = 4096

// nodeSender sends requests to nodes, each with the token of that node alone.
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

// send sends one request. It returns push.ErrOutdated where the node has heard of something later.
func (s *nodeSender) send(ctx context.Context, to push.Target, r scale.Request) error {
	client, err := s.client(to)
	if err != nil {
		return err
	}
	_, err = client.Scale(ctx, r)
	if refused, is := errors.AsType[*nodeapi.RefusedError](err); is && refused.Status == http.StatusConflict {
		return fmt.Errorf("%w: %w", push.ErrOutdated, err)
	}
	return err
}

// client returns what speaks to a node. The token is read each time, so that it can be changed, and goes nowhere but to whoever has the
// node's certificate.
func (s *nodeSender) client(to push.Target) (*nodeClient, error) {
	if s.access.TokenDir == "" {
		return nil, errors.New("this farm has no --node-token-dir, and so no token of any node")
	}
	token, err := nodeapi.ReadTokenOf(s.access.TokenDir, to.Node)
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
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[to.Node]
	if c == nil || c.api != to.API || c.token != token {
		if c != nil {
			c.Close()
		}
		if len(s.clients) >= maxClients {
			s.forget()
		}
		c = &nodeClient{nodeapi.NewClient(to.Node, target, token, s.roots), to.API, token}
		s.clients[to.Node] = c
	}
	return c, nil
}

// forget gives up all that is open and idle. The caller holds the mutex.
func (s *nodeSender) forget() {
	for _, c := range s.clients {
		c.Close()
	}
	clear(s.clients)
}

func (s *nodeSender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
}

// untold is what a farm says of the nodes that it could not tell.
func untold(of []push.Unreachable) (u store.Untold) {
	u.Count = len(of)
	for _, n := range of[:min(len(of), store.MaxUntold)] {
		u.Nodes = append(u.Nodes, store.UntoldNode{Node: n.Node, Since: n.Since.UTC(), Reason: field.Cut(n.Reason, 200)})
	}
	return u
}
