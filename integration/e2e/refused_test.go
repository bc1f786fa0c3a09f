package e2e

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const notAToken = "11111111-2222-3333-4444-555555555555"

// tokenRefused: Consul does not know the tokens of a farm and of a preparer. Each of the two daemons logs this once,
// with the file and the cure, and shows it in its metrics and in /readyz. When a valid token is in the file, the daemon
// logs this once. A second farm that was started with the id of the first farm also logs and shows its obstacle in this
// way. Only wrong command lines end with exit status 2.
func tokenRefused(e *env) {
	agent := e.startGuarded()
	farmToken := e.tokensOf(1, "farm", "--agent", agent)[0].SecretID
	nodeToken := e.tokensOf(1, "preparer", "--node", "n1", "--agent", agent)[0].SecretID
	farmFile, nodeFile := e.tokenFile("farm", notAToken), e.tokenFile("n1", notAToken)
	f1 := e.farm("f1", "", "--token-file", farmFile, "--log-level", "debug")
	n1 := e.preparer(1, "--token-file", nodeFile, "--log-level", "debug", "--isolation", "off")
	for _, d := range []*daemon{f1, n1} {
		kind := map[*daemon]string{f1: "farm", n1: "preparer"}[d]
		e.within(limit, func() error {
			return d.stuckOn(kind, "token-refused", map[*daemon]string{f1: farmFile, n1: nodeFile}[d], 4)
		})
	}
	e.tokenFile("farm", farmToken)
	e.tokenFile("n1", nodeToken)
	for _, d := range []*daemon{f1, n1} {
		e.within(limit, d.mended)
		d.ready(http.StatusOK, "ok")
		d.saidOnce("token-refused")
	}

	second := e.start("second", "farm", append(e.common("second", ""), "--id", "f1", "--token-file",
		farmFile, "--log-level", "debug")...)
	e.within(limit, func() error { return second.stuckOn("farm", "name-taken", "--id", 4) })
	f1.kill()
	e.within(limit, second.mended)
	second.ready(http.StatusOK, "ok")
	second.saidOnce("name-taken")

	for program, line := range map[string]string{
		"farm":     "--workers 0",
		"preparer": "--slots 0", "rcctl": "nodes --no-such-flag",
	} {
		for _, args := range []string{line, "--no-such-flag"} {
			out, err := exec.CommandContext(e.t.Context(), filepath.Join(e.root, "bin", program),
				strings.Fields(args)...).CombinedOutput()
			exit, is := err.(*exec.ExitError) //nolint:errorlint // as exec returns it
			if !is || exit.ExitCode() != 2 || strings.Count(string(out), "\n") > 2 {
				e.t.Errorf("%s %s: %v, want status 2 and the error alone\n%s", program, args, err, out)
			}
		}
	}
	second.signal(syscall.SIGQUIT) // prints the stacks; by default Go would exit with status 2
	<-second.current().ended
	if status, is := second.current().cmd.ProcessState.Sys().(syscall.WaitStatus); !is || !status.Signaled() {
		e.t.Errorf("a farm ended with %v", second.current().cmd.ProcessState)
	}
}

// stuckOn returns an error until the daemon has failed this often to make a session, and shows the obstacle everywhere.
func (d *daemon) stuckOn(program, kind, cure string, tries int) error {
	if n := strings.Count(d.logText(), `msg="session ended"`); n < tries {
		return fmt.Errorf("%s has tried %d times", d.name, n)
	}
	_, metrics, err := d.asked("/metrics")
	if metric := fmt.Sprintf("rcfarm_%s_obstacle{kind=%q} 1\n", program, kind); err == nil &&
		!strings.Contains(metrics, metric) {
		err = fmt.Errorf("%s shows no %s", d.name, metric)
	}
	if err != nil {
		return err
	}
	if status, body, err := d.asked("/readyz"); err != nil ||
		status != http.StatusServiceUnavailable || !strings.Contains(body, cure) {
		return fmt.Errorf("%s answers %d %q to /readyz, want what to do about %s; %w", d.name, status, body, cure, err)
	}
	if text := d.logText(); !strings.Contains(text, "condition="+kind) || !strings.Contains(text, cure) {
		return fmt.Errorf("the log of %s names neither %s nor %s", d.name, kind, cure)
	}
	return nil
}

func (d *daemon) mended() error {
	if !strings.Contains(d.logText(), "the obstacle is removed") {
		return fmt.Errorf("%s is not mended", d.name)
	}
	return nil
}

// saidOnce needs one line about the obstacle, besides debug lines, and one about its end. Later lines are not examined.
func (d *daemon) saidOnce(kind string) {
	d.e.t.Helper()
	var about []string
	before, _, _ := strings.Cut(d.logText(), "the obstacle is removed")
	for line := range strings.Lines(before) {
		of := strings.Contains(line, "cluster record is missing") ||
			strings.Contains(line, "services of the local agent")
		if !of && (strings.Contains(line, "level=warning") || strings.Contains(line, "level=error")) {
			about = append(about, line)
		}
	}
	if n := strings.Count(d.logText(), "the obstacle is removed"); n != 1 || len(about) != 1 ||
		!strings.Contains(about[0], "condition="+kind) {
		d.e.t.Errorf("%s: mended %d times, and complains in %d lines:\n%s", d.name, n,
			len(about), strings.Join(about, ""))
	}
}
