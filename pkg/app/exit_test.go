package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/field"
)

// A daemon with a wrong command line prints one line and ends with 2. After another error, another start may succeed,
// and the daemon ends with 1.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	farm := func(args ...string) error {
		cmd := app.FarmCommand(func(cfg app.FarmConfig) error {
			cfg.DataDir, cfg.DebugAddr = dir, "off"
			_, err := app.NewFarm(t.Context(), cfg)
			return err
		})
		return cmd.RunContext(t.Context(), append([]string{"farm"}, args...))
	}
	preparer := func(args ...string) error {
		cmd := app.PreparerCommand(func(cfg app.PreparerConfig) error {
			cfg.DataDir, cfg.DebugAddr = dir, "off"
			_, err := app.NewPreparer(t.Context(), cfg)
			return err
		}, func(app.SupervisorConfig) error { return nil })
		return cmd.RunContext(t.Context(), append([]string{"preparer"}, args...))
	}
	held, err := app.OpenDataDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for name, tt := range map[string]struct {
		err  error
		want int
		says string
	}{
		"unknown flag":              {farm("--no-such-flag"), 2, "farm: flag provided but not defined: -no-such-flag"},
		"no number":                 {farm("--workers", "many"), 2, `farm: invalid value "many" for flag -workers`},
		"no value":                  {farm("--id"), 2, "farm: flag needs an argument: -id"},
		"wrong value":               {farm("--workers", "0"), 2, "farm: workers: 0 is not valid"},
		"argument":                  {farm("extra"), 2, `farm: unexpected argument "extra"`},
		"log":                       {farm("--log-level", "loud"), 2, "farm: log-level"},
		"prefix":                    {farm("--prefix", "/x"), 2, "farm: prefix"},
		"directory in use":          {farm("--id", "f1"), 1, "in use by another daemon"},
		"directory that is missing": {farm("--node-token-dir", "/no/such"), 1, "farm: node-token-dir"},
		"both":                      {farm("--node-token-dir", "/no/such", "--workers", "0"), 2, "workers: 0"},
		"preparer's unknown flag":   {preparer("--no-such-flag"), 2, "preparer: flag provided but not defined"},
		"preparer's hooks":          {preparer("--hooks-dir", "/no/such"), 1, "hooks-dir"},
		"address of all":            {preparer("--address", "0.0.0.0"), 2, "address"},
		"address of many":           {preparer("--address", "224.0.0.1"), 2, "address"},
		"supervisor's unknown flag": {
			preparer("supervise", "--dir", dir, "--no-such-flag"), 2,
			"flag provided but not defined",
		},
		"supervisor's argument":     {preparer("supervise", "--dir", dir, "extra"), 2, "unexpected argument"},
		"supervisor's missing flag": {preparer("supervise"), 2, "dir: missing"},
		"signal":                    {fmt.Errorf("%w: terminated", app.ErrSignal), 0, ""},
		"wrong record":              {fmt.Errorf("read it: %w", field.Errors{{Field: "workers"}}), 1, "workers"},
	} {
		var out strings.Builder
		program, _, _ := strings.Cut(tt.says, ":")
		if got := app.Exit(&out, program, tt.err); got != tt.want || !strings.Contains(out.String(), tt.says) ||
			strings.Count(out.String(), "\n") > 2 {
			t.Errorf("%s: %d, want %d, and %q in\n%s", name, got, tt.want, tt.says, out.String())
		}
	}
}

// The library prints nothing besides the error.
func TestUsageErrorsArePrintedAlone(t *testing.T) {
	var out strings.Builder
	for _, args := range [][]string{{"farm", "--no-such-flag"}, {"farm", "--workers", "many"}} {
		cmd := app.FarmCommand(func(app.FarmConfig) error { return nil })
		cmd.Writer, cmd.ErrWriter = &out, &out
		err := cmd.RunContext(t.Context(), args)
		prep := app.PreparerCommand(func(app.PreparerConfig) error { return nil }, func(app.SupervisorConfig) error {
			return nil
		})
		prep.Writer, prep.ErrWriter = &out, &out
		err = errors.Join(err, prep.RunContext(t.Context(), args),
			prep.RunContext(t.Context(), []string{"preparer", "supervise", "--no-such-flag"}))
		if err == nil || out.Len() > 0 {
			t.Errorf("%v: %v, printed\n%s", args, err, out.String())
		}
	}
}

// panicEnv makes this test program panic in the same way as a daemon.
const panicEnv = "APP_TEST_PANIC"

func TestMain(m *testing.M) {
	switch os.Getenv(panicEnv) {
	case "panic":
		app.CrashBySignal()
		go panic("as a bug would")
		select {}
	case "wait":
		app.CrashBySignal()
		fmt.Println("waiting")
		select {}
	}
	os.Exit(m.Run())
}

// A panic does not end with the exit code of a wrong command line, because systemd does not restart the daemon after
// that code.
func TestAPanicEndsBySignal(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"panic", "wait"} {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
		cmd.Env = append(os.Environ(), panicEnv+"="+how)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if how == "wait" {
			if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Process.Signal(syscall.SIGQUIT)
		}
		_ = cmd.Wait()
		if status, is := cmd.ProcessState.Sys().(syscall.WaitStatus); !is || !status.Signaled() {
			t.Errorf("%s: it ended with %v, want a signal", how, cmd.ProcessState)
		}
	}
}
