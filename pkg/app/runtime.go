package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/runtime/shim"
)

// supervisorName is the supervisor's directory in the node's.
const supervisorName = "shim"

// formerServices is where versions before this one kept what runit served, a directory for each process (ADR 17).
const formerServices = "runit/sv"

// refuseFormer returns an error where pods may run under runit: they would be started once more.
func refuseFormer(dir *DataDir) error {
	path := dir.Path(formerServices)
	entries, err := os.ReadDir(path)
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), ".") })
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("find out whether pods of this node run under runit: %w", err)
	case len(entries) == 0:
		return nil
	}
	return fmt.Errorf("processes under runit in %s: %d, the first is %s; this version does not know runit and would run their pods twice; "+
		"start the version before again, drain the node, wait until `rcctl pods` shows none on it, then start this version",
		path, len(entries), entries[0].Name())
}

// openRuntime opens the node's runtime. Closing it leaves everything running.
func openRuntime(b *base) (*shim.Client, error) {
	if err := refuseFormer(b.dir); err != nil {
		return nil, err
	}
	return dialSupervisor(b.dir.Path(supervisorName), b.common.Lifeline)
}

// dialSupervisor returns a client of the node's supervisor, which is this program started again.
func dialSupervisor(dir, lifeline string) (*shim.Client, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	args := []string{"supervise", "--dir", dir}
	if lifeline != "" {
		absolute, err := filepath.Abs(lifeline)
		if err != nil {
			return nil, err
		}
		args = append(args, "--lifeline", absolute)
	}
	return shim.Dial(shim.ClientConfig{Dir: dir, Spawn: func() error { return shim.Spawn(exe, args, dir) }})
}
