package push

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// MaxHeard is the number of controllers whose last push a node remembers.
const MaxHeard = 512

// Heard is the highest term of a controller's owner in the pushes that this node got, and the highest revision in that
// term.
type Heard struct {
	RCID     string `json:"rc_id"`
	Term     string `json:"term"`
	Revision int64  `json:"revision"`
}

// heard has one entry for each controller, the most recent push last.
type heard []Heard

// compare compares a request with the entry of its controller. If there is no entry, or the entry is of another
// epoch, the request is higher.
func (h heard) compare(e scale.Epoch, revision int64) int {
	at := slices.IndexFunc(h, func(known Heard) bool { return known.RCID == e.RCID })
	if at < 0 || !strings.HasPrefix(h[at].Term, scale.Term(e.Cluster, 0)[:len(e.Cluster)+1]) {
		return 1
	}
	return cmp.Or(cmp.Compare(e.Term, h[at].Term), cmp.Compare(revision, h[at].Revision))
}

func (h heard) with(e scale.Epoch, revision int64) heard {
	next := slices.DeleteFunc(slices.Clone(h), func(known Heard) bool { return known.RCID == e.RCID })
	next = append(next, Heard{RCID: e.RCID, Term: e.Term, Revision: revision})
	return next[max(0, len(next)-MaxHeard):]
}

type file struct {
	path string
}

const fileName = "pushed.json"

type content struct {
	Heard heard `json:"heard"`
}

func (f file) write(h heard) error {
	data, err := json.Marshal(content{h})
	if err == nil {
		err = durable.ReplaceFile(f.path, data)
	}
	if err != nil {
		return fmt.Errorf("write what farms have pushed: %w", err)
	}
	return nil
}

// read returns no entries and an error if the file cannot be read or parsed.
func read(dir string) (file, heard, error) {
	f := file{filepath.Join(dir, fileName)}
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil, nil
	}
	var c content
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return f, nil, fmt.Errorf("read what farms have pushed: %w", err)
	}
	return f, c.Heard[max(0, len(c.Heard)-MaxHeard):], nil
}
