package integration_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// go.mod separates the modules of the programs from those that only tests, benchmarks and tools need.
func TestModulesOfThePrograms(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	file, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		"{{with .Module}}{{.Path}}{{end}}", "./cmd/...")
	list.Dir, list.Stderr = "..", os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	linked := strings.Fields(string(out))
	if len(linked) == 0 {
		t.Fatal("no program is made of any module")
	}
	end := strings.Index(string(text), "// What tests, benchmarks and tools")
	if end < 0 {
		t.Fatal("go.mod does not say what only tests need")
	}
	for _, r := range file.Require {
		program, is := r.Syntax.Start.Byte < end, slices.Contains(linked, r.Mod.Path)
		if !r.Indirect && program != is {
			t.Errorf("%s is in a program: %v; go.mod has it among those that are: %v", r.Mod.Path, is, program)
		}
	}
}
