package durable

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
)

const recordSuffix = ".json"

// AsideSuffix ends the names of files that were set aside because they hold no record.
const AsideSuffix = ".unreadable"

// Files keeps one JSON file for each record, in a directory that belongs to one daemon (R11). A crash leaves the old record or the new one.
type Files[T any] struct {
	Dir     string
	What    string         // one of them in words, such as "pod record"
	Reserve *Reserve       // for a full disk; may be nil
	Check   func(*T) error // what is wrong with a record that was read
	Name    func(*T) string
}

// Open makes the directory if it is needed.
func (f *Files[T]) Open() error {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return fmt.Errorf("make directory of %ss: %w", f.What, err)
	}
	return nil
}

// Path returns the file of a record with a name.
func (f *Files[T]) Path(name string) string { return filepath.Join(f.Dir, name+recordSuffix) }

// Load reads all records. A file whose content is no record, or that the disk does not give, is set aside under another name, and
// reported, one error each: it must not keep the others from running. The last result is about the whole: where the directory cannot be
// read, or the disk gives none of its files, nobody knows what was written, and nothing is changed. Reading may work later.
func (f *Files[T]) Load() (records []T, bad []error, err error) {
	entries, err := os.ReadDir(f.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read directory of %ss: %w", f.What, err)
	}
	aside := map[string]error{} // by file
	var lost error
	for _, entry := range entries {
		path := filepath.Join(f.Dir, entry.Name())
		switch {
		case strings.HasSuffix(path, TempSuffix):
			if err := os.Remove(path); err != nil {
				bad = append(bad, fmt.Errorf("remove leftover: %w", err))
			}
		case strings.HasSuffix(path, recordSuffix):
			rec, err := f.read(path)
			switch {
			case err == nil:
				records = append(records, *rec)
			case errors.Is(err, errGarbage):
				aside[path] = err
			case OfOneFile(err):
				aside[path], lost = err, err
			default: // too many open files, say: the next one will be no different
				return nil, nil, err
			}
		}
	}
	if len(records) == 0 && lost != nil {
		return nil, nil, lost
	}
	for path, err := range aside {
		bad = append(bad, errors.Join(err, setAside(path)))
	}
	return records, bad, nil
}

// errGarbage is about a file that was read, and is no record.
var errGarbage = errors.New("unreadable")

func (f *Files[T]) read(path string) (*T, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.What, err)
	}
	rec := new(T)
	err = json.Unmarshal(data, rec)
	if err == nil {
		err = f.Check(rec)
	}
	if err == nil && f.Path(f.Name(rec)) != path {
		err = fmt.Errorf("it is about %s", f.Name(rec))
	}
	if err != nil {
		return nil, fmt.Errorf("%w %s %s: %w", errGarbage, f.What, path, err)
	}
	return rec, nil
}

func setAside(path string) error {
	if err := os.Rename(path, path+"."+strconv.FormatInt(time.Now().UnixNano(), 10)+AsideSuffix); err != nil {
		return fmt.Errorf("set it aside: %w", err)
	}
	return nil
}

// Save replaces the file of a record. When it returns nil, the record survives a power failure.
func (f *Files[T]) Save(rec *T) error {
	path := f.Path(f.Name(rec))
	data, err := json.Marshal(rec)
	if err == nil {
		err = f.Reserve.WriteFile(path, data)
	}
	if err != nil {
		return fmt.Errorf("save %s %s: %w", f.What, path, err)
	}
	return nil
}

// Forget removes the file of the record with a name. A power failure may bring it back.
func (f *Files[T]) Forget(name string) error {
	if err := os.Remove(f.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", f.What, err)
	}
	return nil
}
