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

// mirror serves the archives of a fault run.
type mirror struct {
	server *httptest.Server
	files  map[string][]byte // by path; none is added while somebody fetches
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
		_, _ = w.Write(data) // who fetches is killed now and then
	}))
	t.Cleanup(m.server.Close)
	return m
}

// certificate is what a client must trust, as PEM.
func (m *mirror) certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.server.Certificate().Raw})
}

// ballastName is a file of each artifact that no process needs, large enough that fetching and unpacking take several reads.
const (
	ballastName  = "ballast"
	ballastBytes = 40 << 10
)

// publish packs the artifacts of a manifest, which are directories, and makes it name the archives.
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
		m.Launchables[i].Artifact = manifest.Artifact{Kind: manifest.ArtifactTar, URL: f.mirror.server.URL + "/" + digest, SHA256: digest}
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

// spoil makes a preparer, none of which runs now, fetch the artifacts of a version again.
func (f *faultRun) spoil(version int) {
	f.t.Helper()
	for _, tree := range f.trees(version) {
		if err := consultest.RemoveAll(tree); err != nil {
			f.t.Fatal(err)
		}
	}
}

// trees are where the artifacts of a version are unpacked.
func (f *faultRun) trees(version int) []string {
	var trees []string
	for _, l := range f.manifests[version].Launchables {
		trees = append(trees, filepath.Join(f.v.Store, l.Artifact.SHA256))
	}
	return trees
}

// beWhole waits until the artifacts of what runs are there again, and nothing half done is left of those that were killed.
func (f *faultRun) beWhole() {
	f.t.Helper()
	f.eventually(func() error {
		half, missing := filepath.Glob(filepath.Join(f.v.Store, "*tmp*"))
		if len(half) > 0 {
			missing = fmt.Errorf("half done: %v", half)
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

// mustBeWhole looks at every artifact that the store shows as complete, those of what runs among them. No preparer runs now.
func (f *faultRun) mustBeWhole() {
	f.t.Helper()
	for version := range f.manifests {
		for _, tree := range f.trees(version) {
			_, err := os.Stat(tree)
			if errors.Is(err, fs.ErrNotExist) && version != f.running {
				continue
			}
			ballast, err := os.ReadFile(filepath.Join(tree, ballastName))
			if _, listed := os.Stat(tree + ".json"); err != nil || listed != nil || len(ballast) != ballastBytes {
				f.t.Errorf("%s of version %d, while version %d runs: %d bytes of ballast, %v, %v", tree, version, f.running, len(ballast), err, listed)
			}
		}
	}
}

// open opens the victim's store of artifacts, whose work consists of steps as the preparer's does.
func (v *victim) open(step func(string)) (*stepping, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(v.Certificate) {
		return nil, errors.New("no certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	store, err := artifact.New(artifact.Config{Dir: v.Store, ReserveBytes: -1, HTTPClient: &http.Client{Transport: steppingTransport{transport, step}}})
	return &stepping{Store: store, step: step}, err
}

// stepping is a store of artifacts that says where it is by what it asks of others: the server for the file, and the
// context, before each read of the fetched file, whether to go on.
type stepping struct {
	*artifact.Store
	step func(string)
}

func (s *stepping) Ensure(ctx context.Context, a manifest.Artifact) (string, error) {
	return s.Store.Ensure(steppingContext{ctx, func() { s.step(stepUnpack) }}, a)
}

// Steps of the store.
const (
	stepFetch  = "artifact fetched"
	stepUnpack = "artifact unpacked"
)

// loose reports whether the store has more to do behind a step than it says.
func loose(step string) bool { return step == stepUnpack }

type steppingContext struct {
	context.Context

	step func()
}

func (c steppingContext) Err() error {
	c.step()
	return c.Context.Err()
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

func (b steppingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.step(stepFetch)
	return n, err
}

// die ends the process as a power failure would.
func die() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
