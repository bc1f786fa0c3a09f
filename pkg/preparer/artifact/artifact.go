// Package artifact fetches what a launchable runs, verifies it and unpacks it once per digest into a read-only tree
// that all pods of the node share, and removes those that nobody uses.
package artifact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// Errors that a caller may test for. Each of them is final: fetching the same file again ends the same way, so it is
// not done before a while has passed. Any other error of Ensure, such as ErrNoSpace, ErrSlow or a server that cannot be
// reached, may go away.
var (
	ErrInvalid  = errors.New("not a valid artifact reference")
	ErrDigest   = errors.New("the fetched file has another digest")
	ErrTooLarge = errors.New("larger than this node allows")
	ErrArchive  = errors.New("not an archive that may be unpacked")
)

// Defaults of what operators choose.
const (
	DefaultMaxBytes         = 2 << 30 // fetched
	DefaultMaxUnpackedBytes = 8 << 30
	DefaultCacheBytes       = 10 << 30
	DefaultReserveBytes     = 256 << 20
	DefaultFetchTimeout     = 30 * time.Minute
	DefaultStallTimeout     = 30 * time.Second
	DefaultUnpackTimeout    = 5 * time.Minute
)

// maxRetryWait bounds the pause between two tries of one fetch, also when the server asks for more by Retry-After.
const maxRetryWait = 10 * time.Second

// tempPrefix marks what is under construction. A digest never starts with it, so leftovers are told from results.
const tempPrefix = "tmp-"

// Config is what New needs. Zero values mean the defaults that withDefaults has.
type Config struct {
	Dir string // holds one directory per digest, and work in progress; created if missing

	MaxBytes         int64 // of the file as fetched
	MaxUnpackedBytes int64 // of the tar stream, and of all files together
	MaxFiles         int   // files, directories and links together, counting every entry of the archive

	CacheBytes   int64 // what Prune leaves of artifacts, those in use included; they stay when they are more
	ReserveBytes int64 // that a fetch and an unpacking leave free on the disk; negative for none

	FetchTimeout  time.Duration // of one whole fetch with its retries
	UnpackTimeout time.Duration // of unpacking one archive
	StallTimeout  time.Duration // within which a server must send 64 KiB, or the end
	Retries       int           // further tries after the first; negative for none
	RetryWait     time.Duration // before the second try; doubles from there, up to 10 s
	Fetches       int           // artifacts that are fetched and unpacked at the same time
	FinalWait     time.Duration // before what was refused is fetched again; doubles from there
	MaxFinalWait  time.Duration // bound of that doubling
	HTTPClient    *http.Client  // nil: a pooled client with the system's certificates
}

func (c Config) withDefaults() Config {
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	c.MaxUnpackedBytes = cmp.Or(c.MaxUnpackedBytes, DefaultMaxUnpackedBytes)
	c.MaxFiles = cmp.Or(c.MaxFiles, 200_000)
	c.CacheBytes = cmp.Or(c.CacheBytes, DefaultCacheBytes)
	c.ReserveBytes = cmp.Or(c.ReserveBytes, DefaultReserveBytes)
	c.FetchTimeout = cmp.Or(c.FetchTimeout, DefaultFetchTimeout)
	c.UnpackTimeout = cmp.Or(c.UnpackTimeout, DefaultUnpackTimeout)
	c.StallTimeout = cmp.Or(c.StallTimeout, DefaultStallTimeout)
	c.Retries = cmp.Or(c.Retries, 4)
	c.RetryWait = cmp.Or(c.RetryWait, 500*time.Millisecond)
	c.Fetches = cmp.Or(c.Fetches, 4)
	c.FinalWait = cmp.Or(c.FinalWait, 10*time.Second)
	c.MaxFinalWait = cmp.Or(c.MaxFinalWait, 10*time.Minute)
	c.Retries, c.ReserveBytes = max(c.Retries, 0), max(c.ReserveBytes, 0)
	return c
}

// Store keeps unpacked artifacts in a directory that belongs to one daemon. It is safe for concurrent use.
type Store struct {
	cfg      Config
	client   *http.Client
	failures failures
	slots    chan struct{} // one for each artifact that is being fetched

	mu      sync.Mutex
	flights map[string]*flight   // by digest: work that is under way
	usedAt  map[string]time.Time // by digest: when its use was noted last
	lacking int64                // bytes that the disk lacked since the last Prune
}

// flight is one caller's work that others wait for.
type flight struct {
	url       string        // that it is fetched from
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
	// Pods with users of their own run what is in it, whatever the umask was.
	if err := os.Chmod(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("open artifact directory to pods: %w", err)
	}
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("read artifact directory: %w", err)
	}
	for _, entry := range entries {
		if !leftover(entry.Name(), entries) {
			continue
		}
		if err := removeTree(filepath.Join(cfg.Dir, entry.Name())); err != nil {
			return nil, fmt.Errorf("remove leftover: %w", err)
		}
	}
	return &Store{
		cfg: cfg, client: newClient(cfg), flights: map[string]*flight{}, usedAt: map[string]time.Time{}, slots: make(chan struct{}, cfg.Fetches),
		failures: failures{least: cfg.FinalWait, most: cfg.MaxFinalWait, known: map[string]failure{}},
	}, nil
}

// leftover reports whether a file is what a crash left: something under construction, or a listing without its tree.
func leftover(name string, all []os.DirEntry) bool {
	if strings.HasPrefix(name, tempPrefix) || strings.HasSuffix(name, durable.TempSuffix) {
		return true
	}
	digest, isListing := strings.CutSuffix(name, listingSuffix)
	return isListing && !slices.ContainsFunc(all, func(e os.DirEntry) bool { return e.Name() == digest })
}

func (s *Store) tree(digest string) string { return filepath.Join(s.cfg.Dir, digest) }

// Ensure returns the directory that holds the unpacked artifact, fetching and unpacking it first if it is not there
// yet. Callers that ask for one digest at the same time share the work. Errors to test for: ErrInvalid, ErrDigest,
// ErrTooLarge, ErrArchive, ErrNoSpace, ErrSlow and those of the context. Each has a method Refused() bool.
func (s *Store) Ensure(ctx context.Context, a manifest.Artifact) (dir string, err error) {
	return s.tree(a.SHA256), s.make(ctx, a, s.ensure)
}

// Renew fetches an artifact anew that is not whole on the disk. Until the new tree is complete the old one stays; then it is replaced at one
// stroke, so that what runs and what starts meanwhile always finds one of them. The errors are those of Ensure.
func (s *Store) Renew(ctx context.Context, a manifest.Artifact) error {
	return s.make(ctx, a, s.obtain)
}

// make has the work for an artifact done, once for all who ask at the same time.
func (s *Store) make(ctx context.Context, a manifest.Artifact, work func(ctx context.Context, src source, digest string) error) error {
	src, err := parse(a)
	if err != nil {
		return failed{err}
	}
	if err := s.share(ctx, a, func() error { return work(ctx, src, a.SHA256) }); err != nil {
		return failed{fmt.Errorf("artifact %s: %w", a.URL, err)}
	}
	return nil
}

// share does the work, or waits for who is at the same digest already and takes over the outcome. A failure to fetch it
// from elsewhere is not ours.
func (s *Store) share(ctx context.Context, a manifest.Artifact, work func() error) error {
	for {
		mine, theirs := s.join(a)
		if mine != nil {
			err := work()
			s.leave(a.SHA256, mine, err, ctx.Err() != nil)
			return err
		}
		select {
		case <-theirs.done:
			if theirs.err == nil || theirs.url == a.URL && !theirs.abandoned {
				return theirs.err
			}
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

// join returns a new flight of the caller's own, or else the one that is under way.
func (s *Store) join(a manifest.Artifact) (mine, theirs *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.flights[a.SHA256]; ok {
		return nil, f
	}
	f := &flight{url: a.URL, done: make(chan struct{})}
	s.flights[a.SHA256] = f
	return f, nil
}

// leave ends a flight, and notes what Prune must know.
func (s *Store) leave(digest string, f *flight, err error, abandoned bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var space *SpaceError
	switch {
	case err == nil:
		s.markUsed(digest, time.Now())
	case errors.As(err, &space):
		s.lacking = max(s.lacking, space.missing())
	case durable.Full(err):
		s.lacking = max(s.lacking, askAgain)
	}
	delete(s.flights, digest)
	f.err, f.abandoned = err, err != nil && abandoned
	close(f.done)
}

// ensure does the work of one flight.
func (s *Store) ensure(ctx context.Context, src source, digest string) error {
	if info, err := os.Lstat(s.tree(digest)); err == nil && info.IsDir() {
		return nil
	}
	return s.obtain(ctx, src, digest)
}

// obtain fetches and unpacks, unless the same was refused a short while ago. Only here is anybody kept waiting for the fetches
// of others: what is on the disk, or known to be refused, costs none.
func (s *Store) obtain(ctx context.Context, src source, digest string) error {
	if err := s.failures.recall(src, digest, time.Now()); err != nil {
		return err
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return ended(ctx)
	}
	version := fileVersion(src)
	err := s.build(ctx, src, digest)
	if durable.Full(err) && !errors.Is(err, ErrNoSpace) {
		err = fmt.Errorf("%w in %s: %w; free some", ErrNoSpace, s.cfg.Dir, err)
	}
	return s.failures.record(src, digest, version, err, time.Now())
}

// build makes everything under temporary names in the same directory, so that the final rename is atomic and a crash
// leaves nothing that looks finished.
func (s *Store) build(ctx context.Context, src source, digest string) (err error) {
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
	if err := s.install(ctx, archive, tree, digest); err != nil {
		return errors.Join(err, removeTree(tree))
	}
	return nil
}

// install turns a verified archive into the final directory.
func (s *Store) install(ctx context.Context, archive *os.File, tree, digest string) error {
	size, err := unpackedSize(archive)
	if err != nil {
		return err
	}
	room := s.room()
	if err := room.check(min(size, s.cfg.MaxUnpackedBytes), "unpacking"); err != nil {
		return err
	}
	if _, err := archive.Seek(0, 0); err != nil {
		return fmt.Errorf("rewind the fetched file: %w", err)
	}
	limits := limits{bytes: s.cfg.MaxUnpackedBytes, entries: s.cfg.MaxFiles, room: room}
	late := fmt.Errorf("unpack: not done within %s; allowed: archives that take less here, or a disk that is quicker: %w", s.cfg.UnpackTimeout, context.DeadlineExceeded)
	soon, cancel := context.WithTimeoutCause(ctx, s.cfg.UnpackTimeout, late)
	defer cancel()
	if err := unpack(soon, archive, tree, limits); err != nil {
		if soon.Err() != nil && ctx.Err() == nil {
			return late // another try may be in time
		}
		return err
	}
	l, err := measure(tree)
	if err != nil {
		return fmt.Errorf("measure the unpacked tree: %w", err)
	}
	if err := syncFilesystem(tree); err != nil {
		return err
	}
	if err := s.writeListing(digest, l); err != nil {
		return err
	}
	return s.put(tree, s.tree(digest))
}

func (s *Store) room() *room { return &room{dir: s.cfg.Dir, reserve: s.cfg.ReserveBytes} }

// put gives the tree its final name. What bears that name already is replaced and removed.
func (s *Store) put(tree, dir string) error {
	old := tree // after the exchange of the names
	if unix.Renameat2(unix.AT_FDCWD, tree, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE) != nil {
		// There is nothing to replace, or the file system cannot: then there is a moment without either.
		old = tree + "-old"
		err := ignoreMissing(os.Rename(dir, old))
		if err == nil {
			err = os.Rename(tree, dir)
		}
		if err != nil {
			return fmt.Errorf("put the unpacked tree in place: %w", err)
		}
	}
	if err := durable.SyncDir(s.cfg.Dir); err != nil {
		return fmt.Errorf("write artifact directory to disk: %w", err)
	}
	return removeTree(old)
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
