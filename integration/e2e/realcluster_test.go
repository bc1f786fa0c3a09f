package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// realCluster: the commands of docs/running.md make a cluster of three machines from nothing, and add and remove a
// fourth. Each machine has the name and the address of the page, in namespaces of its own. Real Consul agents run
// there, with ACLs, TLS and gossip encryption. testdata/machines replaces ssh, scp and systemctl.
func realCluster(e *env) {
	steps := e.stepsOfRunning()
	t := e.openTerminal("m1=10.0.3.11", "m2=10.0.3.12", "m3=10.0.3.13", "m4=10.0.3.14")
	for step := 0; steps[fmt.Sprint(step)] != nil; step++ {
		t.follow(steps[fmt.Sprint(step)])
	}
	t.shows(`curl -s "http://$(rcctl exec hello-main-0 -- sed 's/listen = //' app.conf)"`, "hello")

	another := textsOf(steps["Another"], "sh")
	if len(another) != 2 {
		e.t.Fatalf("the page adds and removes a machine with the commands %q", another)
	}
	t.run(another[0])
	for _, step := range []string{"1", "3", "5", "7", "9"} {
		for _, commands := range textsOf(steps[step], "sh") {
			t.run(commands)
		}
	}
	t.shows("consul members", "m4  10.0.3.14:8301  alive  client...")
	t.shows("rcctl nodes", "m4  yes  2s  yes  10.0.3.14...")
	t.run(another[1])
	if out := t.run("rcctl nodes; on m4 'pgrep -af [p]reparer || :'"); strings.Contains(out, "m4") ||
		strings.Contains(out, "supervise") {
		e.t.Errorf("m4 is still a node:\n%s", out)
	}
	e.agentsUseTheirTokens()
	t.run("rcctl service delete hello --force --wait")
}

// stepsOfRunning returns the blocks of docs/running.md that make a cluster, by the first word of each heading: "0" are
// the blocks before the first heading, "1" are step 1.
func (e *env) stepsOfRunning() map[string][]block {
	e.t.Helper()
	page, err := os.ReadFile(filepath.Join(e.root, "docs", "running.md"))
	if err != nil {
		e.t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## A cluster of three machines\n")
	section, _, _ = strings.Cut(section, "\n## ")
	// The programs are built, and CONSUL_BIN may name another Consul than bin/consul.
	bin, err := devserver.Find(filepath.Join(e.root, "bin"))
	if err == nil {
		err = os.Symlink(bin, filepath.Join(e.dir, "consul"))
	}
	if err != nil {
		e.t.Fatal(err)
	}
	ours := []string{"make build bin/consul\n", "", "bin/{consul,", e.dir + "/consul bin/{"}
	if os.Getuid() != 0 { // pods cannot have users of their own
		ours = append(ours, "OPTIONS=--label", "OPTIONS=--isolation off --label", "users,cgroup,tmp  closed", "none  -")
	}
	for i := 0; i < len(ours); i += 2 {
		if !strings.Contains(section, ours[i]) {
			e.t.Fatalf("docs/running.md does not have %q in its section about three machines", ours[i])
		}
	}
	steps := map[string][]block{}
	for i, part := range strings.Split(strings.NewReplacer(ours...).Replace(section), "\n### ") {
		name := "0"
		if i > 0 {
			name = strings.TrimSuffix(strings.Fields(part)[0], ".")
		}
		steps[name] = parseBlocks(part)
	}
	if len(steps["9"]) == 0 {
		e.t.Fatal("docs/running.md has less than nine steps")
	}
	return steps
}

// agentsUseTheirTokens fails if Consul refused something to an agent after the agent had read its token.
func (e *env) agentsUseTheirTokens() {
	e.t.Helper()
	for _, machine := range []string{"m1", "m2", "m3", "m4"} {
		log, err := os.ReadFile(filepath.Join(e.dir, machine, "var", "log", "consul.log"))
		if _, later, found := strings.Cut(string(log), "Caught: signal=hangup"); err != nil || !found ||
			strings.Contains(later, "blocked by ACLs") {
			e.t.Errorf("the agent of %s does not use its token: %v\n%s", machine, err, later)
		}
	}
}

// terminal is a shell on the first machine. It ends when a command fails.
type terminal struct {
	e     *env
	keys  io.Writer
	lines chan string // what it prints
}

// openTerminal starts machines, each given as NAME=ADDRESS. They end with the scenario.
func (e *env) openTerminal(machines ...string) *terminal {
	e.t.Helper()
	scripts := filepath.Join(e.root, "integration", "e2e", "testdata", "machines")
	path := filepath.Join(scripts, "bin") + ":" + os.Getenv("PATH")
	args := []string{"-m", "-n", "-p", "--fork", "--kill-child"}
	if os.Getuid() != 0 { // root of a user namespace with one user
		args, path = append(args, "-U", "-r"), filepath.Join(scripts, "oneuser")+":"+path
	}
	args = append(append(args, filepath.Join(scripts, "machines.sh"), e.dir), machines...)
	cmd := exec.CommandContext(context.WithoutCancel(e.t.Context()), "unshare", args...) // the cleanup ends it
	cmd.Env = append(os.Environ(), "PATH="+path)
	keys, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	cmd.Stderr = cmd.Stdout
	ended := make(chan struct{})
	if err := errors.Join(inErr, outErr, consultest.StartTied(cmd, func(error) { close(ended) })); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		if e.t.Failed() {
			e.logMachines()
		}
	})
	t := &terminal{e: e, keys: keys, lines: make(chan string)}
	go func() {
		defer close(t.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			t.lines <- lines.Text()
		}
	}()
	caches, err := exec.CommandContext(e.t.Context(), "go", "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		e.t.Fatal(err)
	}
	dirs := strings.Fields(string(caches))
	t.run(fmt.Sprintf("cd %s; export GOCACHE=%s GOMODCACHE=%s", e.root, dirs[0], dirs[1]))
	return t
}

// logMachines logs the ends of the logs of all units.
func (e *env) logMachines() {
	logs, _ := filepath.Glob(filepath.Join(e.dir, "*", "var", "log", "*.log")) // the pattern is valid
	for _, file := range logs {
		text, _ := os.ReadFile(file)
		e.t.Logf("%s:\n%s", file, text[max(0, len(text)-2000):])
	}
}

// run types commands, which must succeed. It returns what they print.
func (t *terminal) run(commands string) string {
	t.e.t.Helper()
	const end = "--- the end of these commands ---"
	if _, err := fmt.Fprintf(t.keys, "%s\necho '%s'\n", commands, end); err != nil {
		t.e.t.Fatal(err)
	}
	var out strings.Builder
	late := time.After(limit)
	for {
		select {
		case line, more := <-t.lines:
			switch {
			case !more:
				t.e.t.Fatalf("a command fails among\n%s\n%s", commands, out.String())
			case line == end:
				return out.String()
			}
			out.WriteString(line + "\n")
		case <-late:
			t.e.t.Fatalf("these commands do not end:\n%s\n%s", commands, out.String())
		}
	}
}

// shows runs commands, and looks for an output. If the output differs, the last line runs again.
func (t *terminal) shows(commands, output string) {
	t.e.t.Helper()
	out, last := t.run(commands), commands[strings.LastIndexByte(commands, '\n')+1:]
	t.e.within(limit, func() error {
		missing := absent(out, output)
		if missing == "" {
			return nil
		}
		err := fmt.Errorf("%s does not print %q but\n%s", commands, missing, out)
		out = t.run(last)
		return err
	})
}

// follow runs the commands of blocks, and looks for the output that the page shows.
func (t *terminal) follow(blocks []block) {
	t.e.t.Helper()
	for i, b := range blocks {
		switch {
		case b.language != "sh":
		case i+1 < len(blocks) && blocks[i+1].language == "":
			t.shows(b.text, blocks[i+1].text)
		default:
			t.run(b.text)
		}
	}
}
