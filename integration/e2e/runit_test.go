package e2e

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// leftByRunit: a preparer finds a process of runit, under which earlier versions could run pods. The preparer does not
// start, and prints what the operator must do. When the operator has done this, the preparer starts.
func leftByRunit(e *env) {
	e.startConsul("")
	dir := e.onNode("n1", "runit", "sv", "rc1.main.0-7-web")
	record := `{"spec":{"id":"rc1.main.0-7-web","pod":{"rc_id":"rc1","role":"main","index":0},"revision":7,"name":"web","command":["/bin/sleep","1000"],` +
		`"env":[],"dir":"/","log_path":"/dev/null","log_bytes":0,"log_keep":0,"stop_grace":1000000000},"desired":"run","pace":{"min":1,"max":1,"stable":1},` +
		`"boot_id":"cc808e1e-8554-4ecc-86fa-48e91bcdc4a2","pid":28205,"start":69373,"boot":"cc808e1e-8554-4ecc-86fa-48e91bcdc4a2","starts":1}`
	if err := errors.Join(os.MkdirAll(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "record.json"), []byte(record), 0o600)); err != nil {
		e.t.Fatal(err)
	}

	args := slices.Concat(e.common("n1", ""), []string{"--node", "n1", "--address", e.address(1)})
	out, err := exec.CommandContext(e.t.Context(), filepath.Join(e.root, "bin", "preparer"), args...).CombinedOutput()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 1 {
		e.t.Errorf("beside runit: %v, want exit status 1; %s", err, out)
	}
	for _, part := range []string{"runit/sv", "rc1.main.0-7-web", "the previous version", "drain the node"} {
		if !strings.Contains(string(out), part) {
			e.t.Errorf("%s\ndoes not say %q", out, part)
		}
	}
	if left := e.supervisors(1); len(left) > 0 {
		e.t.Errorf("supervisors %v run beside runit", left)
	}
	if nodes := slices.Collect(maps.Keys(e.nodes())); len(nodes) > 0 {
		e.t.Errorf("nodes %v, want none", nodes)
	}
	if kept, err := os.ReadFile(filepath.Join(dir, "record.json")); err != nil || string(kept) != record {
		e.t.Errorf("runit's record is now %q, %v", kept, err)
	}

	if err := os.RemoveAll(dir); err != nil { // the earlier version does this when the node is drained
		e.t.Fatal(err)
	}
	e.preparer(1)
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	e.sameProcessCount(1)
}
