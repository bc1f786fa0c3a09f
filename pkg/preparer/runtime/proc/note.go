package proc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// noteBytes is the length of each note: one is written over another.
const noteBytes = 128

// ErrNote is about a file that holds no moment of this start of the machine that has passed.
var ErrNote = errors.New("not a moment since the machine's start")

// WriteNote writes a moment into a file, in place: a disk that is full has room for it once the file is there. It need not survive a power
// failure, because no moment means anything after one.
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
		err = f.Truncate(int64(len(data))) // what it held before may have been longer
	}
	return errors.Join(err, f.Close())
}

// ReadNote returns the moment in a file. Besides the errors of reading there is ErrNote, also for a moment of another start of the machine,
// and for one that is still to come: neither was written by who lives by this clock.
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
