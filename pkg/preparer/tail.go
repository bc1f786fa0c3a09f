package preparer

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/regular"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
)

// maxTail bounds what a reality repeats of a log, in bytes.
const maxTail = 512

// tailOf returns the file whose end is told, "" for none: the log of the process that ended badly last, of a pod that
// is not available. A rollout takes such a pod back, and nobody can ask its node then.
func tailOf(r *pod.Reality, procs []runtime.Status) string {
	if r.Available || r.LastExit == nil || !broken(r.State) && r.Restarts == 0 || r.State == pod.StateStopping || r.State == pod.StateStopped {
		return ""
	}
	var path string
	var last time.Time
	for i := range procs {
		exit := procs[i].LastExit
		if exit != nil && !endedWell(exit) && (path == "" || exit.At.After(last)) {
			path, last = procs[i].Spec.LogPath, exit.At
		}
	}
	return path
}

// keptTail returns the end of the log that was told already of the same end of a process, "" where there is none.
func keptTail(said, r *pod.Reality) string {
	if said.LastExit == nil || said.Digest != r.Digest || *said.LastExit != *r.LastExit {
		return ""
	}
	return said.LogTail
}

// lastOf returns the last lines of a file as one, "" where it cannot be read: what a pod writes there is its own business.
func lastOf(path string) string {
	f, info, err := regular.Open(path, os.O_RDONLY|syscall.O_NOFOLLOW)
	if err != nil {
		return ""
	}
	defer f.Close()
	data := make([]byte, min(info.Size(), maxTail))
	n, _ := f.ReadAt(data, info.Size()-int64(len(data)))
	lines := bytes.Split(bytes.TrimLeft(data[:n], "\x00"), []byte("\n")) // zeros are where something was rotated out of it
	if len(lines) > 1 && info.Size() > maxTail {
		if text := asOne(lines[1:]); text != "" { // only part of the first was read
			return text
		}
	}
	return asOne(lines)
}

// asOne makes one line of lines.
func asOne(lines [][]byte) string {
	var text []string
	for _, line := range lines {
		line, _ = logfile.CutMark(line)
		text = append(text, printable(string(line)))
	}
	return strings.ToValidUTF8(strings.Join(strings.Fields(strings.Join(text, " ")), " "), "")
}
