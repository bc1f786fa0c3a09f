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

// The end of a log is told of a pod that failed, and of no other; what the pod makes of its log changes nothing else.
func TestTheEndOfALog(t *testing.T) {
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
	failed := []runtime.Status{process("other", exit(0, 9)), process("first", exit(2, 1)), process(path, exit(1, 2)), process("none", nil)}
	r := &pod.Reality{State: pod.StateFailed, LastExit: exit(0, 9)}
	for log, want := range map[string]string{
		"":                                       "",
		"one\ntwo \x1b[31m\tthree\n":             "one two [31m three",
		strings.Repeat("a line\n", 1000) + "end": strings.Repeat("a line ", 72) + "end",
		"\xff\xfeodd":                            "\uFFFD\uFFFDodd",
		strings.Repeat("e", 600) + "\n":          strings.Repeat("e", maxTail-1), // a long line that has ended is all that there is to tell
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
		says pod.Reality
		want string
	}{
		"crash-looping":     {pod.Reality{State: pod.StateCrashLooping, LastExit: exit(1, 2)}, path},
		"started again":     {pod.Reality{State: pod.StateRunning, LastExit: exit(1, 2), Restarts: 1}, path},
		"available":         {pod.Reality{State: pod.StateReady, LastExit: exit(1, 2), Restarts: 1, Available: true}, ""},
		"first start":       {pod.Reality{State: pod.StateRunning, LastExit: exit(1, 2)}, ""},
		"nothing has ended": {pod.Reality{State: pod.StateFailed}, ""},
		"is told to stop":   {pod.Reality{State: pod.StateStopping, LastExit: exit(1, 2), Restarts: 1}, ""},
		"stopped":           {pod.Reality{State: pod.StateStopped, LastExit: exit(1, 2), Restarts: 1}, ""},
	} {
		if got := tailOf(&tt.says, failed); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	if got := tailOf(r, failed[:1]); got != "" {
		t.Errorf("all processes ended well, and %q is told", got)
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

// A log is read once for each end of a process: what is written meanwhile is no news.
func TestTheEndOfALogIsKept(t *testing.T) {
	t.Parallel()
	exit := pod.Exit{Code: 1, At: time.Unix(1, 0).UTC()}
	other := exit
	other.At = other.At.Add(time.Second)
	said := pod.Reality{Digest: "d", LastExit: &exit, LogTail: "the end"}
	for name, tt := range map[string]struct {
		said, now pod.Reality
		want      string
	}{
		"same end":        {said, pod.Reality{Digest: "d", LastExit: new(exit)}, "the end"},
		"another end":     {said, pod.Reality{Digest: "d", LastExit: &other}, ""},
		"another version": {said, pod.Reality{Digest: "e", LastExit: &exit}, ""},
		"nothing said":    {pod.Reality{}, pod.Reality{Digest: "d", LastExit: &exit}, ""},
	} {
		if got := keptTail(&tt.said, &tt.now); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
