package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/tools/cover"
)

// A mutant is given only to the tests that reach the mutated line. So a package whose tests take 12 s together takes a
// second for most mutants.

// Most mutants die by a test that takes at most quick.
const quick = 100 * time.Millisecond

// Tests of a mutant that exceed limit count as failed, because most such tests never end. The bound is wide, because
// the machine may have become much slower since the measurement.
const (
	leastLimit = 20 * time.Second
	slower     = 30 // times
)

// took is how long they ran on the unchanged code.
func limit(took time.Duration) time.Duration { return leastLimit + slower*took }

type test struct {
	Name  string                          `json:"name"`
	Took  time.Duration                   `json:"took"`
	Files map[string][]cover.ProfileBlock `json:"files"` // by path in the module; only blocks that ran
}

// measure runs each test of a package alone, with the flags for the test program, and returns the tests in their order.
func measure(program, tree, pkg string, flags []string) ([]test, error) {
	dir, err := os.MkdirTemp("", "measure")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary, profile := filepath.Join(dir, "test"), filepath.Join(dir, "profile")
	build := exec.Command(program, "test", "-c", "-cover", "-vet=off", "-o", binary, pkg)
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the tests of %s: %w: %s", pkg, err, out)
	}
	name, err := moduleName(tree)
	if err != nil {
		return nil, err
	}
	within := filepath.Join(tree, filepath.FromSlash(strings.TrimPrefix(strings.TrimPrefix(pkg, name), "/")))
	list := exec.Command(binary, "-test.list", "^(Test|Example|Fuzz)")
	list.Dir = within
	names, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", pkg, err)
	}
	var out []test
	for t := range strings.FieldsSeq(string(names)) {
		pattern, _ := exactly([]test{{Name: t}})
		alone := []string{"-test.run", pattern, "-test.coverprofile", profile}
		cmd := exec.Command(binary, append(alone, flags...)...)
		cmd.Dir = within
		begin := time.Now()
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", t, err, text)
		}
		reached := test{Name: t, Took: time.Since(begin)}
		if reached.Files, err = reachedBy(profile, tree, name); err != nil {
			return nil, err
		}
		out = append(out, reached)
	}
	return out, nil
}

// reachedBy returns the blocks that a profile shows as reached, widened by what Go leaves out (see widen).
func reachedBy(profile, tree, module string) (map[string][]cover.ProfileBlock, error) {
	profiles, err := cover.ParseProfiles(profile)
	if err != nil {
		return nil, err
	}
	out := map[string][]cover.ProfileBlock{}
	for _, p := range profiles {
		rest := strings.TrimPrefix(p.FileName, module+"/")
		src, err := os.ReadFile(filepath.Join(tree, rest))
		if err != nil {
			return nil, err
		}
		blocks, err := widen(src, p.Blocks)
		if err != nil {
			return nil, err
		}
		for _, b := range blocks {
			if b.Count > 0 {
				out[rest] = append(out[rest], b)
			}
		}
	}
	return out, nil
}

func choose(tests []test, file string, line int) (first, then []test) {
	for _, t := range tests {
		for _, b := range t.Files[file] {
			if b.StartLine > line || line > b.EndLine {
				continue
			}
			if t.Took <= quick {
				first = append(first, t)
			} else {
				then = append(then, t)
			}
			break
		}
	}
	return first, then
}

func exactly(tests []test) (pattern string, took time.Duration) {
	quoted := make([]string, len(tests))
	for i, t := range tests {
		quoted[i] = regexp.QuoteMeta(t.Name)
		took += t.Took
	}
	return "^(" + strings.Join(quoted, "|") + ")$", took
}

func mutated(before, after, dir string) (file string, line int, err error) {
	files, err := filepath.Glob(filepath.Join(after, dir, "*.go"))
	for _, f := range files {
		file = path.Join(filepath.ToSlash(dir), filepath.Base(f))
		now, err := os.ReadFile(f)
		if err != nil {
			return "", 0, err
		}
		old, err := os.ReadFile(filepath.Join(before, file))
		if err != nil {
			return "", 0, err
		}
		if line := firstChange(old, now); line > 0 {
			return file, line, nil
		}
	}
	return "", 0, errors.Join(err, fmt.Errorf("no file of %s is mutated", dir))
}

// firstChange compares tokens and returns 0 if all are equal, because gremlins writes the whole file anew, with other
// white space.
func firstChange(old, now []byte) (line int) {
	var a, b scanner.Scanner
	files := token.NewFileSet()
	a.Init(files.AddFile("", files.Base(), len(old)), old, nil, 0)
	b.Init(files.AddFile("", files.Base(), len(now)), now, nil, 0)
	for {
		at, was, text := a.Scan()
		_, is, other := b.Scan()
		switch {
		case was != is || text != other:
			return files.Position(at).Line
		case was == token.EOF:
			return 0
		}
	}
}

// judge builds the tests of a mutated package and runs those that reach the mutant.
func judge(program, tree, pkg string, tests []test, flags []string) error {
	runtime.LockOSThread() // the children end with the thread that started them
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	name, err := moduleName(tree)
	if err != nil {
		return err
	}
	dir := strings.TrimPrefix(strings.TrimPrefix(pkg, name), "/")
	file, line, err := mutated(tree, root, dir)
	if err != nil {
		return err
	}
	bin, err := os.MkdirTemp(os.Getenv("GOTMPDIR"), "judge")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	binary := filepath.Join(bin, "test")
	run := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(root, dir), os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd.Run()
	}
	if err := run(program, "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary, pkg); err != nil {
		if failed := new(exec.ExitError); !errors.As(err, &failed) || !failed.Exited() {
			return errors.New("the build was killed: " + err.Error())
		}
		return errors.Join(errNotViable, err)
	}
	first, then := choose(tests, file, line)
	for _, some := range [][]test{first, then} {
		if len(some) == 0 {
			continue
		}
		pattern, took := exactly(some)
		args := []string{"-test.failfast", "-test.timeout", limit(took).String(), "-test.run", pattern}
		if err := run(binary, append(args, flags...)...); err != nil {
			if failed := new(exec.ExitError); !errors.As(err, &failed) {
				return fmt.Errorf("run the tests: %w", err)
			}
			return errors.Join(errNoticed, err)
		}
	}
	return nil
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			return "", errors.New("this directory is in no module")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// measureAll measures each package that a pattern names, and writes the result by the package's path.
func measureAll(program, tree, pattern, dir string) error {
	names, err := exec.Command(program, "list", pattern).Output()
	if err != nil {
		return fmt.Errorf("list the packages of %s: %w", pattern, err)
	}
	plan := map[string][]test{}
	for pkg := range strings.FieldsSeq(string(names)) {
		flags, err := testFlags(tree, pkg)
		if err == nil {
			plan[pkg], err = measure(program, tree, pkg, flags)
		}
		if err != nil {
			return err
		}
	}
	data, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, planFile), data, 0o600)
}

const planFile = "tests.json"

func readPlan(dir string) (map[string][]test, error) {
	data, err := os.ReadFile(filepath.Join(dir, planFile))
	if err != nil {
		return nil, err
	}
	var plan map[string][]test
	return plan, json.Unmarshal(data, &plan)
}
