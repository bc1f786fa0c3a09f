package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Gremlins runs `go test` for everything that it wants to know. This program stands in its place, under the name `go`, and
//   - says of more code that tests reach it, as coverage leaves out the conditions of switches; see widen;
//   - takes the randomness out of property tests: the same mutants must die each time;
//   - says of a mutant that does not compile that it does not: gremlins takes that for tests that fail;
//   - limits memory, and the time of the processor: a mutant that never ends is ended, and tests that wait for a busy machine are not.
const (
	envGo   = "MUTANTS_GO"   // the real one
	envTree = "MUTANTS_TREE" // root of the copied module

	maxMemory = 6 << 30 // bytes of address space of each process
	maxCPU    = 20      // seconds of each process; what is pure and tested takes a few

	// exitNotViable is how gremlins wants to be told that there is nothing to test; `go test` says the same of tests that fail.
	exitNotViable = 2
)

// errNotViable means that what was mutated does not compile.
var errNotViable = errors.New("it does not compile")

// shimmed returns the environment in which this program is `go`.
func shimmed(dir, tree string) ([]string, error) {
	program, err := exec.LookPath("go")
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Symlink(self, filepath.Join(dir, "go")); err != nil {
		return nil, err
	}
	return append(os.Environ(),
		envGo+"="+program, envTree+"="+tree, "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH")), nil
}

// actAsGo runs the real `go`. It returns the exit code, or not at all.
func actAsGo(args []string) int {
	if err := goAs(args); err != nil {
		var failed *exec.ExitError
		switch {
		case errors.Is(err, errNotViable):
			return exitNotViable
		case errors.As(err, &failed):
			return failed.ExitCode()
		}
		fmt.Fprintln(os.Stderr, "mutants:", err)
		return 1
	}
	return 0
}

func goAs(args []string) error {
	for resource, most := range map[int]uint64{syscall.RLIMIT_AS: maxMemory, syscall.RLIMIT_CPU: maxCPU} {
		if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("limit memory and time: %w", err)
		}
	}
	program := os.Getenv(envGo)
	if len(args) == 0 || args[0] != "test" {
		return syscall.Exec(program, append([]string{program}, args...), os.Environ())
	}
	pkg := args[len(args)-1]
	args, err := testArgs(args, os.Getenv(envTree))
	if err != nil {
		return err
	}
	at := slices.Index(args, "-coverprofile")
	if at < 0 {
		if err := exec.Command(program, "build", pkg).Run(); err != nil {
			return errors.Join(errNotViable, err)
		}
		// Gremlins kills what takes too long: there must be nothing between.
		return syscall.Exec(program, append([]string{program}, args...), os.Environ())
	}
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	return widenFile(args[at+1], os.Getenv(envTree))
}

// testArgs completes the arguments of `go test`, whose last one is the package, or all below a directory. Nothing comes from the
// cache: the time that the tests take as they are is what the limit for mutants is made of.
func testArgs(args []string, tree string) ([]string, error) {
	out := slices.Concat(args[:1], []string{"-count=1", "-vet=off"}, args[1:])
	random, err := allUseRapid(tree, args[len(args)-1])
	if random {
		out = append(out, "-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=1ms")
	}
	return out, err
}

// allUseRapid reports whether the tests of every package know rapid's flags.
func allUseRapid(tree, pattern string) (bool, error) {
	name, err := moduleName(tree)
	if err != nil {
		return false, err
	}
	below, all := strings.CutSuffix(strings.TrimPrefix(pattern, name+"/"), "/...")
	uses := map[string]bool{}
	err = fs.WalkDir(os.DirFS(tree), path.Clean(below), func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && !all && file != path.Clean(below):
			return fs.SkipDir
		case !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		data, err := os.ReadFile(filepath.Join(tree, file))
		uses[path.Dir(file)] = uses[path.Dir(file)] || strings.Contains(string(data), "\"pgregory.net/rapid\"")
		return err
	})
	for _, has := range uses {
		if !has {
			return false, err
		}
	}
	return len(uses) > 0, err
}

// moduleName returns what the module in a directory is called.
func moduleName(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if name, found := strings.CutPrefix(line, "module "); found {
			return strings.TrimSpace(name), nil
		}
	}
	return "", fmt.Errorf("%s/go.mod names no module", dir)
}
