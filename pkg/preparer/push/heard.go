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

// MaxHeard is how many controllers are remembered.
const MaxHeard = 512

// Heard is the highest term, and the highest revision in it, that a node has heard of a controller.
type Heard struct {
	RCID     string `json:"rc_id"`
	Term     string `json:"term"`
	Revision int64  `json:"revision"`
}

// heard are those of all controllers, the one that was heard of last at the end.
type heard []Heard

// compare says how a request's term and revision compare with the highest of its controller. Terms of another epoch say nothing.
func (h heard) compare(e scale.Epoch, revision int64) int {
	at := slices.IndexFunc(h, func(known Heard) bool { return known.RCID == e.RCID })
	if at < 0 || !strings.HasPrefix(h[at].Term, scale.Term(e.Cluster, 0)[:len(e.Cluster)+1]) {
		return 1
	}
	return cmp.Or(cmp.Compare(e.Term, h[at].Term), cmp.Compare(revision, h[at].Revision))
}

// with returns them with the request's as the highest of its controller. Beyond MaxHeard the one that was heard of longest ago goes.
func (h heard) with(e scale.Epoch, revision int64) heard {
	next := slices.DeleteFunc(slices.Clone(h), func(known Heard) bool { return known.RCID == e.RCID })
	next = append(next, Heard{RCID: e.RCID, Term: e.Term, Revision: revision})
	return next[max(0, len(next)-MaxHeard):]
}

// file keeps them on the disk.
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

// read returns what was written. What cannot be understood is as nothing, and returned as an error.
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
