package artifact

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
)

// listingSuffix ends the name of a listing, a file beside each tree. Its modification time is the time when the tree
// was last used, so that the order of use survives restarts.
const listingSuffix = ".json"

// listing has the size of a tree, so that Prune need not walk it.
type listing struct {
	Bytes int64 `json:"bytes"` // approximate size on the disk
}

// measure does not follow symbolic links.
func measure(tree string) (listing, error) {
	bytes, _, err := archive.Measure(tree)
	return listing{Bytes: bytes}, err
}

func (s *Store) listingPath(digest string) string {
	return filepath.Join(s.cfg.Dir, digest+listingSuffix)
}

// writeListing is called before the tree gets its final name.
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
