package preparer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/durable"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

const (
	recordSuffix = ".json"
	asideSuffix  = ".unreadable"
)

// Disk keeps one JSON file per identity. A file is replaced after its content is on the disk, so that a crash leaves either the
// old record or the new one.
type Disk struct {
	dir     string
	reserve *durable.Reserve
}

// NewDisk opens a directory of records, making it if needed. The directory belongs to one daemon (R11). On a full disk,
// records go into the reserve, which may be nil.
func NewDisk(dir string, reserve *durable.Reserve) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of pod records: %w", err)
	}
	return &Disk{dir: dir, reserve: reserve}, nil
}

// Load reads all records. A file whose content is no record, or that the disk does not give, is set aside under another name, and
// reported, one error each: it must not keep the others from running. The last result is about the whole: where the directory cannot be
// read, or the disk gives none of its files, nobody knows what the node was told, and nothing is changed. Reading may work later.
func (d *Disk) Load() (records []Record, bad []error, err error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read directory of pod records: %w", err)
	}
	aside := map[string]error{} // by file
	var lost error
	for _, entry := range entries {
		name := filepath.Join(d.dir, entry.Name())
		switch {
		case strings.HasSuffix(name, durable.TempSuffix):
			if err := os.Remove(name); err != nil {
				bad = append(bad, fmt.Errorf("remove leftover: %w", err))
			}
		case strings.HasSuffix(name, recordSuffix):
			rec, err := d.read(name)
			switch {
			case err == nil:
				records = append(records, rec)
			case errors.Is(err, errGarbage):
				aside[name] = err
			case durable.OfOneFile(err):
				aside[name], lost = err, err
			default: // too many open files, say: the next one will be no different
				return nil, nil, err
			}
		}
	}
	if len(records) == 0 && lost != nil {
		return nil, nil, lost
	}
	for name, err := range aside {
		bad = append(bad, errors.Join(err, d.setAside(name)))
	}
	return records, bad, nil
}

func (d *Disk) read(name string) (Record, error) {
	var rec Record
	data, err := os.ReadFile(name)
	if err != nil {
		return Record{}, fmt.Errorf("read pod record: %w", err)
	}
	err = json.Unmarshal(data, &rec)
	if err == nil {
		err = rec.Check()
	}
	if err == nil && d.file(rec.Intent.Identity) != name {
		err = fmt.Errorf("it is about %s", rec.Intent.Identity)
	}
	if err != nil {
		return Record{}, fmt.Errorf("%w %s: %w", errGarbage, name, err)
	}
	return rec, nil
}

// errGarbage is about a file that was read, and is no record.
var errGarbage = errors.New("unreadable pod record")

func (d *Disk) setAside(name string) error {
	aside := name + "." + strconv.FormatInt(time.Now().UnixNano(), 10) + asideSuffix
	if err := os.Rename(name, aside); err != nil {
		return fmt.Errorf("set it aside: %w", err)
	}
	return nil
}

// Save replaces the record of one identity. When it returns nil, the record survives a power failure.
func (d *Disk) Save(rec Record) error {
	name := d.file(rec.Intent.Identity)
	data, err := json.Marshal(rec)
	if err == nil {
		err = d.reserve.WriteFile(name, data)
	}
	if err != nil {
		return fmt.Errorf("save pod record %s: %w", name, err)
	}
	return nil
}

// Forget removes the record of an identity. A power failure may bring it back.
func (d *Disk) Forget(id pod.Identity) error {
	if err := os.Remove(d.file(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pod record: %w", err)
	}
	return nil
}

func (d *Disk) file(id pod.Identity) string {
	return filepath.Join(d.dir, install.FileName(id)+recordSuffix)
}
