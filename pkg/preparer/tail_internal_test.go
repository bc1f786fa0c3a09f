package preparer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// Only a failed pod's report has the end of its log, and only of a normal file.
func TestOnlyTheReportOfAFailedPodHasTheEndOfTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "main.log")
	exit := func(code int, at int64) *pod.Exit { return &pod.Exit{Code: code, At: time.Unix(at, 0)} }
	process := func(log string, exit *pod.Exit) runtime.Status {
		return runtime.Status{
			Spec:  runtime.Spec{Process: runtime.Process{LogPath: log}},
			State: runtime.State{Phase: runtime.Exited, LastExit: exit},
		}
	}
	failed := []runtime.Status{
		process("other", exit(0, 9)), process("first", exit(2, 1)), process(path, exit(1, 2)), process("none", nil),
	}
	r := &pod.Reality{State: pod.StateFailed, LastExit: exit(0, 9)}
	for log, want := range map[string]string{
		"":                                       "",
		"one\ntwo \x1b[31m\tthree\n":             "one two [31m three",
		strings.Repeat("a line\n", 1000) + "end": strings.Repeat("a line ", 72) + "end",
		"\xff\xfeodd":                            "\uFFFD\uFFFDodd",
		// The last complete line exceeds the limit.
		strings.Repeat("e", 600) + "\n":               strings.Repeat("e", maxTail-1),
		"first\n" + strings.Repeat("f", 600) + "\n\n": strings.Repeat("f", maxTail-2),
	} {
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastOf(tailOf(r, failed)); got != want {
			t.Errorf("%.20q: %q, want %q", log, got, want)
		}
	}
	for name, tt := range map[string]struct {
		reality pod.Reality
		want    string
	}{
		"crash-looping": {pod.Reality{State: pod.StateCrashLooping, LastExit: exit(1, 2)}, path},
		"started again": {pod.Reality{State: pod.StateRunning, LastExit: exit(1, 2), Restarts: 1}, path},
		"available": {
			pod.Reality{State: pod.StateReady, LastExit: exit(1, 2), Restarts: 1, Available: true}, "",
		},
		"first start":       {pod.Reality{State: pod.StateRunning, LastExit: exit(1, 2)}, ""},
		"nothing has ended": {pod.Reality{State: pod.StateFailed}, ""},
		"stopping":          {pod.Reality{State: pod.StateStopping, LastExit: exit(1, 2), Restarts: 1}, ""},
		"stopped":           {pod.Reality{State: pod.StateStopped, LastExit: exit(1, 2), Restarts: 1}, ""},
	} {
		if got := tailOf(&tt.reality, failed); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	if got := tailOf(r, failed[:1]); got != "" {
		t.Errorf("all processes ended well, and the report has the log %q", got)
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

// The end of a log is read once for each exit.
func TestTheEndOfALogIsReadOnceForEachExit(t *testing.T) {
	t.Parallel()
	exit := pod.Exit{Code: 1, At: time.Unix(1, 0).UTC()}
	other := exit
	other.At = other.At.Add(time.Second)
	before := pod.Reality{Digest: "d", LastExit: &exit, LogTail: "the end"}
	for name, tt := range map[string]struct {
		last, now pod.Reality
		want      string
	}{
		"same end":        {before, pod.Reality{Digest: "d", LastExit: new(exit)}, "the end"},
		"another end":     {before, pod.Reality{Digest: "d", LastExit: &other}, ""},
		"another version": {before, pod.Reality{Digest: "e", LastExit: &exit}, ""},
		"no last report":  {pod.Reality{}, pod.Reality{Digest: "d", LastExit: &exit}, ""},
	} {
		if got := keptTail(&tt.last, &tt.now); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
