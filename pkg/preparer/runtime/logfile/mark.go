package logfile

import (
	"bytes"
	"os"
	"time"
)

// startMark begins a line that tells the output of one start of a program from that of the one before. Its first
// character, the record separator of ASCII, is no part of ordinary text.
const startMark = "\x1ercfarm: started "

// MarkStart notes in a log that its program starts now. A log that nothing was ever written to needs no note. Where it
// cannot be written, as on a full disk, the program starts all the same.
func MarkStart(log *os.File, now time.Time) {
	info, err := log.Stat()
	if err != nil {
		return
	}
	if _, err := os.Lstat(log.Name() + ".1"); err != nil && info.Size() == 0 {
		return
	}
	_, _ = log.WriteString(startMark + now.UTC().Format(time.RFC3339Nano) + "\n")
}

// CutMark returns what a line holds in front of a mark, which is the unfinished last line of the start before. Without a
// mark it returns the line.
func CutMark(line []byte) (before []byte, marked bool) {
	before, _, marked = bytes.Cut(line, []byte(startMark))
	return before, marked
}
