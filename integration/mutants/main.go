// Command mutants changes the pure decisions one operator at a time and asks their own tests whether they notice. The
// mutating is done by gremlins (`make mutants` builds it); this program runs it where it can do no harm, names what survived,
// and holds the goals: of the mutants that tests reach, and of all that there are.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
)

// goal is what each package must reach, in percent: of killed among the reached, and of reached among all.
const goal = 95

// errMissed means that the mutants were judged, and the goals were missed or a reason does not hold.
var errMissed = errors.New("the goals are missed")

func main() {
	if filepath.Base(os.Args[0]) == "go" {
		os.Exit(actAsGo(os.Args[1:]))
	}
	gremlins := flag.String("gremlins", "bin/gremlins", "the `PROGRAM` that mutates")
	reasons := flag.String("reasons", "integration/mutants/reasons.yaml", "the `FILE` that says why survivors may survive")
	only := flag.String("only", "", "files whose name contains `TEXT`; all when empty, and only then the goals are held")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *gremlins, *reasons, *only, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, gremlins, reasonsFile, only string, packages []string) error {
	why, err := readReasons(reasonsFile)
	if err != nil {
		return err
	}
	if gremlins, err = filepath.Abs(gremlins); err != nil {
		return err
	}
	var missed bool
	for _, pkg := range packages {
		found, err := unleash(ctx, gremlins, filepath.ToSlash(filepath.Clean(pkg)), only)
		if err != nil {
			return fmt.Errorf("%s: %w", pkg, err)
		}
		s := sum(filepath.ToSlash(filepath.Clean(pkg)), only, found, why)
		s.print(os.Stdout)
		missed = missed || only == "" && s.missed()
	}
	if missed {
		return errMissed
	}
	return nil
}

// unleash mutates one package and returns its mutants. It works on a copy of the sources: gremlins would copy the whole checkout
// for each of its workers, with all that was built there.
func unleash(ctx context.Context, gremlins, pkg, only string) ([]mutant, error) {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	tree := filepath.Join(dir, "tree")
	if err := copySources(tree); err != nil {
		return nil, err
	}
	env, err := shimmed(filepath.Join(dir, "bin"), tree)
	if err != nil {
		return nil, err
	}
	result := filepath.Join(dir, "result.json")
	args := []string{
		"unleash", "--output", result, "--output-statuses", "lt",
		// Of the time that the tests took as they are: mutants may wait for a busy machine. Those that never end are ended by maxCPU.
		"--timeout-coefficient", "200", "--workers", strconv.Itoa(runtime.NumCPU()),
	}
	files, err := excluded(filepath.Join(tree, pkg), only)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		args = append(args, "--exclude-files", f)
	}
	cmd := exec.CommandContext(ctx, gremlins, append(args, "./"+pkg)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = tree, env, os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("gremlins: %w", err)
	}
	data, err := os.ReadFile(result)
	if err != nil {
		return nil, fmt.Errorf("gremlins found nothing to mutate: %w", err)
	}
	var out outcome
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("what gremlins wrote: %w", err)
	}
	return out.mutants(tree, pkg)
}

// copySources copies what the tests of pure packages are built from.
func copySources(to string) error {
	if err := os.CopyFS(filepath.Join(to, "pkg"), os.DirFS("pkg")); err != nil {
		return err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("not in the root of the module: %w", err)
		}
		if err := os.WriteFile(filepath.Join(to, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
