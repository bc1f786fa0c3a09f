// Package imagetest has a registry for tests, which can fail in the ways of real ones, and builds images.
package imagetest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Registry is a registry that serves over HTTP until its test ends.
type Registry struct {
	Host   string // as in references
	Server *httptest.Server

	mu       sync.Mutex
	before   func(w http.ResponseWriter, r *http.Request) bool
	cut      func(served int) bool
	noRange  bool
	contents map[string]content // by repository and digest
	tags     map[string]string  // by repository and tag: the digest
	requests []string           // method, path and range
	served   int64              // bytes of blobs
}

type content struct {
	mediaType string // of manifests; empty for blobs
	data      []byte
}

// New starts a registry without TLS.
func New(tb testing.TB) *Registry {
	tb.Helper()
	return start(tb, (*httptest.Server).Start)
}

// NewTLS starts a registry with TLS. Its certificate is r.Server.Certificate().
func NewTLS(tb testing.TB) *Registry {
	tb.Helper()
	return start(tb, (*httptest.Server).StartTLS)
}

func start(tb testing.TB, begin func(*httptest.Server)) *Registry {
	tb.Helper()
	r := &Registry{contents: map[string]content{}, tags: map[string]string{}}
	r.Server = httptest.NewUnstartedServer(r)
	r.Server.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that break connections are part of the tests
	begin(r.Server)
	tb.Cleanup(r.Server.Close)
	r.Host = r.Server.Listener.Addr().String()
	return r
}

// Before sets a function that sees each request first. If it returns true, it has answered the request.
func (r *Registry) Before(f func(w http.ResponseWriter, req *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = f
}

// Cut sets a function that is called for each 16 KiB of a blob, with the bytes of this answer so far. If it returns
// true, the connection breaks there.
func (r *Registry) Cut(f func(served int) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = f
}

// IgnoreRange makes the registry send whole blobs in answer to Range.
func (r *Registry) IgnoreRange() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noRange = true
}

// Put stores a blob, or a manifest if mediaType is set, and returns its digest.
func (r *Registry) Put(repository, mediaType string, data []byte) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	digest := Digest(data)
	r.contents[repository+"@"+digest] = content{mediaType, data}
	return digest
}

// Replace makes the registry send other data for a digest.
func (r *Registry) Replace(repository, digest string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.contents[repository+"@"+digest] = content{r.contents[repository+"@"+digest].mediaType, data}
}

// Tag makes a tag name a digest.
func (r *Registry) Tag(repository, tag, digest string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[repository+":"+tag] = digest
}

// Requests returns the requests since the last call: method, path, and the header Range if there is one.
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.requests = nil }()
	return r.requests
}

// Served returns how many bytes of blobs were sent.
func (r *Registry) Served() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.requests = append(r.requests, strings.TrimSpace(req.Method+" "+req.URL.Path+" "+req.Header.Get("Range")))
	before := r.before
	r.mu.Unlock()
	if before != nil && before(w, req) {
		return
	}
	path := strings.TrimPrefix(req.URL.Path, "/v2/")
	if repository, name, ok := strings.Cut(path, "/manifests/"); ok {
		r.serveManifest(w, req, repository, name)
		return
	}
	repository, digest, _ := strings.Cut(path, "/blobs/")
	r.mu.Lock()
	c, ok := r.contents[repository+"@"+digest]
	r.mu.Unlock()
	if !ok {
		notFound(w)
		return
	}
	r.serveBlob(w, req, c.data)
}

func notFound(w http.ResponseWriter) {
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"not here"}]}`))
}

func (r *Registry) serveManifest(w http.ResponseWriter, req *http.Request, repository, name string) {
	r.mu.Lock()
	if digest, ok := r.tags[repository+":"+name]; ok {
		name = digest
	}
	c, ok := r.contents[repository+"@"+name]
	r.mu.Unlock()
	if !ok || !strings.Contains(strings.Join(req.Header.Values("Accept"), ","), c.mediaType) {
		notFound(w)
		return
	}
	w.Header().Set("Content-Type", c.mediaType)
	w.Header().Set("Docker-Content-Digest", name)
	w.Header().Set("Content-Length", strconv.Itoa(len(c.data)))
	if req.Method != http.MethodHead {
		_, _ = w.Write(c.data)
	}
}

// piece is how much of a blob is sent at once.
const piece = 16 << 10

func (r *Registry) serveBlob(w http.ResponseWriter, req *http.Request, data []byte) {
	r.mu.Lock()
	cut, noRange := r.cut, r.noRange
	r.mu.Unlock()
	size := len(data)
	if header := req.Header.Get("Range"); header != "" && !noRange {
		first, _ := strconv.Atoi(strings.Split(strings.TrimPrefix(header, "bytes="), "-")[0])
		if first >= size {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		data = data[first:]
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, size-1, size))
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.WriteHeader(http.StatusPartialContent)
	} else {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	}
	for served := 0; served < len(data); {
		n, err := w.Write(data[served:min(len(data), served+piece)])
		served += n
		r.mu.Lock()
		r.served += int64(n)
		r.mu.Unlock()
		if err != nil {
			return
		}
		if cut != nil && cut(served) {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
}

// Busy answers 429 with Retry-After in seconds.
func Busy(w http.ResponseWriter, after time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(after.Seconds())))
	w.WriteHeader(http.StatusTooManyRequests)
}

// Digest returns the digest of data.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
