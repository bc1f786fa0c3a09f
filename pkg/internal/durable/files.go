package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const recordSuffix = ".json"

// AsideSuffix ends the names of files that contain no record.
const AsideSuffix = ".unreadable"

// Files keeps one JSON file for each record, in a directory of one daemon (R11). An existing record can be changed on a
// full disk, because it has reserved space.
type Files[T any] struct {
	Dir   string
	What  string         // names one record, such as "pod record"
	Check func(*T) error // returns what is wrong with a record that was read
	Name  func(*T) string
}

// Open makes the directory if it is missing.
func (f *Files[T]) Open() error {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return fmt.Errorf("make directory of %ss: %w", f.What, err)
	}
	// A killed writer may have exchanged two files. This must be durable before one of them is overwritten.
	if err := SyncDir(f.Dir); err != nil {
		return fmt.Errorf("sync directory of %ss: %w", f.What, err)
	}
	return nil
}

// Path returns the file of a record.
func (f *Files[T]) Path(name string) string { return filepath.Join(f.Dir, name+recordSuffix) }

// Read reads all records, by name. bad has an error for each file that contains no record, or cannot be read. Read
// removes half-written files.
func (f *Files[T]) Read() (good map[string]*T, bad map[string]error, err error) {
	good, bad, _, err = f.readAll() // leftovers that cannot be removed take little space, and are overwritten later
	return good, bad, err
}

func (f *Files[T]) readAll() (good map[string]*T, bad map[string]error, leftovers []error, err error) {
	entries, err := os.ReadDir(f.Dir)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read directory of %ss: %w", f.What, err)
	}
	good, bad = map[string]*T{}, map[string]error{}
	for _, entry := range entries {
		if f.isLeftover(entry.Name()) {
			if err := os.Remove(filepath.Join(f.Dir, entry.Name())); err != nil {
				leftovers = append(leftovers, fmt.Errorf("remove leftover: %w", err))
			}
			continue
		}
		name, isRecord := strings.CutSuffix(entry.Name(), recordSuffix)
		if !isRecord {
			continue
		}
		rec, err := f.read(name)
		switch {
		case err == nil:
			good[name] = rec
		case ofTheProcess(err): // the next file will fail too
			return nil, nil, nil, err
		default:
			bad[name] = err
		}
	}
	return good, bad, leftovers, nil
}

// Load reads all records, sorted by name. It renames a file that contains no record, or that the disk cannot read
// (AsideSuffix), because the other records must still be used. bad has the errors of these files, and of leftovers that
// Load could not remove. If the disk can read no file, or another error occurs, Load renames nothing and returns err.
func (f *Files[T]) Load() (records []T, bad []error, err error) {
	good, unread, bad, err := f.readAll()
	if err != nil {
		return nil, nil, err
	}
	for _, err := range unread {
		if !errors.Is(err, errGarbage) && (len(good) == 0 || !OfOneFile(err)) {
			return nil, nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(good)) {
		records = append(records, *good[name])
	}
	for name, err := range unread {
		bad = append(bad, errors.Join(err, setAside(f.Path(name))))
	}
	return records, bad, nil
}

// errGarbage means that a file was read and contains no record.
var errGarbage = errors.New("unreadable")

func (f *Files[T]) read(name string) (*T, error) {
	data, err := os.ReadFile(f.Path(name))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.What, err)
	}
	rec := new(T)
	err = json.Unmarshal(data, rec)
	if err == nil {
		err = f.Check(rec)
	}
	if err == nil && f.Name(rec) != name {
		err = fmt.Errorf("it is about %s", f.Name(rec))
	}
	if err != nil {
		return nil, fmt.Errorf("%w %s %s: %w", errGarbage, f.What, f.Path(name), err)
	}
	return rec, nil
}

// isLeftover reports whether a file is half-written, or the spare file of a missing record.
func (f *Files[T]) isLeftover(name string) bool {
	if of, isSpare := strings.CutSuffix(name, SpareSuffix); isSpare {
		_, err := os.Lstat(filepath.Join(f.Dir, of))
		return errors.Is(err, fs.ErrNotExist)
	}
	return strings.HasSuffix(name, TempSuffix)
}

func setAside(path string) error {
	if err := os.Rename(path, path+"."+strconv.FormatInt(time.Now().UnixNano(), 10)+AsideSuffix); err != nil {
		return fmt.Errorf("set it aside: %w", err)
	}
	return nil
}

// Save replaces the file of a record. When it returns nil, the record survives a power failure.
func (f *Files[T]) Save(rec T) error {
	name := f.Name(&rec)
	data, err := json.Marshal(rec)
	if err == nil {
		err = ReplaceFile(f.Path(name), data)
	}
	if err != nil {
		return fmt.Errorf("save %s %s: %w", f.What, name, err)
	}
	return nil
}

// Forget removes the file of a record, if it exists. When it returns nil, no power failure can bring it back.
func (f *Files[T]) Forget(name string) error {
	err := errors.Join(discard(f.Path(name)), discard(f.Path(name)+SpareSuffix))
	if err == nil { // also if the file was missing, because an earlier removal may not be durable yet
		err = SyncDir(f.Dir)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", f.What, err)
	}
	return nil
}
