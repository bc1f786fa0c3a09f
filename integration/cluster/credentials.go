package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
)

// Credentials are a token for each node, and the certificate that signs the certificates of all nodes. Farms and rcctl
// use the nodes' APIs with them.
type Credentials struct {
	dir string
	ca  *x509.Certificate
	key *ecdsa.PrivateKey

	mu   sync.Mutex
	made map[string]NodeFiles // by node
}

// NodeFiles are what the API of one node needs.
type NodeFiles struct{ Token, Cert, Key string }

// NewCredentials makes credentials in a directory, which it creates.
func NewCredentials(dir string) (*Credentials, error) {
	c := &Credentials{dir: dir, made: map[string]NodeFiles{}}
	if err := os.MkdirAll(c.tokens(), 0o700); err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "nodes"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, key, err := certify(template, nil, nil)
	if err != nil {
		return nil, err
	}
	c.key = key
	if c.ca, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return c, writePEM(c.roots(), "CERTIFICATE", der)
}

func (c *Credentials) tokens() string { return filepath.Join(c.dir, "tokens") }
func (c *Credentials) roots() string  { return filepath.Join(c.dir, "ca.pem") }

// Flags returns the flags with which farms and rcctl may use the nodes' APIs.
func (c *Credentials) Flags() []string {
	return []string{"--node-token-dir", c.tokens(), "--node-ca", c.roots()}
}

// Client returns a client of the API at the address in a node's record.
func (c *Credentials) Client(node, api string) (*nodeapi.Client, error) {
	target, err := nodeapi.ParseTarget(api)
	if err != nil {
		return nil, err
	}
	token, err := nodeapi.ReadTokenOf(c.tokens(), node)
	if err != nil {
		return nil, err
	}
	roots, err := nodeapi.Roots(c.roots())
	if err != nil {
		return nil, err
	}
	return nodeapi.NewClient(node, target, token, roots), nil
}

// Of returns the token of a node, and a certificate with its name.
func (c *Credentials) Of(node string) (NodeFiles, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, made := c.made[node]; made {
		return f, nil
	}
	f := NodeFiles{
		Token: filepath.Join(c.tokens(), node), Cert: filepath.Join(c.dir, node+".pem"),
		Key: filepath.Join(c.dir, node+".key"),
	}
	der, key, err := certify(&x509.Certificate{DNSNames: []string{node}}, c.ca, c.key)
	if err != nil {
		return f, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return f, err
	}
	err = errors.Join(
		os.WriteFile(f.Token, []byte("the-token-of-node-"+node), 0o600),
		writePEM(f.Cert, "CERTIFICATE", der), writePEM(f.Key, "PRIVATE KEY", keyDER),
	)
	if err == nil {
		c.made[node] = f
	}
	return f, err
}

// certify makes a key and its certificate. Without a parent, the certificate signs itself.
func certify(template, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, by = template, key
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	template.SerialNumber, template.NotAfter = new(big.Int).SetBytes(id[:]), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate: %w", err)
	}
	return der, key, nil
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
