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
	"syscall"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

func (e *env) startRcctl(args ...string) (cmd *exec.Cmd, lines <-chan string) {
	e.t.Helper()
	cmd = exec.CommandContext(e.t.Context(), filepath.Join(e.root, "bin", "rcctl"),
		append([]string{"--consul-addr", e.consul.Addr}, args...)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		e.t.Fatal(err)
	}
	all := make(chan string, 1000)
	go func() {
		defer close(all)
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			all <- scanner.Text()
		}
	}()
	return cmd, all
}

func (e *env) awaitLine(lines <-chan string, text string) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), limit)
	defer cancel()
	for {
		select {
		case line, ok := <-lines:
			if strings.Contains(line, text) {
				return
			}
			if !ok {
				e.t.Fatalf("the log ended before %q", text)
			}
		case <-ctx.Done():
			e.t.Fatalf("no line with %q", text)
		}
	}
}

func (e *env) exitCode(args ...string) (int, string) {
	e.t.Helper()
	out, err := e.tryRcctl("", args...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), out
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return 0, out
}

// logsExec: an operator follows logs during a restart, an upgrade and a rotation, and runs commands beside a pod. When
// rcctl or the preparer is killed, no process of the command is left.
func logsExec(e *env) {
	e.startConsul("")
	tokens := filepath.Join(e.dir, "tokens")
	token := filepath.Join(tokens, "n1")
	if err := os.Mkdir(tokens, 0o700); err != nil {
		e.t.Fatal(err)
	}
	if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
		e.t.Fatal(err)
	}
	agent := e.preparer(1, "--api-addr", "127.0.0.1:0", "--api-token-file", token)
	e.farm("f1", "")
	h := e.hello(1, map[string]string{"HELLO_VERSION": "one"})
	e.applied(h)
	const pod = "hello-main-0"
	address := e.address(1) + ":8080"

	if code, out := e.exitCode("logs", pod); code != 4 || !strings.Contains(out, "--node-token-dir") {
		e.t.Errorf("without the token: exit code %d, %s", code, out)
	}
	with := func(args ...string) []string { return append([]string{"--node-token-dir", tokens}, args...) }
	if out := e.rcctl("", with("logs", pod)...); !strings.Contains(out, "listening on "+address) {
		e.t.Errorf("log: %s", out)
	}
	if code, out := e.exitCode(with("logs", pod, "--previous")...); code != 1 ||
		!strings.Contains(out, "nothing was written before its last start") {
		e.t.Errorf("before the first start: exit code %d, %s", code, out)
	}

	following, lines := e.startRcctl(with("logs", "hello/main.0", "-f")...)
	e.awaitLine(lines, "listening on "+address)
	old := e.processes()
	for _, pid := range old {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			e.t.Fatal(err)
		}
	}
	e.awaitLine(lines, "stopping")
	e.awaitLine(lines, "listening on "+address)
	if out := e.rcctl("", with("logs", pod, "--previous")...); out != "listening on "+address+"\nstopping\n" {
		e.t.Errorf("before the last start: %q", out)
	}
	if out := e.rcctl("", with("logs", pod, "--tail", "1")...); out != "listening on "+address+"\n" {
		e.t.Errorf("the last line: %q", out)
	}

	e.within(limit, func() error { return e.availableAll(e.rcID("hello"), 1) })
	if out := e.rcctl("", with("exec", pod, "--", "sh", "-c",
		"echo $POD_ID $NODE_NAME $HELLO_VERSION")...); out != "hello n1 one\n" {
		e.t.Errorf("environment: %q", out)
	}
	if out := e.rcctl("in and out", with("exec", pod, "-i", "--", "cat")...); out != "in and out" {
		e.t.Errorf("stdin: %q", out)
	}
	if code, out := e.exitCode(with("exec", pod, "--", "sh", "-c", "exit 42")...); code != 42 || out != "" {
		e.t.Errorf("exit code %d, %q", code, out)
	}
	// The log is rotated, because it has more output than a log may have.
	log := filepath.Join(e.dir, "n1", "logs", e.rcID("hello")+".main.0", "web.log")
	e.writeLog(log, 12<<20)
	e.awaitLine(lines, "the last of many")
	e.within(limit, func() error {
		if _, err := os.Stat(log + ".1"); err != nil {
			return fmt.Errorf("not rotated yet: %w", err)
		}
		return nil
	})

	h.Env["HELLO_VERSION"] = "two"
	e.applied(h)
	e.awaitLine(lines, "listening on "+address)
	if out := e.rcctl("", with("exec", pod, "--", "printenv", "HELLO_VERSION")...); out != "two\n" {
		e.t.Errorf("after the upgrade: %q", out)
	}
	description := e.rcctl("", "pod", "describe", pod)
	for _, want := range []string{"ready", "n1 (its preparer lives)", "http=8080", "upgrade main.0 on n1"} {
		if !strings.Contains(description, want) {
			e.t.Errorf("no %q in\n%s", want, description)
		}
	}

	e.commandEnds(with, pod, func(cmd *exec.Cmd) { _ = cmd.Process.Kill() })
	e.commandEnds(with, pod, func(cmd *exec.Cmd) { _ = cmd.Process.Signal(os.Interrupt) })
	e.commandEnds(with, pod, func(*exec.Cmd) { agent.kill() })
	for range lines { // the preparer's end cuts the log off
	}
	if err := following.Wait(); err == nil {
		e.t.Error("a log that was cut off ended as if it were all")
	}
	agent.startAgain()
	e.within(limit, func() error {
		_, err := e.tryRcctl("", with("logs", pod, "--tail", "1")...)
		return err
	})

	following, lines = e.startRcctl(with("logs", pod, "-f")...)
	e.awaitLine(lines, "listening on "+address)
	e.rcctl("", "rc", "scale", "hello", "0")
	e.awaitLine(lines, "stopping")
	for range lines {
	}
	if err := following.Wait(); err != nil {
		e.t.Errorf("following a pod that stopped: %v", err)
	}
}

func (e *env) writeLog(path string, bytes int) {
	e.t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		e.t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.WriteString(f,
		strings.Repeat(strings.Repeat("x", 1023)+"\n", bytes>>10)+"the last of many\n"); err != nil {
		e.t.Fatal(err)
	}
}

// commandEnds runs a command whose child has its own session, and calls end.
func (e *env) commandEnds(with func(...string) []string, pod string, end func(rcctl *exec.Cmd)) {
	e.t.Helper()
	cmd, lines := e.startRcctl(with("exec", pod, "--", "sh", "-c", "setsid sleep 1000 & echo $! $$; wait")...)
	var child, shell int
	select {
	case line := <-lines:
		if n, err := fmt.Sscan(line, &child, &shell); n != 2 {
			e.t.Fatalf("%q: %v", line, err)
		}
	case <-e.t.Context().Done():
		return
	}
	end(cmd)
	for range lines {
	}
	if err := cmd.Wait(); err == nil {
		e.t.Error("rcctl ended as if its command had")
	}
	e.within(limit, func() error {
		left, err := cluster.ProcessesUnder(filepath.Join(e.dir, "n1", "homes"))
		if err != nil {
			return err
		}
		for _, pid := range []int{child, shell} {
			if syscall.Kill(pid, 0) == nil {
				return fmt.Errorf("process %d is left: %v", pid, left)
			}
		}
		return nil
	})
}
