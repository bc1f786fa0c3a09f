package artifact

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
)

// listingSuffix ends the name of the file, beside each tree, that says what was unpacked. Its modification time is when
// the tree was last used, so that the order survives restarts.
const listingSuffix = ".json"

// listing is what is to be known of a tree without a walk through it.
type listing struct {
	Bytes int64 `json:"bytes"` // on the disk, roughly
}

// measure walks a tree. It follows no symbolic link.
func measure(tree string) (listing, error) {
	var l listing
	err := filepath.WalkDir(tree, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		size := int64(0)
		if info.Mode().IsRegular() {
			size = info.Size()
		}
		l.Bytes += occupied(size)
		return nil
	})
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
