package preparer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// The end of a log is told of a pod that runs once and failed, and of no other; what the pod makes of its log changes nothing else.
func TestTheEndOfALog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "main.log")
	failed := []runtime.Status{{
		Spec:  runtime.Spec{Process: runtime.Process{LogPath: path}},
		State: runtime.State{Phase: runtime.Exited, LastExit: &pod.Exit{Code: 1}},
	}}
	once := &manifest.Manifest{Launchables: []manifest.Launchable{{Restart: &manifest.Restart{Policy: manifest.RestartNever}}}}
	r := &pod.Reality{State: pod.StateFailed}
	for log, want := range map[string]string{
		"":                                       "",
		"one\ntwo \x1b[31m\tthree\n":             "one two [31m three",
		strings.Repeat("a line\n", 1000) + "end": strings.Repeat("a line ", 72) + "end",
		"\xff\xfeodd":                            "\uFFFD\uFFFDodd",
	} {
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastOf(tailOf(r, once, failed)); got != want {
			t.Errorf("%.20q: %q, want %q", log, got, want)
		}
		if got := tailOf(r, &manifest.Manifest{Launchables: make([]manifest.Launchable, 1)}, failed) + tailOf(&pod.Reality{State: pod.StateRunning}, once, failed); got != "" {
			t.Errorf("of other pods %q is told", got)
		}
	}
	if err := os.Symlink("/etc/passwd", path+".link"); err != nil {
		t.Fatal(err)
	}
	for _, odd := range []string{path + ".link", dir, path + ".none"} {
		if got := lastOf(odd); got != "" {
			t.Errorf("%s: %q", odd, got)
		}
	}
}
