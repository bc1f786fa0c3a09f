package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

type mutant struct {
	site
	status string
	line   int
}

// site describes a mutant's place without line numbers, so that it is found again when lines have moved.
type site struct {
	File     string `json:"file"`     // from the module's root
	Function string `json:"function"` // method or function, "" outside of any
	Code     string `json:"code"`     // the smallest expression or statement around the operator, on one line
	Becomes  string `json:"becomes"`  // the operator that replaces it
}

func (s site) String() string {
	where := s.File
	if s.Function != "" {
		where += " " + s.Function
	}
	return fmt.Sprintf("%s: %s, with %s", where, s.Code, s.Becomes)
}

// Gremlins' results. A mutant that never ends is killed by the limits of the shim. Tests that took too long for another
// reason have not judged the mutant.
const (
	statusKilled   = "KILLED"
	statusTimedOut = "TIMED OUT"
	statusLived    = "LIVED"
	statusNot      = "NOT COVERED"

	statusNotViable = "NOT VIABLE" // it does not compile
)

type outcome struct {
	Files []struct {
		Name      string     `json:"file_name"` // below the package that was mutated
		Mutations []mutation `json:"mutations"`
	} `json:"files"`
}

type mutation struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

func (o *outcome) mutants(tree, pkg string) ([]mutant, error) {
	var out []mutant
	for _, f := range o.Files {
		name := path.Join(pkg, f.Name)
		src, err := os.ReadFile(filepath.Join(tree, name))
		if err != nil {
			return nil, err
		}
		sites, err := sitesOf(src)
		if err != nil {
			return nil, err
		}
		for _, m := range f.Mutations {
			at, known := sites[place{m.Line, m.Column}]
			if !known {
				return nil, fmt.Errorf("%s:%d:%d: no operator stands there", name, m.Line, m.Column)
			}
			at.File = name
			if at.Becomes, err = becomes(m.Type, at.Becomes); err != nil {
				return nil, fmt.Errorf("%s:%d:%d: %w", name, m.Line, m.Column, err)
			}
			out = append(out, mutant{site: at, status: m.Status, line: m.Line})
		}
	}
	slices.SortFunc(out, func(a, b mutant) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		return a.line - b.line
	})
	return out, nil
}

type place struct{ line, column int }

// sitesOf returns every operator of a source, with the operator itself in Becomes.
func sitesOf(src []byte) (map[place]site, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", src, 0)
	if err != nil {
		return nil, err
	}
	out := map[place]site{}
	var failed error
	for _, decl := range file.Decls {
		function := ""
		if f, is := decl.(*ast.FuncDecl); is {
			function = f.Name.Name
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			pos, tok := operator(n)
			if !pos.IsValid() {
				return true
			}
			var code bytes.Buffer
			failed = format.Node(&code, fset, n)
			at := fset.Position(pos)
			out[place{at.Line, at.Column}] = site{
				Function: function, Code: strings.Join(strings.Fields(code.String()), " "), Becomes: tok.String(),
			}
			return failed == nil
		})
	}
	return out, failed
}

func operator(n ast.Node) (token.Pos, token.Token) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		return n.OpPos, n.Op
	case *ast.UnaryExpr:
		return n.OpPos, n.Op
	case *ast.IncDecStmt:
		return n.TokPos, n.Tok
	case *ast.AssignStmt:
		return n.TokPos, n.Tok
	case *ast.BranchStmt:
		return n.TokPos, n.Tok
	}
	return token.NoPos, token.ILLEGAL
}

func becomes(kind, op string) (string, error) {
	to := map[string]map[string]string{
		"ARITHMETIC_BASE":       {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*"},
		"CONDITIONALS_BOUNDARY": {">=": ">", ">": ">=", "<=": "<", "<": "<="},
		"CONDITIONALS_NEGATION": {"==": "!=", "!=": "==", ">=": "<", "<": ">=", ">": "<=", "<=": ">"},
		"INCREMENT_DECREMENT":   {"++": "--", "--": "++"},
		"INVERT_NEGATIVES":      {"-": "+"},
	}[kind][op]
	if to == "" {
		return "", fmt.Errorf("it is not known what %s makes of %s", kind, op)
	}
	return to, nil
}

func excluded(dir, only string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	var out []string
	for _, f := range files {
		if name := filepath.Base(f); !strings.Contains(name, only) && !strings.HasSuffix(name, "_test.go") {
			out = append(out, "^"+strings.ReplaceAll(name, ".", "[.]")+"$")
		}
	}
	return out, err
}
