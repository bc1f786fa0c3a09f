package checker

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Each rule has a test that names it. Without one, the checker might never find a violation of it.
func TestEveryRuleHasATest(t *testing.T) {
	t.Parallel()
	source, tests := parsed(t)
	names := constants(source)
	tested := map[string]bool{}
	for _, f := range tests {
		ast.Inspect(f, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			text, known := names.text(e)
			tested[text] = tested[text] || ok && known
			return !known // the parts of a known text are not names of rules
		})
	}
	rules := 0
	for _, f := range source {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 {
				return true
			}
			if method, ok := call.Fun.(*ast.SelectorExpr); !ok || method.Sel.Name != "violated" {
				return true
			}
			promise, known := names.text(call.Args[0])
			rule, alsoKnown := names.text(call.Args[1])
			switch rules++; {
			case !known || !alsoKnown:
				t.Errorf("promise %q and rule %q of a violation must be constant texts, so that this test knows them",
					promise, rule)
			case !tested[promise+" "+rule]:
				t.Errorf("no test names the rule %q", promise+" "+rule)
			}
			return true
		})
	}
	if rules == 0 {
		t.Error("no rule was found; is the method not called violated any more?")
	}
}

func parsed(t *testing.T) (source, tests []*ast.File) {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".go" {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		switch {
		case err != nil:
			t.Fatal(err)
		case strings.HasSuffix(e.Name(), "_test.go"):
			tests = append(tests, f)
		default:
			source = append(source, f)
		}
	}
	return source, tests
}

type texts map[string]string

func constants(files []*ast.File) texts {
	out := texts{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Names) != len(spec.Values) {
				return true
			}
			for i, name := range spec.Names {
				if text, known := out.text(spec.Values[i]); known {
					out[name.Name] = text
				}
			}
			return true
		})
	}
	return out
}

func (t texts) text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, e.Kind == token.STRING && err == nil
	case *ast.Ident:
		text, known := t[e.Name]
		return text, known
	case *ast.BinaryExpr:
		left, ok := t.text(e.X)
		right, alsoOK := t.text(e.Y)
		return left + right, e.Op == token.ADD && ok && alsoOK
	}
	return "", false
}
