// Package artifact fetches the artifacts of launchables, verifies them, and unpacks each digest once into a read-only
// tree that all pods of the node share. It removes artifacts that no pod uses.
package artifact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/internal/patience"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// These errors are final: another fetch of the same file would end in the same way, so the store waits for a while
// before it. Other errors of Ensure, such as ErrNoSpace or ErrSlow, can be over at the next try.
var (
	ErrInvalid  = errors.New("not a valid artifact reference")
	ErrDigest   = errors.New("the fetched file has another digest")
	ErrTooLarge = archive.ErrTooLarge
	ErrArchive  = archive.ErrArchive
)

// Errors that a later try may not get.
var (
	ErrNoSpace = archive.ErrNoSpace
	ErrSlow    = patience.ErrSlow
)

// SpaceError is an ErrNoSpace with the missing amount.
type SpaceError = archive.SpaceError

// Defaults of Config.
const (
	DefaultMaxBytes         = 2 << 30 // fetched
	DefaultMaxUnpackedBytes = 8 << 30
	DefaultCacheBytes       = 10 << 30
	DefaultReserveBytes     = 256 << 20
	DefaultFetchTimeout     = 30 * time.Minute
	DefaultStallTimeout     = 30 * time.Second
	DefaultUnpackTimeout    = 5 * time.Minute
)

// maxRetryWait is the longest pause between two tries of one fetch, even if Retry-After asks for more.
const maxRetryWait = 10 * time.Second

// tempPrefix begins the names of unfinished files and directories. No digest begins in this way.
const tempPrefix = "tmp-"

// Config has what New needs. withDefaults replaces zeros.
type Config struct {
	Dir string // has a directory for each digest, and unfinished work; made if missing

	MaxBytes         int64 // of the file as fetched
	MaxUnpackedBytes int64 // of the tar stream, and of all files together
	MaxFiles         int   // files, directories and links; every entry of the archive counts

	CacheBytes   int64 // size of the cache after Prune; it is larger if the artifacts in use are
	ReserveBytes int64 // bytes of the disk that stay free; negative for none

	FetchTimeout  time.Duration // of one whole fetch with its retries
	UnpackTimeout time.Duration // of unpacking one archive
	StallTimeout  time.Duration // in each such time a server must send 64 KiB, or the rest
	Retries       int           // further tries after the first; negative for none
	RetryWait     time.Duration // pause before the second try; it doubles after each try, up to 10 s
	Fetches       int           // how many artifacts are fetched and unpacked at the same time
	FinalWait     time.Duration // pause before a refused artifact is fetched again; it doubles each time
	MaxFinalWait  time.Duration // longest such pause
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

// Store keeps unpacked artifacts in a directory that belongs to one daemon. It is safe for concurrent use. It
// implements install.Artifacts and preparer.Cache.
type Store struct {
	cfg      Config
	client   *http.Client
	failures failures
	slots    chan struct{} // has a token for each artifact that is being fetched

	mu      sync.Mutex
	flights map[string]*flight   // by digest: work under way
	usedAt  map[string]time.Time // by digest: when the use was last recorded
	lacking int64                // most bytes that were missing for a fetch since the last Prune
}

// flight is the work of one caller, for which others can wait.
type flight struct {
	url       string        // the artifact is fetched from this URL
	done      chan struct{} // closed when err and abandoned are set
	err       error
	abandoned bool // the worker's context ended, so a waiting caller must try again
}

// New opens the store. It removes unfinished work that a crash has left.
func New(cfg Config) (*Store, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("artifact directory %q: not valid; allowed: an absolute path", cfg.Dir)
	}
	cfg = cfg.withDefaults()
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make artifact directory: %w", err)
	}
	// Pods with other users run programs from this directory, so its mode must not depend on the umask.
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
		if err := archive.RemoveTree(filepath.Join(cfg.Dir, entry.Name())); err != nil {
			return nil, fmt.Errorf("remove leftover: %w", err)
		}
	}
	return &Store{
		cfg: cfg, client: newClient(cfg), flights: map[string]*flight{}, usedAt: map[string]time.Time{},
		slots:    make(chan struct{}, cfg.Fetches),
		failures: failures{least: cfg.FinalWait, most: cfg.MaxFinalWait, known: map[string]failure{}},
	}, nil
}

// leftover reports whether a crash has left a file: unfinished work, or a listing without its tree.
func leftover(name string, all []os.DirEntry) bool {
	if strings.HasPrefix(name, tempPrefix) || strings.HasSuffix(name, durable.TempSuffix) {
		return true
	}
	digest, isListing := strings.CutSuffix(name, listingSuffix)
	return isListing && !slices.ContainsFunc(all, func(e os.DirEntry) bool { return e.Name() == digest })
}

func (s *Store) tree(digest string) string { return filepath.Join(s.cfg.Dir, digest) }

// Ensure returns the directory of the unpacked artifact, which it makes if it is missing. Callers that ask for the same
// digest share the work. Errors to test for: ErrInvalid, ErrDigest, ErrTooLarge, ErrArchive, ErrNoSpace, ErrSlow and
// the errors of the context. Each error has a method Refused() bool.
func (s *Store) Ensure(ctx context.Context, a manifest.Artifact) (dir string, err error) {
	return s.tree(a.SHA256), s.make(ctx, a, s.ensure)
}

// Renew fetches an artifact again, because its tree on the disk is damaged. It replaces the old tree in one step, so
// pods always find one of the two. It returns the same errors as Ensure.
func (s *Store) Renew(ctx context.Context, a manifest.Artifact) error {
	return s.make(ctx, a, s.obtain)
}

func (s *Store) make(ctx context.Context, a manifest.Artifact,
	work func(ctx context.Context, src source, digest string) error,
) error {
	src, err := parse(a)
	if err != nil {
		return failed{err}
	}
	if err := s.share(ctx, a, func() error { return work(ctx, src, a.SHA256) }); err != nil {
		return failed{fmt.Errorf("artifact %s: %w", a.URL, err)}
	}
	return nil
}

// share does the work, or waits for a caller that already works on this digest and returns that caller's result. It
// does the work itself if the other has failed with another URL, or if the other's context has ended.
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
			return patience.Ended(ctx)
		}
	}
}

// join returns the flight under way for the digest as theirs. If there is none, it begins one and returns it as mine.
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

// leave ends a flight, and stores what Prune must know.
func (s *Store) leave(digest string, f *flight, err error, abandoned bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var space *SpaceError
	switch {
	case err == nil:
		s.markUsed(digest, time.Now())
	case errors.As(err, &space):
		s.lacking = max(s.lacking, space.Missing())
	case durable.Full(err):
		s.lacking = max(s.lacking, archive.AskAgain)
	}
	delete(s.flights, digest)
	f.err, f.abandoned = err, err != nil && abandoned
	close(f.done)
}

func (s *Store) ensure(ctx context.Context, src source, digest string) error {
	if info, err := os.Lstat(s.tree(digest)); err == nil && info.IsDir() {
		return nil
	}
	return s.obtain(ctx, src, digest)
}

// obtain fetches and unpacks the artifact. If the same artifact was refused a short time ago, it returns the same error
// at once. Otherwise it waits until few enough fetches are under way.
func (s *Store) obtain(ctx context.Context, src source, digest string) error {
	if err := s.failures.recall(src, digest, time.Now()); err != nil {
		return err
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return patience.Ended(ctx)
	}
	version := fileVersion(src)
	err := s.build(ctx, src, digest)
	if durable.Full(err) && !errors.Is(err, ErrNoSpace) {
		err = fmt.Errorf("%w in %s: %w; free some", ErrNoSpace, s.cfg.Dir, err)
	}
	return s.failures.record(src, digest, version, err, time.Now())
}

// build works under temporary names in the same directory, and renames the result at the end, so that a crash leaves
// nothing unfinished under a final name.
func (s *Store) build(ctx context.Context, src source, digest string) (err error) {
	packed, err := os.CreateTemp(s.cfg.Dir, tempPrefix+"fetch-")
	if err != nil {
		return fmt.Errorf("make a temporary file: %w", err)
	}
	defer func() { err = errors.Join(err, packed.Close(), os.Remove(packed.Name())) }()
	if err := s.fetch(ctx, src, packed, digest); err != nil {
		return err
	}
	tree, err := os.MkdirTemp(s.cfg.Dir, tempPrefix+"tree-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	if err := s.install(ctx, packed, tree, digest); err != nil {
		return errors.Join(err, archive.RemoveTree(tree))
	}
	return nil
}

func (s *Store) install(ctx context.Context, packed *os.File, tree, digest string) error {
	size, err := unpackedSize(packed)
	if err != nil {
		return err
	}
	room := s.room()
	if err := room.Check(min(size, s.cfg.MaxUnpackedBytes), "unpacking"); err != nil {
		return err
	}
	if _, err := packed.Seek(0, 0); err != nil {
		return fmt.Errorf("rewind the fetched file: %w", err)
	}
	limits := limits{bytes: s.cfg.MaxUnpackedBytes, entries: s.cfg.MaxFiles, room: room}
	late := fmt.Errorf("unpack: not done within %s; allowed: archives that take less here, or a disk that is "+
		"quicker: %w", s.cfg.UnpackTimeout, context.DeadlineExceeded)
	soon, cancel := context.WithTimeoutCause(ctx, s.cfg.UnpackTimeout, late)
	defer cancel()
	if err := unpack(soon, packed, tree, limits); err != nil {
		if soon.Err() != nil && ctx.Err() == nil {
			return late // not final, because another try may be faster
		}
		return err
	}
	l, err := measure(tree)
	if err != nil {
		return fmt.Errorf("measure the unpacked tree: %w", err)
	}
	if err := archive.SyncFilesystem(tree); err != nil {
		return err
	}
	if err := s.writeListing(digest, l); err != nil {
		return err
	}
	return s.put(tree, s.tree(digest))
}

func (s *Store) room() *archive.Room {
	return &archive.Room{Dir: s.cfg.Dir, Reserve: s.cfg.ReserveBytes}
}

// put gives the tree its final name, and removes another tree that has it.
func (s *Store) put(tree, dir string) error {
	old := tree // if the names were exchanged, the old tree has this name
	if unix.Renameat2(unix.AT_FDCWD, tree, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE) != nil {
		// There is no old tree, or the file system cannot exchange names. Then no tree has the name for a moment.
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
	return archive.RemoveTree(old)
}
