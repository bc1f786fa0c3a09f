package main

import (
	"io"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/app"
)

// A farm that another argument leads to the default data directory would take over that of the machine's own farm.
func TestNothingStartsWithAnArgument(t *testing.T) {
	t.Parallel()
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
		cmd := command(func(cfg app.FarmConfig) error {
			started++
			if cfg.DataDir != dir {
				t.Errorf("%s: it would start in %s", name, cfg.DataDir)
			}
			return nil
		})
		cmd.Writer, cmd.ErrWriter = io.Discard, io.Discard
		err := cmd.RunContext(t.Context(), append([]string{"farm"}, tt.args...))
		if tt.starts != (err == nil) || tt.starts != (started == 1) || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: started %d times, %v; want started %t, or an error with %s", name, started, err, tt.starts, tt.says)
		}
	}
}
