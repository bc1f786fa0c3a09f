package app

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/runit"
	"github.com/rcfarm/rcfarm/pkg/runtime/shim"
)

// What may be asked for as a node's runtime.
const (
	RuntimeAuto  = "auto" // what the node's pods run under, else the built-in one
	RuntimeShim  = "shim"
	RuntimeRunit = "runit"
)

func runtimes() []string { return []string{RuntimeAuto, RuntimeShim, RuntimeRunit} }

// chooseRuntime returns the runtime for a data directory: each keeps its processes in a directory of its own name. One
// that would leave the pods of another running, and start them once more, is refused.
func chooseRuntime(dir *DataDir, asked string) (string, error) {
	var used []string
	for name, inUse := range map[string]func(string) (bool, error){RuntimeShim: shim.InUse, RuntimeRunit: runit.InUse} {
		yes, err := inUse(dir.Path(name))
		if err != nil {
			return "", fmt.Errorf("find the runtime of this node's pods: %w", err)
		}
		if yes {
			used = append(used, name)
		}
	}
	switch {
	case len(used) > 1:
		return "", fmt.Errorf("%s holds processes under both %s and %s; one of the two directories is not this node's", dir.Path(""), RuntimeShim, RuntimeRunit)
	case len(used) == 0 && asked == RuntimeAuto:
		return RuntimeShim, nil
	case len(used) == 0 || asked == used[0]:
		return asked, nil
	case asked == RuntimeAuto:
		return used[0], nil
	default:
		return "", fmt.Errorf("runtime: %q is not possible now; allowed: %q, which pods of this node run under, or auto; to change it drain the node first",
			asked, used[0])
	}
}

// openRuntime opens the node's runtime. Closing it leaves everything running.
func openRuntime(b *base, asked string) (runtime.Runtime, func(), error) {
	name, err := chooseRuntime(b.dir, asked)
	if err != nil {
		return nil, nil, err
	}
	if name == RuntimeRunit {
		return openRunit(b)
	}
	client, err := dialSupervisor(b.dir.Path(RuntimeShim), b.common.Lifeline)
	if err != nil {
		return nil, nil, err
	}
	return client, client.Close, nil
}

// dialSupervisor returns a client of the node's supervisor, which is this program started again.
func dialSupervisor(dir, lifeline string) (*shim.Client, error) {
	spawn, err := supervisorSpawner(RuntimeShim, dir, lifeline)
	if err != nil {
		return nil, err
	}
	return shim.Dial(shim.ClientConfig{Dir: dir, Spawn: spawn})
}

func openRunit(b *base) (runtime.Runtime, func(), error) {
	dir := b.dir.Path(RuntimeRunit)
	r, err := runit.Open(runit.Config{Dir: dir, Log: func(msg string, fields map[string]any) { b.log.WithFields(fields).Info(msg) }})
	if err != nil {
		return nil, nil, err
	}
	if b.common.Lifeline != "" { // runit knows nothing of lifelines
		spawn, err := supervisorSpawner(RuntimeRunit, dir, b.common.Lifeline)
		if err == nil {
			err = spawn()
		}
		if err != nil {
			r.Close()
			return nil, nil, err
		}
	}
	return r, r.Close, nil
}

// supervisorSpawner starts this program again as RunSupervisor.
func supervisorSpawner(name, dir, lifeline string) (func() error, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	args := []string{"supervise", "--runtime", name, "--dir", dir}
	if lifeline != "" {
		absolute, err := filepath.Abs(lifeline)
		if err != nil {
			return nil, err
		}
		args = append(args, "--lifeline", absolute)
	}
	return func() error { return shim.Spawn(exe, args, dir) }, nil
}
