package preparer

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/internal/regular"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
)

// maxTail bounds what a reality repeats of a log, in bytes.
const maxTail = 512

// tailOf returns the file whose end is told, the log of the process that ended badly, of a pod that runs once: nobody can ask its node for it
// later. It is empty where nothing is told.
func tailOf(r *pod.Reality, m *manifest.Manifest, procs []runtime.Status) string {
	if m == nil || !m.RunsOnce() || r.State != pod.StateFailed {
		return ""
	}
	i := slices.IndexFunc(procs, func(s runtime.Status) bool { return s.Phase == runtime.Exited && !done(s) })
	if i < 0 {
		return ""
	}
	return procs[i].Spec.LogPath
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
		lines = lines[1:] // only part of it was read
	}
	var text []string
	for _, line := range lines {
		line, _ = logfile.CutMark(line)
		text = append(text, printable(string(line)))
	}
	return strings.ToValidUTF8(strings.Join(strings.Fields(strings.Join(text, " ")), " "), "")
}
