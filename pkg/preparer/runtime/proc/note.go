package proc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// All notes have noteBytes bytes, because a note is written over the former note.
const noteBytes = 128

// ErrNote means that a file does not hold a past moment of this boot.
var ErrNote = errors.New("not a moment since the machine's start")

// WriteNote writes a moment in place, so that an existing note can be renewed on a full disk. It does not sync, because
// a moment has no meaning after the next boot.
func WriteNote(path string, m Moment) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	data = append(data, bytes.Repeat([]byte{' '}, max(noteBytes-len(data), 0))...)
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Truncate(int64(len(data))) // the former content could be longer
	}
	return errors.Join(err, f.Close())
}

// ReadNote returns ErrNote for a moment of another boot or in the future, because it does not come from this clock.
func ReadNote(path string, now Moment) (Moment, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Moment{}, err
	}
	var m Moment
	if err := json.Unmarshal(data, &m); err != nil || m.Boot != now.Boot || m.Up <= 0 || m.Up > now.Up {
		return Moment{}, fmt.Errorf("%s: %w", path, ErrNote)
	}
	return m, nil
}
