package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/store"
)

type session struct {
	e      *env
	keys   *os.File // the user's side of the terminal
	ended  chan error
	read   chan struct{} // closed when all output of rcctl is read
	mu     sync.Mutex
	screen *screen
	raw    strings.Builder
}

// openTerminal opens a pseudo-terminal (ptmx(4)).
func openTerminal(columns, height int) (person, program *os.File, err error) {
	person, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	fd := int(person.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(columns)}))
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, person.Close())
	}
	return person, program, nil
}

// atTerminal starts rcctl with a controlling terminal, so Ctrl-C sends it a signal.
func (e *env) atTerminal(columns, height int, environ []string, args ...string) *session {
	e.t.Helper()
	person, program, err := openTerminal(columns, height)
	if err != nil {
		e.t.Fatal(err)
	}
	s := &session{
		e: e, keys: person, ended: make(chan error, 1), read: make(chan struct{}),
		screen: newScreen(columns, height),
	}
	cmd := exec.Command(filepath.Join(e.root, "bin", "rcctl"),
		append([]string{"--consul-addr", e.consul.Addr}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.Env = append(append(os.Environ(), "TERM=xterm", "NO_COLOR="), environ...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = consultest.StartTied(cmd, func(err error) { s.ended <- err })
	if err = errors.Join(err, program.Close()); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = person.Close() })
	go s.readAll()
	return s
}

// The device returns EIO when the other side is closed.
func (s *session) readAll() {
	defer close(s.read)
	buffer := make([]byte, 4096)
	for {
		n, err := s.keys.Read(buffer)
		s.mu.Lock()
		s.raw.Write(buffer[:n])
		s.screen.write(string(buffer[:n]))
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *session) shows() (text, raw string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.lines(), s.raw.String()
}

func (s *session) await(text string) {
	s.e.t.Helper()
	s.e.within(limit, func() error {
		if shown, _ := s.shows(); !strings.Contains(shown, text) {
			return fmt.Errorf("no %q on the terminal:\n%s", text, shown)
		}
		return nil
	})
}

func (s *session) says(text string) {
	s.e.t.Helper()
	if shown, _ := s.shows(); !strings.Contains(shown, text) {
		s.e.t.Errorf("no %q on the terminal:\n%s", text, shown)
	}
}

func (s *session) press(keys string) {
	s.e.t.Helper()
	if _, err := s.keys.WriteString(keys); err != nil {
		s.e.t.Fatal(err)
	}
}

func (s *session) end(code int) {
	s.e.t.Helper()
	ctx, cancel := context.WithTimeout(s.e.t.Context(), limit)
	defer cancel()
	var exit *exec.ExitError
	got := 0
	select {
	case err := <-s.ended:
		if errors.As(err, &exit) {
			got = exit.ExitCode()
		}
		<-s.read
	case <-ctx.Done():
		got = -1
	}
	shown, _ := s.shows()
	if got != code {
		s.e.t.Errorf("exit code %d, want %d; the terminal shows\n%s", got, code, shown)
	}
	if s.screen.unknown != nil {
		s.e.t.Errorf("escapes that a terminal may not know: %q", s.screen.unknown)
	}
}

// People answer on standard input, so the document is in a file.
func (e *env) file(w web) string {
	e.t.Helper()
	path := filepath.Join(e.dir, "web.yaml")
	if err := os.WriteFile(path, []byte(e.document(w)), 0o600); err != nil {
		e.t.Fatal(err)
	}
	return path
}

const (
	ctrlC = "\x03"
	ctrlD = "\x04"
)

var barOf = regexp.MustCompile(`(?m)^stage (\d+) of (\d+)  \[[#.]+\]`)

// tidy: the terminal has a rollout's display once, as it was drawn last, and no line continues in the next row. bars is
// its number of bars; 0: at least one. after is the beginning of the first line below it.
func (s *session) tidy(bars int, after string) {
	s.e.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	inside, heads := false, 0
	var shown []string
	for _, r := range s.screen.rows {
		if strings.HasPrefix(r.text, "web  ") {
			heads++
			inside = true
		}
		if strings.HasPrefix(r.text, after) {
			inside = false
		}
		if inside {
			shown = append(shown, r.text)
			if r.continues {
				s.e.t.Errorf("a line of the display is wider than the terminal: %q", r.text)
			}
		}
	}
	if got := len(barOf.FindAllString(strings.Join(shown, "\n"), -1)); heads != 1 ||
		got == 0 || bars != 0 && got != bars {
		s.e.t.Errorf("the display stands there %d times, with %d bars, want %d; the terminal shows\n%s", heads, got,
			bars, s.screen.text())
	}
}

func (e *env) keysOfServices() map[string]uint64 {
	e.t.Helper()
	found := map[string]uint64{}
	for _, part := range []string{"deployments/", "rollouts/", "rcs/", "names/", "manifests/"} {
		pairs, err := e.client.List(e.t.Context(), store.DefaultPrefix+part, consul.Consistent)
		if err != nil && !errors.Is(err, consul.ErrNotFound) {
			e.t.Fatal(err)
		}
		for _, p := range pairs {
			found[p.Key] = p.ModifyIndex
		}
	}
	return found
}

const question = "deploy this? [y/N] "

// deployTerminal: a person deploys at a terminal. The plan is shown, and is carried out only after the answer yes. The
// rollout is drawn in one place, on terminals of any size. Ctrl-C ends only the display. A failure can be read at the
// end.
func deployTerminal(e *env) {
	e.site(2, 1)
	w := web{replicas: 3, version: "1", update: "step: 1, delay: 2s"}
	e.declined(e.file(w))

	s := e.atTerminal(80, 24, nil, "deploy", "-f", e.file(w))
	s.await(question)
	s.press("y\r")
	s.await("stage 1 of 3  [")
	s.press(ctrlC)
	s.end(5)
	s.says("\nrcctl: rollout of web: detached; the farms go on with it; look with: rcctl rollout status web -w\n")
	s.tidy(3, "^C")
	s = e.atTerminal(80, 24, nil, "rollout", "status", "web", "-w")
	s.end(0)
	s.says("service web: the rollout is done")
	e.runs(map[string]int{"1": 3})

	w.update = "step: 1"
	for _, tt := range []struct {
		version         string
		columns, height int
		bars            int
		environ         string
	}{
		{"2", 80, 24, 3, ""},
		{"3", 40, 24, 3, "NO_COLOR=1"},
		{"4", 80, 6, 1, ""},
	} {
		w.version = tt.version
		s := e.atTerminal(tt.columns, tt.height, []string{tt.environ}, "deploy", "-f", e.file(w), "--yes")
		s.end(0)
		s.says("service web: the rollout is done")
		s.tidy(tt.bars, "service web: the rollout is done")
		shown, raw := s.shows()
		if !strings.Contains(shown, "web  done") || !strings.Contains(strings.Join(strings.Fields(shown), " "),
			"web-r"+tt.version+" (growing): 3 of 3 available; 3 ready") {
			e.t.Errorf("%d columns: the last that is shown is not how it ended:\n%s", tt.columns, shown)
		}
		if coloured := strings.Contains(raw, "\x1b[3"); coloured == (tt.environ != "") {
			e.t.Errorf("with %q: colours %t", tt.environ, coloured)
		}
		e.runs(map[string]int{w.version: 3})
	}
	e.failsAtTerminal(w)
}

// declined: only the answer yes changes anything, and without a terminal rcctl cannot ask.
func (e *env) declined(file string) {
	e.t.Helper()
	before := e.keysOfServices()
	for _, answer := range []string{"n\r", "\r", "no, yes\r", ctrlD, ctrlC} {
		s := e.atTerminal(80, 24, nil, "deploy", "-f", file)
		s.await(question)
		s.press(answer)
		s.end(1)
		s.says("plan: 3 to add, 1 to change, 0 to replace, 0 to remove")
		s.says("\nnothing was written\n")
	}
	code, out := e.exitCode("deploy", "-f", file)
	if code != 2 || !strings.Contains(out, "--yes") {
		e.t.Errorf("without a terminal: exit code %d, %s", code, out)
	}
	if now := e.keysOfServices(); !maps.Equal(now, before) {
		e.t.Errorf("stored is %v, before %v", now, before)
	}
}

// failsAtTerminal: the end of a failed pod's log stays on the terminal, drawn in one place or not.
func (e *env) failsAtTerminal(w web) {
	e.t.Helper()
	good := w.version
	for _, term := range []string{"xterm", "dumb"} {
		w.version, w.env = "bad-"+term, map[string]string{"HELLO_FAIL": "1"}
		s := e.atTerminal(80, 24, []string{"TERM=" + term}, "deploy", "-f", e.file(w), "--yes")
		s.end(5)
		s.says("again and again")
		shown, raw := s.shows()
		if n := strings.Count(shown, "the end of the log of web-main-"); n != 1 ||
			!strings.Contains(shown, "    failing as HELLO_FAIL says") {
			e.t.Errorf("on a terminal of kind %s the end of the log stands %d times:\n%s", term, n, shown)
		}
		if term == "dumb" && strings.Contains(raw, "\x1b") {
			e.t.Errorf("escapes on a terminal that knows none: %q", raw)
		}
		if term == "xterm" {
			s.tidy(0, "rcctl: ")
		}
		e.runs(map[string]int{good: 3})
	}
	out, err := e.tryRcctl(e.document(w), "deploy", "-f", "-", "--yes")
	if err == nil || !strings.Contains(out, "    failing as HELLO_FAIL says\n") || strings.Contains(out, "\x1b") {
		e.t.Errorf("without a terminal: %v\n%s", err, out)
	}
	e.runs(map[string]int{good: 3})
}
