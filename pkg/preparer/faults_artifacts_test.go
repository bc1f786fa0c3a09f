package preparer_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
)

type mirror struct {
	server *httptest.Server
	files  map[string][]byte // by path; no file is added during a fetch
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{files: map[string][]byte{}}
	m.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, found := m.files[r.URL.Path]
		if !found {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data) // the client may have been killed
	}))
	t.Cleanup(m.server.Close)
	return m
}

func (m *mirror) certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.server.Certificate().Raw})
}

// ballastName is so large that a fetch and an unpacking take several reads.
const (
	ballastName  = "ballast"
	ballastBytes = 40 << 10
)

func (f *faultRun) publish(m manifest.Manifest) manifest.Manifest {
	f.t.Helper()
	for i := range m.Launchables {
		dir := filepath.Join(f.artifacts.dir, m.Launchables[i].Artifact.SHA256)
		ballast := make([]byte, ballastBytes)
		for i := range ballast {
			ballast[i] = byte(f.rnd.Uint32())
		}
		if err := os.WriteFile(filepath.Join(dir, ballastName), ballast, 0o600); err != nil {
			f.t.Fatal(err)
		}
		data := f.archive(dir)
		sum := sha256.Sum256(data)
		digest := hex.EncodeToString(sum[:])
		f.mirror.files["/"+digest] = data
		m.Launchables[i].Artifact = manifest.Artifact{
			Kind: manifest.ArtifactTar, URL: f.mirror.server.URL + "/" + digest, SHA256: digest,
		}
	}
	return m
}

func (f *faultRun) archive(dir string) []byte {
	f.t.Helper()
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	if err := errors.Join(tw.AddFS(os.DirFS(dir)), tw.Close(), zw.Close()); err != nil {
		f.t.Fatal(err)
	}
	return buf.Bytes()
}

// spoil removes the artifacts of a version while no preparer runs, so that the next one fetches them.
func (f *faultRun) spoil(version int) {
	f.t.Helper()
	for _, tree := range f.trees(version) {
		if err := consultest.RemoveAll(tree); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *faultRun) trees(version int) []string {
	var trees []string
	for _, l := range f.manifests[version].Launchables {
		trees = append(trees, filepath.Join(f.v.Store, l.Artifact.SHA256))
	}
	return trees
}

// awaitArtifacts waits until the running version's artifacts are complete, and no incomplete ones are left.
func (f *faultRun) awaitArtifacts() {
	f.t.Helper()
	f.eventually(func() error {
		half, missing := filepath.Glob(filepath.Join(f.v.Store, "*tmp*"))
		if len(half) > 0 {
			missing = fmt.Errorf("incomplete: %v", half)
		}
		if f.running < 0 {
			return missing
		}
		for _, tree := range f.trees(f.running) {
			_, err := os.Stat(filepath.Join(tree, ballastName))
			missing = errors.Join(missing, err)
		}
		return missing
	})
}

// mustHaveWholeArtifacts: artifacts with final names are complete, and the running version's exist. No preparer runs.
func (f *faultRun) mustHaveWholeArtifacts() {
	f.t.Helper()
	for version := range f.manifests {
		for _, tree := range f.trees(version) {
			_, err := os.Stat(tree)
			if errors.Is(err, fs.ErrNotExist) && version != f.running {
				continue
			}
			ballast, err := os.ReadFile(filepath.Join(tree, ballastName))
			if _, listed := os.Stat(tree + ".json"); err != nil || listed != nil || len(ballast) != ballastBytes {
				f.t.Errorf("%s of version %d, while version %d runs: %d bytes of ballast, %v, %v",
					tree, version, f.running, len(ballast), err, listed)
			}
		}
	}
}

// open opens a store that calls step at each of its steps.
func (v *victim) open(step func(string)) (*stepping, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(v.Certificate) {
		return nil, errors.New("no certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	store, err := artifact.New(artifact.Config{
		Dir: v.Store, ReserveBytes: -1, HTTPClient: &http.Client{Transport: steppingTransport{transport, step}},
	})
	return &stepping{Store: store, step: step}, err
}

// stepping calls step at each request to and read from the server, and at each check of its context, before each read
// of the fetched file.
type stepping struct {
	*artifact.Store
	step func(string)
}

func (s *stepping) Ensure(ctx context.Context, a manifest.Artifact) (string, error) {
	return s.Store.Ensure(steppingContext{ctx, func() { s.step(stepUnpack) }}, a)
}

const (
	stepFetch  = "artifact fetched"
	stepUnpack = "artifact unpacked"
)

// loose reports whether the store works on between this step and the next.
func loose(step string) bool { return step == stepUnpack }

type steppingContext struct {
	context.Context

	step func()
}

func (s steppingContext) Err() error {
	s.step()
	return s.Context.Err()
}

type steppingTransport struct {
	next http.RoundTripper
	step func(string)
}

func (s steppingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	s.step(stepFetch)
	resp, err := s.next.RoundTrip(req)
	if err == nil {
		resp.Body = steppingBody{resp.Body, s.step}
	}
	return resp, err
}

type steppingBody struct {
	io.ReadCloser

	step func(string)
}

func (s steppingBody) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.step(stepFetch)
	return n, err
}

// die runs no cleanup.
func die() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
