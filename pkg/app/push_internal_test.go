package app

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// taker takes scale requests, and answers with err.
type taker struct {
	nodeapi.Pods // its other methods are not called

	asked atomic.Int64
	err   error
}

func (t *taker) Scale(_ context.Context, r scale.Request) (scale.Response, error) {
	t.asked.Add(1)
	return scale.Response{Success: t.err == nil, Service: r.Service}, t.err
}

// secured serves the API of a node with a certificate that names it, and adds the certificate to the CA file.
func secured(t *testing.T, node, token, caFile string, pods *taker) (api string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{node},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	others, _ := os.ReadFile(caFile)
	if err := os.WriteFile(caFile, append(others, cert...), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := nodeapi.New(t.Context(), nodeapi.Config{
		Node: node, Addr: "127.0.0.1:0", Dir: dir, Log: obs.Discard(),
		TokenFile: file("token", []byte(token)), CertFile: file("cert", cert),
		KeyFile: file("key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Run(ctx, pods) })
	t.Cleanup(func() { cancel(); serving.Wait() })
	return s.URL()
}

// A farm sends each node only the token of that node, and sends no token to another server that a record names.
func TestEachNodeGetsItsOwnToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tokens, ca := filepath.Join(dir, "tokens"), filepath.Join(dir, "ca.pem")
	if err := os.Mkdir(tokens, 0o700); err != nil {
		t.Fatal(err)
	}
	pods, apis := map[string]*taker{}, map[string]string{}
	for _, node := range []string{"n1", "n2"} {
		token := "the-only-token-of-" + node
		pods[node] = &taker{}
		apis[node] = secured(t, node, token, ca, pods[node])
		if err := os.WriteFile(filepath.Join(tokens, node), []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := newNodeSender(NodeAccess{TokenDir: tokens, CAFile: ca})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	send := func(node, api string) error {
		r := scale.New("web", 1)
		r.Epoch, r.Revision = &scale.Epoch{Cluster: "a", RCID: "r1", Term: scale.Term("a", 1)}, 2
		return s.send(t.Context(), push.Target{Node: node, API: api}, r)
	}
	for node, api := range apis {
		if err := send(node, api); err != nil || pods[node].asked.Load() != 1 {
			t.Errorf("%s: %v, asked %d times", node, err, pods[node].asked.Load())
		}
	}
	for name, c := range map[string]struct{ node, api, want string }{
		"another node's address": {"n1", apis["n2"], "certificate"},
		"in clear":               {"n1", strings.Replace(apis["n1"], "https", "http", 1), "not https"},
		"no token":               {"n3", apis["n1"], "node-token-dir"},
		"out of the directory":   {"../ca.pem", apis["n1"], "node-token-dir"},
		"no address":             {"n1", "", "api"},
	} {
		if err := send(c.node, c.api); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := pods["n1"].asked.Load() + pods["n2"].asked.Load(); n != 2 {
		t.Errorf("%d requests were taken", n)
	}
	pods["n1"].err = scale.ErrConflict
	if err := send("n1", apis["n1"]); !errors.Is(err, push.ErrOutdated) {
		t.Errorf("outdated: %v", err)
	}
	pods["n1"].err = scale.ErrUnavailable
	if err := send("n1", apis["n1"]); err == nil || errors.Is(err, push.ErrOutdated) {
		t.Errorf("not now: %v", err)
	}
	if err := os.WriteFile(filepath.Join(tokens, "n1"), []byte("another-token-of-n1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := send("n1", apis["n1"]); !errors.Is(err, nodeapi.ErrUnauthorized) {
		t.Errorf("another token: %v", err)
	}
	var none nodeSender
	if err := none.send(t.Context(), push.Target{Node: "n1", API: apis["n1"]}, scale.New("web", 1)); err == nil {
		t.Error("a request without tokens was sent")
	}
}

func TestNodeAccessIsChecked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, a := range map[string]NodeAccess{"": {}, "node-token-dir": {TokenDir: file}, "node-ca": {CAFile: file}} {
		var errs field.Errors
		a.check(&errs)
		if got := errs.Err(); want == "" != (got == nil) || got != nil && !strings.Contains(got.Error(), want) {
			t.Errorf("%+v: %v", a, got)
		}
	}
}

// If the API of a node does not allow pushes, the node watches its intents, and its record shows that push was refused.
func TestPushNeedsAnAPI(t *testing.T) {
	t.Parallel()
	full := nodeapi.Config{Addr: "10.0.0.1:7462", TokenFile: "t", CertFile: "c", KeyFile: "k"}
	for _, c := range []struct {
		intents string
		api     nodeapi.Config
		want    string
	}{
		{"", full, ""},
		{IntentsWatch, full, ""},
		{IntentsPush, full, "push"},
		{IntentsPush, nodeapi.Config{Addr: nodeapi.Unix}, "refused"},
		{IntentsPush, nodeapi.Config{Addr: nodeapi.Off}, "refused"},
		{IntentsPush, nodeapi.Config{Addr: "127.0.0.1:0", TokenFile: "t"}, "refused"},
	} {
		cfg := PreparerConfig{Intents: c.intents, API: c.api}
		if got := cfg.intents(obs.Discard()); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
