package scheduler_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// A metric has each value of the list from the start, so that none may be missing from it.
func TestAllReasonsIsComplete(t *testing.T) {
	t.Parallel()
	listed := map[string]bool{}
	for _, v := range scheduler.AllReasons {
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
			if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Reason" {
				return true
			}
			for _, value := range spec.Values {
				if lit, ok := value.(*ast.BasicLit); ok {
					text, err := strconv.Unquote(lit.Value)
					if found++; err != nil || !listed[text] {
						t.Errorf("%s is not in AllReasons", lit.Value)
					}
				}
			}
			return true
		})
	}
	if found != len(listed) {
		t.Errorf("%d constants, %d in AllReasons", found, len(listed))
	}
}

// What people are told of a status follows from its text.
func TestReasonsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text    string
		r       scheduler.Reasons
		foreign string
	}{
		"none":            {"", scheduler.Reasons{}, ""},
		"ours":            {"max_per_node: 12, not alive: 1", scheduler.Reasons{scheduler.MaxPerNode: 12, scheduler.NotAlive: 1}, ""},
		"somebody else's": {"kept free: 2, selector: 1, zone, not rack: a: 3", scheduler.Reasons{"kept free": 2, scheduler.Selector: 1, "zone, not rack: a": 3}, "kept free: 2, zone, not rack: a: 3"},
	} {
		got := scheduler.ParseReasons(tt.text)
		if !maps.Equal(got, tt.r) || got.String() != tt.text || got.Others().String() != tt.foreign {
			t.Errorf("%s: %q, of others %q", name, got, got.Others())
		}
	}
	for _, text := range []string{"kept free: 2, zo", "kept free: 2, zone: 99999999999999999999"} {
		if got := scheduler.ParseReasons(text); !maps.Equal(got, scheduler.Reasons{"kept free": 2}) {
			t.Errorf("%q is read as %q", text, got)
		}
	}
}
