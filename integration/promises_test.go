package integration

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

func entries(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, text := range strings.Split(read(t, "docs", "promises.md"), "\n### ")[1:] {
		text, _, _ = strings.Cut(text, "\n## ")
		code, _, _ := strings.Cut(text, " ")
		if _, twice := found[code]; twice || !regexp.MustCompile(`^[PR][0-9]+$`).MatchString(code) {
			t.Errorf("docs/promises.md: %q heads an entry, and is no code or one that another entry has", code)
		}
		found[code] = text
	}
	return found
}

// sources calls visit with every file that people wrote, by its path below the root.
func sources(t *testing.T, visit func(path, text string)) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		path, _ := filepath.Rel(root, name)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path == "bin" || strings.HasPrefix(entry.Name(), ".") && path != "."):
			return filepath.SkipDir
		case !entry.Type().IsRegular() || !slices.Contains([]string{".go", ".md", ".yml", ".yaml"},
			filepath.Ext(name)) && entry.Name() != "Makefile":
			return nil
		}
		data, err := os.ReadFile(name)
		visit(path, string(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// prose returns the comments and strings of a Go file by line number, without identifiers.
func prose(text string) map[int]string {
	lines := map[int]string{}
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, []byte(text), nil, scanner.ScanComments)
	for {
		at, kind, literal := s.Scan()
		if kind == token.EOF {
			return lines
		}
		if kind == token.COMMENT || kind == token.STRING {
			for i, line := range strings.Split(literal, "\n") {
				lines[file.Line(at)+i] += " " + line
			}
		}
	}
}

// Every promise and every rule that code or documents cite is in docs/promises.md.
func TestCitedPromisesExist(t *testing.T) {
	t.Parallel()
	known, cited := entries(t), map[string]bool{}
	code := regexp.MustCompile(`\b[PR][0-9]{1,2}\b`)
	sources(t, func(path, text string) {
		lines := map[int]string{}
		if filepath.Ext(path) == ".go" {
			lines = prose(text)
		} else {
			for i, line := range strings.Split(text, "\n") {
				lines[i+1] = line
			}
		}
		for number, line := range lines {
			for _, c := range code.FindAllString(line, -1) {
				cited[c] = cited[c] || path != filepath.Join("docs", "promises.md")
				if _, ok := known[c]; !ok {
					t.Errorf("%s:%d cites %s, which docs/promises.md does not have", path, number, c)
				}
			}
		}
	})
	for c := range known {
		if !cited[c] {
			t.Errorf("docs/promises.md has %s, which nothing cites", c)
		}
	}
	for prefix, n := range map[string]int{"P": 9, "R": 14} {
		for i := range n {
			if c := prefix + strconv.Itoa(i+1); known[c] == "" {
				t.Errorf("docs/promises.md has no entry %s", c)
			}
		}
	}
}

type tree struct {
	packages, tests, scenarios, rules, targets map[string]bool
	declared                                   map[string]bool // each as package.name, without declarations of tests
}

func newTree(t *testing.T) *tree {
	t.Helper()
	have := &tree{
		map[string]bool{},
		map[string]bool{},
		map[string]bool{},
		map[string]bool{},
		map[string]bool{},
		map[string]bool{},
	}
	var checker []*ast.File
	sources(t, func(path, text string) {
		dir := filepath.Dir(path)
		switch {
		case path == "Makefile":
			for _, target := range matches(`(?m)^([a-z0-9-]+):`, text) {
				have.targets[target] = true
			}
			return
		case filepath.Ext(path) != ".go":
			return
		case path == filepath.Join("integration", "e2e", "env_test.go"):
			for _, name := range matches(`(?m)^\t"([a-z-]+)": +[a-zA-Z]+,$`, text) {
				have.scenarios[name] = true
			}
		case strings.HasSuffix(path, "_test.go"):
			for _, name := range matches(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9_]+)\(`, text) {
				have.tests[filepath.Base(dir)+"."+name] = true
			}
		case dir == filepath.Join("integration", "checker"):
			file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
			if err != nil {
				t.Fatal(err)
			}
			checker = append(checker, file)
		}
		have.packages[filepath.Base(dir)] = true
		if strings.HasPrefix(path, "pkg"+string(filepath.Separator)) && !strings.HasSuffix(path, "_test.go") {
			for _, name := range declared(t, path, text) {
				have.declared[filepath.Base(dir)+"."+name] = true
			}
		}
	})
	have.rules = rulesOf(checker)
	return have
}

func declared(t *testing.T, path, text string) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	add := func(found ...*ast.Ident) {
		for _, name := range found {
			names = append(names, name.Name)
		}
	}
	fields := func(list *ast.FieldList) {
		for _, f := range list.List {
			add(f.Names...)
		}
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			add(f.Name)
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				add(n.Name)
			case *ast.ValueSpec:
				add(n.Names...)
			case *ast.StructType:
				fields(n.Fields)
			case *ast.InterfaceType:
				fields(n.Methods)
			}
			return true
		})
	}
	return names
}

// rulesOf returns the rules of the checker, each with its promise: the arguments of violated. Another test checks that
// these are constants.
func rulesOf(files []*ast.File) map[string]bool {
	constants, rules := map[string]string{}, map[string]bool{}
	text := func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			value, _ := strconv.Unquote(e.Value)
			return value
		case *ast.Ident:
			return constants[e.Name]
		}
		return ""
	}
	each := func(visit func(ast.Node)) {
		for _, f := range files {
			ast.Inspect(f, func(n ast.Node) bool { visit(n); return true })
		}
	}
	each(func(n ast.Node) {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == len(spec.Values) {
			for i, name := range spec.Names {
				constants[name.Name] = text(spec.Values[i])
			}
		}
	})
	each(func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 2 {
			return
		}
		if method, ok := call.Fun.(*ast.SelectorExpr); ok && method.Sel.Name == "violated" {
			rules[text(call.Args[0])+" "+text(call.Args[1])] = true
		}
	})
	return rules
}

func (t *tree) has(name string) bool {
	kind, rest, _ := strings.Cut(name, " ")
	switch kind {
	case "e2e":
		return t.scenarios[rest]
	case "checker":
		for rule := range t.rules {
			if group, _, _ := strings.Cut(rule, " "); rule == rest || group == rest {
				return true
			}
		}
		return false
	case "make":
		return t.targets[rest]
	}
	return t.tests[name]
}

// Every entry of docs/promises.md names packages and code that keep the promise, and tests that fail when it is broken.
// All of these exist.
func TestPromisesNameTheirTests(t *testing.T) {
	t.Parallel()
	have := newTree(t)
	if len(have.rules) < 40 || len(have.scenarios) < 60 || len(have.tests) < 1000 {
		t.Fatalf("found %d rules, %d scenarios and %d tests", len(have.rules), len(have.scenarios), len(have.tests))
	}
	where := regexp.MustCompile("`([^`]+)`(?:\\s\\(([^)]*)\\))?") // a package, and names in it
	for code, text := range entries(t) {
		_, kept, ok := strings.Cut(text, "\n**Kept in** ")
		kept, shown, alsoOK := strings.Cut(kept, "\n**Shown by** ")
		if !ok || !alsoOK || !strings.Contains(text, "\n**Bounds.** ") {
			t.Errorf("%s: an entry has Bounds, Kept in and Shown by, each on a line of its own", code)
		}
		packages := where.FindAllStringSubmatch(kept, -1)
		for _, p := range packages {
			if !have.packages[p[1]] {
				t.Errorf("%s: there is no package %s, which should keep it", code, p[1])
			}
			for _, name := range matches("`([A-Za-z0-9]+)`", p[2]) {
				if !have.declared[p[1]+"."+name] {
					t.Errorf("%s: package %s has no %s, which should keep it", code, p[1], name)
				}
			}
		}
		tests := 0
		for _, name := range matches("`([^`]+)`", shown) {
			if !have.has(name) {
				t.Errorf("%s: there is no %s, which should fail when it is broken", code, name)
			}
			if !strings.HasPrefix(name, "make ") {
				tests++
			}
		}
		if len(packages) == 0 || tests == 0 {
			t.Errorf("%s names %d packages and %d tests, want one at least of each", code, len(packages), tests)
		}
		group := "checker " + code
		if names := matches("`([^`]+)`", shown); have.has(group) && !slices.Contains(names, group) {
			t.Errorf("%s does not name %s, and the checker has rules of it", code, group)
		}
		for _, label := range []string{"Bounds", "Kept in", "Shown by"} {
			if n := strings.Count(text, "**"+label); n != 1 {
				t.Errorf("%s has %s %d times", code, label, n)
			}
		}
	}
}

// Every test that another document names in the same way exists, too.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	have, looked := newTree(t), 0
	name := regexp.MustCompile("`([a-z0-9]+\\.(?:Test|Fuzz)[A-Za-z0-9_]+|e2e [a-z-]+|checker [PR][0-9]+(?: [^`]+)?)`")
	sources(t, func(path, text string) {
		if filepath.Ext(path) != ".md" {
			return
		}
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			if looked++; !have.has(m[1]) {
				t.Errorf("%s names %s, which does not exist", path, m[1])
			}
		}
	})
	if looked < 200 {
		t.Errorf("%d names were looked at", looked)
	}
}

// If a document links to another document, the other document exists, and it has the heading that the link names.
func TestLinksBetweenDocuments(t *testing.T) {
	t.Parallel()
	headings, texts := map[string][]string{}, map[string]string{}
	drop := regexp.MustCompile("[^a-z0-9 _-]")
	sources(t, func(path, text string) {
		if filepath.Ext(path) != ".md" {
			return
		}
		texts[path] = text
		for _, heading := range matches("(?m)^#+ (.+)$", text) {
			headings[path] = append(headings[path],
				strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(heading), ""), " ", "-"))
		}
	})
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for path, text := range texts {
		for _, other := range matches(`\]\(([^)#: ]+)(?:#[^)]*)?\)`, text) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(path), other)); err != nil {
				t.Errorf("%s links to what is not there: %v", path, err)
			}
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#: ]*\.md)?(?:#([^)]+))?\)`).FindAllStringSubmatch(text, -1) {
			target := path
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(path), filepath.FromSlash(m[1]))
			}
			looked++
			if _, ok := texts[target]; !ok {
				t.Errorf("%s links to %s, which does not exist", path, m[1])
			} else if m[2] != "" && !slices.Contains(headings[target], m[2]) {
				t.Errorf("%s links to %s#%s, which has no such heading", path, m[1], m[2])
			}
		}
	}
	if looked < 50 {
		t.Errorf("%d links were looked at", looked)
	}
}
