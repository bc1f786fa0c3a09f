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

// maxTail is in bytes.
const maxTail = 512

// tailOf returns the log file whose end goes into the reality, or "". If the pod is not available, it is the log of the
// process that ended badly last. The text is in the reality because a rollout can remove the pod, and then the log
// cannot be read any more.
func tailOf(r *pod.Reality, procs []runtime.Status) string {
	stopping := r.State == pod.StateStopping || r.State == pod.StateStopped
	if r.Available || r.LastExit == nil || !broken(r.State) && r.Restarts == 0 || stopping {
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

// keptTail returns the log text from the last report, if that is about the same end of a process.
func keptTail(last, r *pod.Reality) string {
	if last.LastExit == nil || last.Digest != r.Digest || *last.LastExit != *r.LastExit {
		return ""
	}
	return last.LogTail
}

// lastOf returns the last lines of a file as one line. Errors do not matter, because the pod owns the file.
func lastOf(path string) string {
	f, info, err := regular.Open(path, os.O_RDONLY|syscall.O_NOFOLLOW)
	if err != nil {
		return ""
	}
	defer f.Close()
	data := make([]byte, min(info.Size(), maxTail))
	n, _ := f.ReadAt(data, info.Size()-int64(len(data)))
	lines := bytes.Split(bytes.TrimLeft(data[:n], "\x00"), []byte("\n")) // a rotation leaves zeros in the file
	if len(lines) > 1 && info.Size() > maxTail {
		if text := asOne(lines[1:]); text != "" { // the first line is incomplete
			return text
		}
	}
	return asOne(lines)
}

func asOne(lines [][]byte) string {
	var text []string
	for _, line := range lines {
		line, _ = logfile.CutMark(line)
		text = append(text, printable(string(line)))
	}
	return strings.ToValidUTF8(strings.Join(strings.Fields(strings.Join(text, " ")), " "), "")
}
