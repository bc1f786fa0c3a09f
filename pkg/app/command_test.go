package app_test

import (
	"io"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/app"
)

// Flags after an argument are not read, so such a farm would use the default data directory, which belongs to the
// machine's own farm. The test does not run in parallel, because all command lines share the library's flag --help.
func TestNoFarmStartsWithAnArgument(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		args   []string
		starts bool
		says   string
	}{
		"flags alone":      {[]string{"--data-dir", dir, "--id", "f1"}, true, ""},
		"before the flags": {[]string{"extra", "--data-dir", dir}, false, `"extra"`},
		"after them":       {[]string{"--data-dir", dir, "extra"}, false, `"extra"`},
		"empty":            {[]string{"", "--data-dir", dir}, false, `""`},
		"value of a bool":  {[]string{"--debug-public", "false", "--data-dir", dir}, false, "--FLAG=false"},
		"two dashes":       {[]string{"--", "--data-dir", dir}, false, `"--data-dir"`},
	} {
		started := 0
		cmd := app.FarmCommand(func(cfg app.FarmConfig) error {
			started++
			if cfg.DataDir != dir {
				t.Errorf("%s: it would start in %s", name, cfg.DataDir)
			}
			return nil
		})
		cmd.Writer, cmd.ErrWriter = io.Discard, io.Discard
		err := cmd.RunContext(t.Context(), append([]string{"farm"}, tt.args...))
		if tt.starts != (err == nil) || tt.starts != (started == 1) ||
			err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: started %d times, %v; want started %t, or an error with %s",
				name, started, err, tt.starts, tt.says)
		}
	}
}

// Flags after an argument are not read, so such a preparer would use the data directory of the machine's own preparer.
func TestNoPreparerStartsWithAnArgument(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		args   []string
		starts bool
		says   string
	}{
		"flags alone":          {[]string{"--data-dir", dir, "--label", "rack=a"}, true, ""},
		"before the flags":     {[]string{"extra", "--data-dir", dir}, false, `"extra"`},
		"after them":           {[]string{"--data-dir", dir, "extra"}, false, `"extra"`},
		"empty":                {[]string{"", "--data-dir", dir}, false, `""`},
		"value of a bool":      {[]string{"--take-over-name", "false", "--data-dir", dir}, false, "--FLAG=false"},
		"two dashes":           {[]string{"--", "--data-dir", dir}, false, `"--data-dir"`},
		"the supervisor":       {[]string{"supervise", "--dir", dir}, true, ""},
		"by a former preparer": {[]string{"supervise", "--runtime", "shim", "--dir", dir}, true, ""},
		"the guard of runit": {
			[]string{"supervise", "--runtime", "runit", "--dir", dir},
			false,
			`"runit" is not valid; allowed: shim`,
		},
		"a stub of runit":         {[]string{"runit-exec", "run"}, false, `"runit-exec"`},
		"runit":                   {[]string{"--runtime", "runit", "--data-dir", dir}, false, "-runtime"},
		"of the supervisor":       {[]string{"supervise", "--dir", dir, "extra"}, false, `"extra"`},
		"before the supervisor's": {[]string{"extra", "supervise", "--dir", dir}, false, `"extra"`},
	} {
		started := 0
		in := func(path string) error {
			started++
			if path != dir {
				t.Errorf("%s: it would start in %s", name, path)
			}
			return nil
		}
		cmd := app.PreparerCommand(
			func(cfg app.PreparerConfig) error { return in(cfg.DataDir) },
			func(cfg app.SupervisorConfig) error { return in(cfg.Dir) },
		)
		cmd.Writer, cmd.ErrWriter = io.Discard, io.Discard
		err := cmd.RunContext(t.Context(), append([]string{"preparer"}, tt.args...))
		if tt.starts != (err == nil) || tt.starts != (started == 1) ||
			err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: started %d times, %v; want started %t, or an error with %s",
				name, started, err, tt.starts, tt.says)
		}
	}
}
