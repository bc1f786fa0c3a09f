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

// Gremlins runs this program as `go`. It
//   - reports more code as reached, because coverage leaves out the conditions of switches; see widen;
//   - gives a mutant only to the tests that reach it; see judge;
//   - fixes the seed of property tests, because the same mutants must die each time;
//   - reports that a mutant does not compile, which gremlins would take for tests that fail;
//   - limits memory and CPU time, which ends a mutant that never ends, but not tests that wait on a busy machine.
const (
	envGo   = "MUTANTS_GO"   // the real `go`
	envTree = "MUTANTS_TREE" // root of the copied module
	envPlan = "MUTANTS_PLAN" // directory of the plan: what each test reaches

	maxMemory = 6 << 30 // bytes of address space of each process
	maxCPU    = 20      // seconds of each process; tests of pure code take a few

	// exitNotViable tells gremlins that the code does not compile. The real `go test` has one exit code for code that
	// does not compile and for tests that fail.
	exitNotViable = 2
	// exitUnjudged means that this program failed. Gremlins counts the mutant as lived.
	exitUnjudged = 3
)

var (
	errNotViable = errors.New("it does not compile")
	// errNoticed means that a test failed, or exceeded its memory or time.
	errNoticed = errors.New("a test noticed it")
)

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
		envGo+"="+program, envTree+"="+tree, envPlan+"="+dir,
		"PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH")), nil
}

// actAsGo returns the exit code, or does not return.
func actAsGo(args []string) int {
	if err := goAs(args); err != nil {
		var failed *exec.ExitError
		switch {
		case errors.Is(err, errNotViable):
			return exitNotViable
		case errors.Is(err, errNoticed):
			return 1
		case errors.As(err, &failed):
			return failed.ExitCode()
		}
		fmt.Fprintln(os.Stderr, "mutants:", err)
		return exitUnjudged
	}
	return 0
}

func goAs(args []string) error {
	for resource, most := range map[int]uint64{syscall.RLIMIT_AS: maxMemory, syscall.RLIMIT_CPU: maxCPU} {
		if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("limit memory and time: %w", err)
		}
	}
	program, tree := os.Getenv(envGo), os.Getenv(envTree)
	if len(args) == 0 || args[0] != "test" {
		return syscall.Exec(program, append([]string{program}, args...), os.Environ())
	}
	pattern := args[len(args)-1]
	flags, err := testFlags(tree, pattern)
	if err != nil {
		return err
	}
	at := slices.Index(args, "-coverprofile")
	if at < 0 {
		plan, err := readPlan(os.Getenv(envPlan))
		if err != nil {
			return err
		}
		return judge(program, tree, pattern, plan[pattern], flags)
	}
	// Without the cache: all tests must have run when the goals are checked.
	args = slices.Concat([]string{"test", "-count=1", "-vet=off"}, args[1:], flags)
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	if err := measureAll(program, tree, pattern, os.Getenv(envPlan)); err != nil {
		return err
	}
	return widenFile(args[2+at+1], tree)
}

func testFlags(tree, pattern string) ([]string, error) {
	random, err := allUseRapid(tree, pattern)
	if !random {
		return nil, err
	}
	return []string{"-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=1ms"}, err
}

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
