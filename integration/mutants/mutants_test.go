package main

import (
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/cover"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "go" {
		os.Exit(actAsGo(os.Args[1:]))
	}
	os.Exit(m.Run())
}

const source = `package p

const limit = 2 * 60

func (t *T) f(a, b int) bool {
	if has := func() bool { return a > 0 }; a > 1 && has() {
		return true
	}
	switch {
	case a == b,
		a == 7:
		switch b {
		case 1 + 2:
			a++
		}
	}
	return false
}
`

func position(t *testing.T, text string) token.Position {
	t.Helper()
	before, _, found := strings.Cut(source, text)
	if !found {
		t.Fatalf("the source has no %q", text)
	}
	return token.Position{Line: 1 + strings.Count(before, "\n"), Column: len(before) - strings.LastIndex(before, "\n")}
}

// A condition counts as reached if its statement is reached, although coverage alone leaves the condition out. A
// condition in an unreached statement does not count.
func TestWiden(t *testing.T) {
	t.Parallel()
	entered := cover.ProfileBlock{StartLine: 5, StartCol: 30, EndLine: 6, EndCol: 12, NumStmt: 1, Count: 1}
	outer := cover.ProfileBlock{StartLine: 9, StartCol: 2, EndLine: 9, EndCol: 9, NumStmt: 1, Count: 1}
	missed := cover.ProfileBlock{StartLine: 12, StartCol: 3, EndLine: 12, EndCol: 12, NumStmt: 1, Count: 0}
	for name, c := range map[string]struct {
		blocks    []cover.ProfileBlock
		in, notIn []string
	}{
		"nothing":  {nil, []string{"* 60"}, []string{"> 1", "== b", "== 7", "+ 2", "++"}},
		"function": {[]cover.ProfileBlock{entered}, []string{"> 1", "&& has"}, []string{"> 0", "== b", "+ 2"}},
		"switch":   {[]cover.ProfileBlock{entered, outer, missed}, []string{"== b", "== 7"}, []string{"+ 2", "++"}},
	} {
		got, err := widen([]byte(source), c.blocks)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range c.in {
			if !covers(got, position(t, text)) {
				t.Errorf("%s: %q does not count as reached", name, text)
			}
		}
		for _, text := range c.notIn {
			if covers(got, position(t, text)) {
				t.Errorf("%s: %q counts as reached", name, text)
			}
		}
	}
}

// The name of a mutant has its code, not its line.
func TestMutantsAreNamed(t *testing.T) {
	t.Parallel()
	tree := t.TempDir()
	if err := os.MkdirAll(filepath.Join(tree, "pkg", "p"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "pkg", "p", "p.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, c := range map[string]struct{ kind, function, code, becomes string }{
		"* 60": {"ARITHMETIC_BASE", "", "2 * 60", "/"},
		"> 1":  {"CONDITIONALS_BOUNDARY", "f", "a > 1", ">="},
		"== 7": {"CONDITIONALS_NEGATION", "f", "a == 7", "!="},
		"++":   {"INCREMENT_DECREMENT", "f", "a++", "--"},
	} {
		at := position(t, text)
		found, err := found(at, c.kind, statusLived).mutants(tree, "pkg/p")
		if err != nil {
			t.Fatal(err)
		}
		want := site{File: "pkg/p/p.go", Function: c.function, Code: c.code, Becomes: c.becomes}
		if len(found) != 1 || found[0].site != want {
			t.Errorf("%s: %+v, want %+v", text, found, want)
		}
	}
	for _, bad := range []struct {
		at   token.Position
		kind string
	}{{token.Position{Line: 1, Column: 1}, "ARITHMETIC_BASE"}, {position(t, "++"), "ARITHMETIC_BASE"}} {
		if _, err := found(bad.at, bad.kind, statusLived).mutants(tree, "pkg/p"); err == nil {
			t.Errorf("%+v was taken for a mutant", bad)
		}
	}
}

func found(at token.Position, kind, status string) *outcome {
	o := &outcome{}
	o.Files = append(o.Files, struct {
		Name      string     `json:"file_name"`
		Mutations []mutation `json:"mutations"`
	}{"p.go", []mutation{{kind, status, at.Line, at.Column}}})
	return o
}

// Each survivor needs a reason, and each reason needs a survivor.
func TestSum(t *testing.T) {
	t.Parallel()
	at := func(code string) site { return site{File: "pkg/p/p.go", Function: "f", Code: code, Becomes: ">="} }
	made := func(killed, lived, unreached int) []mutant {
		var out []mutant
		for status, n := range map[string]int{
			statusKilled: killed, statusLived: lived,
			statusNot: unreached, statusNotViable: 50,
		} {
			for range n {
				out = append(out, mutant{site: at(status), status: status})
			}
		}
		return out
	}
	why := []reason{{site: at(statusLived), Reason: "the same"}}
	stale := []reason{{site: at("another"), Reason: "no more"}}
	other := []reason{{site: site{File: "pkg/pp/p.go", Code: "x", Becomes: "-"}, Reason: "of another package"}}
	for name, c := range map[string]struct {
		found  []mutant
		why    []reason
		missed bool
	}{
		"all killed":               {made(10, 0, 0), nil, false},
		"nothing to mutate":        {nil, nil, false},
		"a survivor with reason":   {made(19, 1, 1), why, false},
		"a survivor without":       {made(99, 1, 0), nil, true},
		"too many survivors":       {made(18, 1, 0), why, true},
		"too much is not reached":  {made(18, 0, 1), nil, true},
		"a stale reason":           {made(10, 0, 0), stale, true},
		"a reason of another":      {made(10, 0, 0), other, false},
		"tests that took too long": {append(made(99, 0, 0), mutant{site: at("x"), status: statusTimedOut}), nil, true},
	} {
		s := sum("pkg/p", "", c.found, c.why)
		var out strings.Builder
		s.print(&out)
		if s.missed() != c.missed {
			t.Errorf("%s: missed %t, want %t:\n%s", name, s.missed(), c.missed, out.String())
		}
		if len(c.why) > 0 && c.why[0].File == "pkg/p/p.go" && !strings.Contains(out.String(), c.why[0].Code) {
			t.Errorf("%s: the log does not speak of the reason:\n%s", name, out.String())
		}
	}
	if s := sum("pkg/p", "other", nil, stale); len(s.stale) > 0 {
		t.Error("a reason is called stale although its file was left out")
	}
}

// The checked-in reasons can be read, and name existing files.
func TestReasons(t *testing.T) {
	t.Parallel()
	why, err := readReasons("reasons.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range why {
		src, err := os.ReadFile(filepath.Join("..", "..", r.File))
		if err != nil {
			t.Error(err)
			continue
		}
		sites, err := sitesOf(src)
		if err != nil {
			t.Fatal(err)
		}
		known := false
		for _, at := range sites {
			known = known || at.Function == r.Function && at.Code == r.Code
		}
		if !known {
			t.Errorf("nothing in %s is like that any more: %s", r.File, r.site)
		}
	}
	for name, text := range map[string]string{
		"unknown field": "- {file: a, code: b, becomes: c, reason: d, line: 3}",
		"no reason":     "- {file: a, code: b, becomes: c}",
		"twice":         "- &r {file: a, code: b, becomes: c, reason: d}\n- *r",
		"no list":       "file: a",
	} {
		file := filepath.Join(t.TempDir(), "reasons.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readReasons(file); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := readReasons("nowhere.yaml"); err == nil {
		t.Error("a missing file was accepted")
	}
}

// The exit code shows gremlins whether tests noticed a mutant, or whether it does not compile. Only the tests that
// reach the mutant run.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	const code, module = "package two\n\nfunc two() int { return 1 + 1 }\n\nfunc three() int {\n\treturn 1 + 2\n}\n",
		"example.com/m"
	tests := `package two

import "testing"

func TestTwo(t *testing.T) {
	println("TestTwo runs")
	if two() != 2 {
		t.Fail()
	}
}

func TestThree(t *testing.T) {
	println("TestThree runs")
	if three() < 0 {
		t.Fail()
	}
}
`
	write := func(dir, code string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, "two"), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{
			"go.mod": "module " + module + "\n\ngo 1.24\n", "two/two.go": code, "two/two_test.go": tests,
		} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	tree := filepath.Join(t.TempDir(), "tree")
	write(tree, code)
	bin := t.TempDir()
	env, err := shimmed(bin, tree)
	if err != nil {
		t.Fatal(err)
	}
	run := func(dir string, args ...string) (exit int, out string) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "go"), args...)
		cmd.Dir, cmd.Env = dir, env
		text, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(text)
	}
	if exit, out := run(tree, "test", "-cover", "-coverprofile", filepath.Join(bin, "profile"), "./..."); exit != 0 {
		t.Fatalf("coverage: exit code %d: %s", exit, out)
	}
	for name, c := range map[string]struct {
		from, to string
		want     int
		runs     string
	}{
		"no test fails":       {"1 + 2", "1 - 2 + 2", 0, "TestThree"},
		"a test fails":        {"1 + 1", "1 - 1", 1, "TestTwo"},
		"a test panics":       {"return 1 + 1", "panic(1 - 1)", 1, "TestTwo"},
		"it does not compile": {"1 + 1", `len("1" - "1")`, exitNotViable, ""},
	} {
		worker := filepath.Join(t.TempDir(), "worker")
		write(worker, strings.Replace(code, c.from, c.to, 1))
		exit, out := run(worker, "test", "-failfast", module+"/two")
		if exit != c.want {
			t.Errorf("%s: exit code %d, want %d:\n%s", name, exit, c.want, out)
		}
		for _, test := range []string{"TestTwo", "TestThree"} {
			if ran := strings.Contains(out, test+" runs"); ran != (test == c.runs) {
				t.Errorf("%s: %s ran: %t\n%s", name, test, ran, out)
			}
		}
	}
}

// Rapid's flags are given only if every package below knows them.
func TestFlags(t *testing.T) {
	t.Parallel()
	tree := t.TempDir()
	for file, text := range map[string]string{
		"go.mod": "module example.com/m\n", "pkg/a/a_test.go": "import \"pgregory.net/rapid\"",
		"pkg/b/b_test.go": "package b", "pkg/a/b/b.go": "package b",
	} {
		path := filepath.Join(tree, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for pattern, want := range map[string]bool{
		"example.com/m/pkg/a": true, "./pkg/a/...": true, "example.com/m/pkg/b": false,
		"./pkg/...": false, "example.com/m/pkg/a/b": false,
	} {
		flags, err := testFlags(tree, pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(flags, "-rapid.seed=1"); got != want {
			t.Errorf("%s: %v", pattern, flags)
		}
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	reach := func(from, to int) map[string][]cover.ProfileBlock {
		return map[string][]cover.ProfileBlock{"p.go": {{StartLine: from, EndLine: to, Count: 1}}}
	}
	tests := []test{
		{"Slow", quick + 1, reach(1, 10)},
		{"Quick", quick, reach(10, 10)},
		{"Beside", 0, reach(11, 12)},
		{"Other", 0, map[string][]cover.ProfileBlock{"q.go": {{StartLine: 1, EndLine: 20}}}},
	}
	first, then := choose(tests, "p.go", 10)
	if len(first) != 1 || first[0].Name != "Quick" || len(then) != 1 || then[0].Name != "Slow" {
		t.Errorf("first %v, then %v", first, then)
	}
}

// Gremlins also changes white space in lines before the mutant.
func TestTheMutatedLineIsFoundAmongOtherWhiteSpace(t *testing.T) {
	t.Parallel()
	const old = "package p\n\nvar a = 1 // one\n\nfunc f() bool { return a == 1 }\n"
	now := strings.Replace(old, " // one", "\t// one", 1)
	if line := firstChange([]byte(old), []byte(now)); line != 0 {
		t.Errorf("white space is a change in line %d", line)
	}
	if line := firstChange([]byte(old), []byte(strings.Replace(now, "==", "!=", 1))); line != 5 {
		t.Errorf("line %d, want 5", line)
	}
}
