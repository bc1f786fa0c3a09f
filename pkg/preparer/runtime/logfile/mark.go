package logfile

import (
	"bytes"
	"os"
	"time"
)

// startMark begins a line between the output of two runs. ASCII's record separator does not occur in ordinary text.
const startMark = "\x1ercfarm: started "

// MarkStart writes a mark into a log, unless the log is empty. It ignores an error, such as a full disk, because the
// program must start nevertheless.
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

// CutMark returns the part of a line before a mark: the unfinished last line of the previous run. Without a mark, it
// returns the whole line.
func CutMark(line []byte) (before []byte, marked bool) {
	before, _, marked = bytes.Cut(line, []byte(startMark))
	return before, marked
}
