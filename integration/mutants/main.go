// Command mutants changes one operator at a time in the packages with pure decisions, and finds out whether the
// package's tests fail. It runs gremlins in a copy of the sources and names the surviving mutants. It checks two goals:
// the share of the reached mutants that are killed, and the share of all mutants that are reached.
//
// With -build it builds a program with one named mutant, to check that runs under faults find the promise that the
// mutant breaks: mutants -build fence -o bin/farm-nofence ./cmd/farm
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

// goal is the percentage that each package must reach: of the reached mutants that are killed, and of all mutants that
// are reached.
const goal = 95

// errMissed means that a goal was missed, or that the list of reasons does not match the survivors.
var errMissed = errors.New("the goals are missed")

func main() {
	if filepath.Base(os.Args[0]) == "go" {
		os.Exit(actAsGo(os.Args[1:]))
	}
	gremlins := flag.String("gremlins", "bin/gremlins", "the `PROGRAM` that mutates")
	reasons := flag.String("reasons", "integration/mutants/reasons.yaml",
		"the `FILE` that says why survivors may survive")
	only := flag.String("only", "",
		"files whose name contains `TEXT`; all when empty, and only then the goals are held")
	build := flag.String("build", "",
		"build one package, given as the argument, with the mutant `NAME` in it; nothing else is done then")
	output := flag.String("o", "", "the `FILE` that -build writes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *build != "" {
		err = buildNamed(ctx, ".", *build, *output, flag.Arg(0))
	} else {
		err = run(ctx, *gremlins, *reasons, *only, flag.Args())
	}
	if err != nil {
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

// unleash mutates a copy of one package, because gremlins would copy the whole checkout, with all built files, for each
// of its workers.
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
		// A multiple of the unchanged tests' time, because the machine may be busy. maxCPU ends mutants that never end.
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
