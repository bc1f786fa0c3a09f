package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

// frontDoor: everything that a new user copies works unchanged: the commands of README, the commands that rcctl dev
// prints, and the page Getting started with the output that it shows.
func frontDoor(e *env) {
	readme := blocksOf(e.t, filepath.Join(e.root, "README.md"))
	commands := []string{"make demo", "make build bin/consul && bin/rcctl dev"}
	if got := textsOf(readme, "sh"); !slices.Equal(got, commands) {
		e.t.Errorf("README has the commands %q; this scenario tries %q", got, commands)
	}
	demo := exec.CommandContext(e.t.Context(), "go", "run", "./integration/demo") // as make demo
	demo.Dir, demo.WaitDelay = e.root, limit
	if text, err := demo.CombinedOutput(); err != nil {
		e.t.Errorf("the demonstration: %v\n%s", err, text)
	}

	printed := e.dev("--dir", filepath.Join(e.dir, "first"))
	script := regexp.MustCompile(`(?m)^  (.+)$`).FindAllStringSubmatch(printed.text, -1)
	if len(script) < 6 {
		e.t.Fatalf("rcctl dev prints few commands:\n%s", printed.text)
	}
	var lines []string
	for _, l := range script {
		lines = append(lines, l[1])
	}
	if out, err := e.bash(e.dir, strings.Join(lines, "\n")); err != nil {
		e.t.Errorf("the commands that rcctl dev prints: %v\n%s", err, out)
	}
	printed.end()

	e.gettingStarted()
}

// gettingStarted runs the commands of the page one after the other, each block in its own shell, and looks for the
// output that the page shows. If the output differs, the last command of the block runs again, because the page asks
// the reader to wait there.
func (e *env) gettingStarted() {
	e.t.Helper()
	dir := filepath.Join(e.dir, "second")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(free.Addr().String()) // a listener's address has both
	_ = free.Close()
	ours := strings.NewReplacer("/tmp/rcfarm", dir, "18500", port)
	blocks := blocksOf(e.t, filepath.Join(e.root, "docs", "getting-started.md"))
	const begin = "make build bin/consul\nbin/rcctl dev --dir /tmp/rcfarm --consul-port 18500"
	if len(blocks) == 0 || blocks[0].text != begin {
		e.t.Fatalf("the page begins otherwise: %+v", blocks)
	}
	dev := e.dev("--dir", dir, "--consul-port", port)
	at, setting := e.root, ""
	for i, b := range blocks[1:] {
		text := ours.Replace(b.text)
		switch b.language {
		case "yaml":
			written, err := os.ReadFile(filepath.Join(dir, "web.yaml"))
			if err != nil || strings.TrimSpace(string(written)) != text {
				e.t.Errorf("web.yaml is %q, %v; the page shows %q", written, err, text)
			}
		case "sh":
			out, err := e.bash(at, setting+text)
			if err != nil {
				e.t.Fatalf("%s: %v\n%s", text, err, out)
			}
			setting += settings(text)
			if i+2 < len(blocks) && blocks[i+2].language == "" {
				last := text[strings.LastIndexByte(text, '\n')+1:]
				e.within(limit, func() error {
					missing := absent(out, ours.Replace(blocks[i+2].text))
					if missing == "" {
						return nil
					}
					if out, err = e.bash(at, setting+last); err != nil {
						e.t.Fatalf("%s: %v\n%s", last, err, out)
					}
					return fmt.Errorf("%s does not print %q but\n%s", text, missing, out)
				})
			}
		}
	}
	dev.end()
}

// devRun is a development cluster that runs.
type devRun struct {
	e    *env
	cmd  *exec.Cmd
	text string // what it printed until it was ready
	done chan error
}

// dev starts rcctl dev and returns when it is ready.
func (e *env) dev(args ...string) *devRun {
	e.t.Helper()
	d := &devRun{e: e, done: make(chan error, 1)}
	d.cmd = exec.CommandContext(e.t.Context(), filepath.Join(e.root, "bin", "rcctl"),
		append([]string{"dev"}, args...)...)
	d.cmd.Cancel, d.cmd.WaitDelay = func() error { return d.cmd.Process.Signal(os.Interrupt) }, limit
	out, err := d.cmd.StdoutPipe()
	if err == nil {
		err = d.cmd.Start()
	}
	if err != nil {
		e.t.Fatal(err)
	}
	var text strings.Builder
	buf := make([]byte, 1<<10)
	for !strings.Contains(text.String(), "Ctrl-C ends everything.") {
		n, err := out.Read(buf)
		text.Write(buf[:n])
		if err != nil {
			e.t.Fatalf("rcctl dev %v is not ready: %v\n%s", args, errors.Join(err, d.cmd.Wait()), text.String())
		}
	}
	d.text = text.String()
	go func() { _, _ = io.Copy(io.Discard, out); d.done <- d.cmd.Wait() }()
	return d
}

// end does what Ctrl-C does.
func (d *devRun) end() {
	d.e.t.Helper()
	if err := d.cmd.Cancel(); err != nil {
		d.e.t.Error(err)
	}
	select {
	case err := <-d.done:
		if err != nil {
			d.e.t.Errorf("rcctl dev ended: %v", err)
		}
	case <-time.After(limit):
		d.e.t.Error("rcctl dev does not end")
	}
	if left, err := cluster.ProcessesUnder(d.e.dir); err != nil || len(left) > 0 {
		d.e.t.Errorf("processes are left: %v, %v", left, err)
	}
}

// bash runs a script as a user's shell does, and ends at the first command that fails.
func (e *env) bash(dir, script string) (out string, err error) {
	cmd := exec.CommandContext(e.t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.WaitDelay = dir, limit
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// settings are the commands of a script that change the shell.
func settings(script string) string {
	return strings.Join(regexp.MustCompile(`(?m)^(export|cd) .*\n`).FindAllString(script+"\n", -1), "")
}

// block is a part of a page between fences.
type block struct{ language, text string }

func blocksOf(t *testing.T, file string) []block {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return parseBlocks(string(page))
}

func parseBlocks(page string) (blocks []block) {
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)\n```$").FindAllStringSubmatch(page, -1) {
		blocks = append(blocks, block{m[1], m[2]})
	}
	return blocks
}

func textsOf(blocks []block, language string) (texts []string) {
	for _, b := range blocks {
		if b.language == language {
			texts = append(texts, b.text)
		}
	}
	return texts
}

// vague has the parts of an output that differ from run to run, and what replaces them in a comparison.
var vague = []struct {
	pattern *regexp.Regexp
	as      string
}{
	{regexp.MustCompile(`\b01[0-9a-z]{24}\b`), "ID"},
	{regexp.MustCompile(`\b[0-9a-f]{8}([0-9a-f]{4})?\b`), "DIGEST"},
	{regexp.MustCompile(`\bn[1-5]\b`), "NODE"},
	{regexp.MustCompile(`\b(127\.1\.0\.\d|10\.0\.3\.1\d):\d+\b`), "ADDRESS"},
	{regexp.MustCompile(`\b(\d+m)?\d+s\b|\b\d+m\b`), "AGE"},
	{regexp.MustCompile(`\S+@\S+`), "USER"},
	{regexp.MustCompile(`(^|\s)v?\d+\.\d+\.\d+(-\S+)?(\s|$)`), " VERSION "},
	{regexp.MustCompile(`\s+`), " "},
	{regexp.MustCompile(`AGE (yes|-) 0 VERSION`), "AGE LEADS 0 VERSION"},
	{regexp.MustCompile(`users\S* closed`), "ISOLATION closed"},
	{regexp.MustCompile(`^(hello-main-\d) m\d`), "$1 NODE"},
}

func precise(line string) string {
	for _, v := range vague {
		line = v.pattern.ReplaceAllString(line, v.as)
	}
	return strings.TrimSpace(line)
}

// absent returns the first line of a shown output that the real output does not have in its place. A line of dots
// stands for any lines. A line that ends in dots is the beginning of a line.
func absent(real, shown string) string {
	lines := strings.Split(real, "\n")
	for line := range strings.Lines(shown) {
		want := precise(line)
		if want == "..." || want == "" {
			continue
		}
		want, cut := strings.CutSuffix(want, "...")
		i := slices.IndexFunc(lines, func(l string) bool {
			got := precise(l)
			return got == want || cut && strings.HasPrefix(got, want)
		})
		if i < 0 {
			return strings.TrimSpace(line)
		}
		lines = lines[i+1:]
	}
	return ""
}

func TestAbsentFindsWhatIsNotPrinted(t *testing.T) {
	t.Parallel()
	const real = "POD         NODE  AGE\nweb-main-0  n5    1m3s\nweb-main-1  n2    8s\nplan: 3 to add by ann@vm"
	for shown, want := range map[string]string{
		"POD   NODE   AGE\nweb-main-0 n1 8s\n...\nplan: 3 to...": "",
		"web-main-1 n2 8s\nweb-main-0 n5 8s":                     "web-main-0 n5 8s",
		"web-main-2 n2 8s":                                       "web-main-2 n2 8s",
		"POD NODE":                                               "POD NODE",
		"plan: 3 to add by root@host":                            "",
	} {
		if got := absent(real, shown); got != want {
			t.Errorf("%q: absent is %q, want %q", shown, got, want)
		}
	}
}
