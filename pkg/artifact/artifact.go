// Package artifact fetches what a launchable runs, verifies it and unpacks it once per digest into a read-only tree
// that all pods of the node share.
package artifact

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// Errors that a caller may test for. Each of them is final: trying the same artifact again ends the same way. Any
// other error of Ensure, such as an unreachable server or a full disk, may go away.
var (
	ErrInvalid  = errors.New("not a valid artifact reference")
	ErrDigest   = errors.New("the fetched file has another digest")
	ErrTooLarge = errors.New("larger than this node allows")
	ErrArchive  = errors.New("not an archive that may be unpacked")
)

// Defaults of Config.
const (
	DefaultMaxBytes         = 2 << 30 // fetched
	DefaultMaxUnpackedBytes = 8 << 30
	DefaultMaxFiles         = 200_000
	DefaultFetchTimeout     = 30 * time.Minute
	DefaultRetries          = 4
	DefaultRetryWait        = 500 * time.Millisecond
)

// maxRetryWait bounds the pause between two tries of one fetch, also when the server asks for more by Retry-After.
const maxRetryWait = 10 * time.Second

// tempPrefix marks what is under construction. A digest never starts with it, so leftovers are told from results.
const tempPrefix = "tmp-"

// Config is what New needs. Zero values mean the defaults above.
type Config struct {
	Dir string // holds one directory per digest, and work in progress; created if missing

	MaxBytes         int64 // of the file as fetched
	MaxUnpackedBytes int64 // of the tar stream, and of all files together
	MaxFiles         int   // files, directories and links together, counting every entry of the archive

	FetchTimeout time.Duration // of one whole fetch with its retries
	Retries      int           // further tries after the first; negative for none
	RetryWait    time.Duration // before the second try; doubles from there, up to 10 s
	HTTPClient   *http.Client  // nil: a pooled client with the system's certificates
}

func (c Config) withDefaults() Config {
	orDefault(&c.MaxBytes, DefaultMaxBytes)
	orDefault(&c.MaxUnpackedBytes, DefaultMaxUnpackedBytes)
	orDefault(&c.MaxFiles, DefaultMaxFiles)
	orDefault(&c.FetchTimeout, DefaultFetchTimeout)
	orDefault(&c.Retries, DefaultRetries)
	orDefault(&c.RetryWait, DefaultRetryWait)
	c.Retries = max(c.Retries, 0)
	return c
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Store keeps unpacked artifacts in a directory that belongs to one daemon. It is safe for concurrent use.
type Store struct {
	cfg    Config
	client *retryablehttp.Client

	mu      sync.Mutex
	flights map[string]*flight // by digest: work that is under way
}

// flight is one caller's work that others wait for.
type flight struct {
	done      chan struct{} // closed when err and abandoned are set
	err       error
	abandoned bool // the worker's own context ended: whoever waited tries for itself
}

// New opens the store, making its directory and removing what a crash left half done in it.
func New(cfg Config) (*Store, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("artifact directory %q: not valid; allowed: an absolute path", cfg.Dir)
	}
	cfg = cfg.withDefaults()
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make artifact directory: %w", err)
	}
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("read artifact directory: %w", err)
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), tempPrefix) {
			continue
		}
		if err := removeTree(filepath.Join(cfg.Dir, entry.Name())); err != nil {
			return nil, fmt.Errorf("remove leftover: %w", err)
		}
	}
	return &Store{cfg: cfg, client: newClient(cfg), flights: map[string]*flight{}}, nil
}

// Ensure returns the directory that holds the unpacked artifact, fetching and unpacking it first if it is not there
// yet. Callers that ask for one digest at the same time share the work. Errors to test for: ErrInvalid, ErrDigest,
// ErrTooLarge, ErrArchive and those of the context.
func (s *Store) Ensure(ctx context.Context, a manifest.Artifact) (dir string, err error) {
	src, err := parse(a)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(s.cfg.Dir, a.SHA256)
	for {
		mine, theirs := s.join(a.SHA256)
		if mine != nil {
			err := s.ensure(ctx, src, a.SHA256, dir)
			s.leave(a.SHA256, mine, err, ctx.Err() != nil)
			return dirOr(dir, err, a.URL)
		}
		select {
		case <-theirs.done:
			if !theirs.abandoned {
				return dirOr(dir, theirs.err, a.URL)
			}
		case <-ctx.Done():
			return dirOr(dir, ended(ctx), a.URL)
		}
	}
}

func dirOr(dir string, err error, url string) (string, error) {
	if err != nil {
		return "", fmt.Errorf("artifact %s: %w", url, err)
	}
	return dir, nil
}

// join returns a new flight of the caller's own, or else the one that is under way.
func (s *Store) join(digest string) (mine, theirs *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.flights[digest]; ok {
		return nil, f
	}
	f := &flight{done: make(chan struct{})}
	s.flights[digest] = f
	return f, nil
}

func (s *Store) leave(digest string, f *flight, err error, abandoned bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flights, digest)
	f.err, f.abandoned = err, err != nil && abandoned
	close(f.done)
}

// ensure does the work of one flight. Everything is built under temporary names in the same directory, so that the
// final rename is atomic and a crash leaves nothing that looks finished.
func (s *Store) ensure(ctx context.Context, src source, digest, dir string) (err error) {
	if info, err := os.Lstat(dir); err == nil && info.IsDir() {
		return nil
	}
	archive, err := os.CreateTemp(s.cfg.Dir, tempPrefix+"fetch-")
	if err != nil {
		return fmt.Errorf("make a temporary file: %w", err)
	}
	defer func() { err = errors.Join(err, archive.Close(), os.Remove(archive.Name())) }()
	if err := s.fetch(ctx, src, archive, digest); err != nil {
		return err
	}
	tree, err := os.MkdirTemp(s.cfg.Dir, tempPrefix+"tree-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	if err := s.install(ctx, archive, tree, dir); err != nil {
		return errors.Join(err, removeTree(tree))
	}
	return nil
}

// install turns a verified archive into the final directory.
func (s *Store) install(ctx context.Context, archive *os.File, tree, dir string) error {
	if _, err := archive.Seek(0, 0); err != nil {
		return fmt.Errorf("rewind the fetched file: %w", err)
	}
	limits := limits{bytes: s.cfg.MaxUnpackedBytes, entries: s.cfg.MaxFiles}
	if err := unpack(ctx, archive, tree, limits); err != nil {
		return err
	}
	if err := syncFilesystem(tree); err != nil {
		return err
	}
	if err := os.Rename(tree, dir); err != nil {
		return fmt.Errorf("put the unpacked tree in place: %w", err)
	}
	return syncDir(s.cfg.Dir)
}

// syncFilesystem makes the tree durable with one call: an fsync per file costs a journal commit each, which takes
// minutes for an artifact of many small files.
func syncFilesystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open the unpacked tree: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("write the unpacked tree to disk: %w", err)
	}
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open artifact directory: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write artifact directory to disk: %w", err)
	}
	return nil
}

// removeTree removes a tree whose directories may be read-only. Symbolic links are removed, never followed.
func removeTree(path string) error {
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(p, 0o700) //nolint:gosec // the tree is ours alone, and is about to go
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make %s writable: %w", path, err)
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}
