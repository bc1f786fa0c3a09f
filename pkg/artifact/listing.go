package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rcfarm/rcfarm/pkg/durable"
)

// Errors of Check that a caller may test for. Restore mends both.
var (
	ErrMissing = errors.New("the artifact is not on the disk any more")
	ErrDamaged = errors.New("the artifact was changed on the disk")
)

// listingSuffix ends the name of the file, beside each tree, that says what was unpacked. Its modification time is when
// the tree was last used, so that the order survives restarts.
const listingSuffix = ".json"

// listing is what a tree was when it was unpacked: enough to notice later, without reading every file, that it is not
// whole any more. What the disk itself gets wrong below an unchanged size and time is the file system's business.
type listing struct {
	Entries int    `json:"entries"`
	Bytes   int64  `json:"bytes"`  // on the disk, roughly
	SHA256  string `json:"sha256"` // over path, mode, size, modification time and link target of every entry
}

// list walks a tree. It follows no symbolic link.
func list(tree string) (listing, error) {
	var l listing
	hash := sha256.New()
	err := filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		var size int64
		var target string
		switch {
		case info.Mode().IsRegular():
			size = info.Size()
		case info.Mode()&fs.ModeSymlink != 0:
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		l.Entries++
		l.Bytes += occupied(size)
		_, err = fmt.Fprintf(hash, "%q %s %d %d %q\n", path[len(tree):], info.Mode(), size, info.ModTime().UnixNano(), target)
		return err
	})
	l.SHA256 = hex.EncodeToString(hash.Sum(nil))
	return l, err
}

func (s *Store) listingPath(digest string) string {
	return filepath.Join(s.cfg.Dir, digest+listingSuffix)
}

// writeListing makes a listing durable. It is there before its tree is.
func (s *Store) writeListing(digest string, l listing) error {
	data, err := json.Marshal(l)
	if err == nil {
		err = durable.WriteFile(s.listingPath(digest), data)
	}
	if err != nil {
		return fmt.Errorf("write the listing of the unpacked tree: %w", err)
	}
	return nil
}

func (s *Store) readListing(digest string) (listing, error) {
	var l listing
	data, err := os.ReadFile(s.listingPath(digest))
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	return l, err
}

// verify compares a tree with its listing.
func (s *Store) verify(digest string) error {
	dir := s.tree(digest)
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrMissing
	case err != nil:
		return fmt.Errorf("look at the unpacked tree: %w", err)
	case !info.IsDir():
		return fmt.Errorf("%w: %s is no directory", ErrDamaged, dir)
	}
	want, err := s.readListing(digest)
	if err != nil {
		return fmt.Errorf("%w, or nobody can say: its listing: %w", ErrDamaged, err)
	}
	got, err := list(dir)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	case got.Entries != want.Entries:
		return fmt.Errorf("%w: %s holds %d entries, unpacked were %d", ErrDamaged, dir, got.Entries, want.Entries)
	case got != want:
		return fmt.Errorf("%w: %s: mode, size, time or link of an entry is not what was unpacked", ErrDamaged, dir)
	}
	return nil
}
