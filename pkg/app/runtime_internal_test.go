package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChooseRuntime(t *testing.T) {
	t.Parallel()
	const shimProcess, runitProcess = "shim/state/p.json", "runit/sv/p/record.json"
	for _, tt := range []struct {
		name  string
		files []string
		asked string
		want  string // empty: refused
		says  string
	}{
		{"new, auto", nil, RuntimeAuto, RuntimeShim, ""},
		{"new, runit", nil, RuntimeRunit, RuntimeRunit, ""},
		{"shim, auto", []string{shimProcess}, RuntimeAuto, RuntimeShim, ""},
		{"runit, auto", []string{runitProcess}, RuntimeAuto, RuntimeRunit, ""},
		{"runit, runit", []string{runitProcess}, RuntimeRunit, RuntimeRunit, ""},
		{"runit, shim", []string{runitProcess}, RuntimeShim, "", `allowed: "runit"`},
		{"shim, runit", []string{shimProcess}, RuntimeRunit, "", `allowed: "shim"`},
		{"both", []string{shimProcess, runitProcess}, RuntimeAuto, "", "both"},
		{"empty directories", []string{"shim/state/x.tmp", "runit/sv/.new-1/run"}, RuntimeRunit, RuntimeRunit, ""},
	} {
		dir, err := OpenDataDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		for _, file := range tt.files {
			path := dir.Path(file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := chooseRuntime(dir, tt.asked)
		if got != tt.want || (err == nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %q, %v; want %q, or an error with %q", tt.name, got, err, tt.want, tt.says)
		}
	}
}
