package deploy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/internal/regular"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// Limits of what rcctl reads to find a digest. A node has its own limits, such as --artifact-max-bytes.
const (
	MaxArtifactBytes = 4 << 30
	FetchTimeout     = 15 * time.Minute
	maxRedirects     = 10
)

// Source finds the digests of artifacts. It reads all of an archive at a file: or https: URL. For an image it asks the
// registry.
type Source struct {
	Client     *http.Client // for archives; nil: a client that follows redirects to https only
	Registries Registries
}

var _ plan.DigestSource = (*Source)(nil)

// Digest implements plan.DigestSource.
func (s *Source) Digest(ctx context.Context, artifact *manifest.Artifact) (string, error) {
	if artifact.IsImage() {
		return s.Registries.digest(ctx, artifact.Ref)
	}
	u, err := url.Parse(artifact.URL)
	switch {
	case err != nil:
	case u.Scheme == "file" && u.Host == "" && filepath.IsAbs(u.Path):
		return digestOfFile(ctx, u.Path)
	case u.Scheme == "https" && u.Host != "" && u.User == nil:
		return s.download(ctx, artifact.URL)
	}
	return "", errors.New("its URL is not valid; allowed: file:///absolute/path or https://host/path")
}

func digestOfFile(ctx context.Context, path string) (string, error) {
	f, _, err := regular.Open(path, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return digestOf(ctx, f)
}

func (s *Source) download(ctx context.Context, from string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, FetchTimeout, fmt.Errorf("not read within %s", FetchTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return "", err
	}
	// A body that the client unpacks would have another digest than the file on the server.
	req.Header.Set("Accept-Encoding", "identity")
	client := http.Client{Transport: http.DefaultTransport}
	if s.Client != nil {
		client = *s.Client
	}
	client.CheckRedirect = stayOnHTTPS
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the server answered %s", resp.Status)
	}
	return digestOf(ctx, resp.Body)
}

func stayOnHTTPS(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) >= maxRedirects:
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	case req.URL.Scheme != "https":
		return errors.New("the server redirects to a URL that is not https")
	default:
		return nil
	}
}

func digestOf(ctx context.Context, r io.ReadCloser) (string, error) {
	defer context.AfterFunc(ctx, func() { _ = r.Close() })()
	hash := sha256.New()
	n, err := io.Copy(hash, io.LimitReader(r, MaxArtifactBytes+1))
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return "", err
	case n > MaxArtifactBytes:
		return "", fmt.Errorf("it has more than %d bytes", int64(MaxArtifactBytes))
	default:
		return hex.EncodeToString(hash.Sum(nil)), nil
	}
}
