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

// AsideSuffix ends the names of files that were set aside because they hold no record.
const AsideSuffix = ".unreadable"

// Files keeps one JSON file for each record, in a directory that belongs to one daemon (R11). A crash leaves the old
// record or the new one. Each record has its own room, so that a full disk keeps none that is there from being changed.
type Files[T any] struct {
	Dir   string
	What  string         // one of them in words, such as "pod record"
	Check func(*T) error // what is wrong with a record that was read
	Name  func(*T) string
}

// Open makes the directory if it is needed.
func (f *Files[T]) Open() error {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return fmt.Errorf("make directory of %ss: %w", f.What, err)
	}
	// What a writer that was killed has exchanged is durable before it is written over.
	if err := SyncDir(f.Dir); err != nil {
		return fmt.Errorf("sync directory of %ss: %w", f.What, err)
	}
	return nil
}

// Path returns the file of a record with a name.
func (f *Files[T]) Path(name string) string { return filepath.Join(f.Dir, name+recordSuffix) }

// Read reads all records, by name, and says of each file that is no record, or cannot be read, what is wrong with it. What a crash left
// half-written is removed. An error is about the whole: nobody knows what was written; reading may work later.
func (f *Files[T]) Read() (good map[string]*T, bad map[string]error, err error) {
	good, bad, _, err = f.readAll() // a leftover that stays takes some room, and is written over
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
		case ofTheProcess(err): // the next one will be no different
			return nil, nil, nil, err
		default:
			bad[name] = err
		}
	}
	return good, bad, leftovers, nil
}

// Load is Read, in the order of the names, and sets aside under another name what is no record, or what the disk does not give: it must not
// keep the others from running. It reports those and leftovers that stay. Where the disk gives none of the files, or one cannot be read for
// another reason, nothing is changed, and that is an error.
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

// errGarbage is about a file that was read, and is no record.
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

// isLeftover reports whether a file is what a crash left half-written, or the spare file of a record that is gone.
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

// Forget removes the file of the record with a name, so that no power failure brings it back. One that is not there is fine.
func (f *Files[T]) Forget(name string) error {
	err := errors.Join(discard(f.Path(name)), discard(f.Path(name)+SpareSuffix))
	if err == nil { // also what is gone: its removal may not have been made durable
		err = SyncDir(f.Dir)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", f.What, err)
	}
	return nil
}
