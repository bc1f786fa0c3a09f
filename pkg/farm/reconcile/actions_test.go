package reconcile_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
)

// A metric has each value of the list from the start, so that none may be missing from it.
func TestAllActionsIsComplete(t *testing.T) {
	t.Parallel()
	listed := map[string]bool{}
	for _, v := range reconcile.AllActions {
		listed[string(v)] = true
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Action" {
				return true
			}
			for _, value := range spec.Values {
				if lit, ok := value.(*ast.BasicLit); ok {
					text, err := strconv.Unquote(lit.Value)
					if found++; err != nil || !listed[text] {
						t.Errorf("%s is not in AllActions", lit.Value)
					}
				}
			}
			return true
		})
	}
	if found != len(listed) {
		t.Errorf("%d constants, %d in AllActions", found, len(listed))
	}
}

// What dashboards and alerts select by stays as it is, whatever the audit trail calls an action.
func TestLabelsOfActionsStay(t *testing.T) {
	t.Parallel()
	var got []string
	for _, a := range reconcile.AllActions {
		got = append(got, a.Label())
	}
	slices.Sort(got)
	if text := strings.Join(got, " "); text != "adopt expel mark move place release remove repair return shrink stop switch upgrade" {
		t.Error(text)
	}
}
