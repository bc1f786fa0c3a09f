package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each named mutant still fits the source, and the result compiles.
func TestNamedMutantsBuild(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	for name, m := range named {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := m.build(t.Context(), root, "", "./"+filepath.Dir(m.file)); err != nil {
				t.Error(err)
			}
		})
	}
	if err := buildNamed(t.Context(), root, "nothing", "", "./cmd/farm"); err == nil ||
		!strings.Contains(err.Error(), "companions, fence") {
		t.Errorf("a mutant that nobody knows: %v", err)
	}
}

// A program that is built with a replacement behaves accordingly, and the source does not change.
func TestAReplacementIsBuiltIn(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const text = "package main\n\nimport \"os\"\n\nfunc main() {\n\tos.Exit(1 + 1)\n}\n"
	for file, content := range map[string]string{"go.mod": "module example.com/m\n\ngo 1.24\n", "main.go": text} {
		if err := os.WriteFile(filepath.Join(root, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(t.TempDir(), "program")
	if err := (replacement{file: "main.go", code: "1 + 1", becomes: "3 + 4"}).build(t.Context(), root, program,
		"."); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	if _ = cmd.Run(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("the program exits with %d, want 7", cmd.ProcessState.ExitCode())
	}
	if now, err := os.ReadFile(filepath.Join(root, "main.go")); err != nil || string(now) != text {
		t.Errorf("the source has become %q, %v", now, err)
	}
	for name, c := range map[string]struct {
		m    replacement
		says string
	}{
		"not there":        {replacement{file: "main.go", code: "2 + 2", becomes: "3"}, "stands there 0 times"},
		"there twice":      {replacement{file: "main.go", code: "1", becomes: "3"}, "stands there 2 times"},
		"no file":          {replacement{file: "other.go", code: "1 + 1", becomes: "3"}, "other.go"},
		"does not compile": {replacement{file: "main.go", code: "1 + 1", becomes: `"1"`}, "exit status"},
	} {
		if err := c.m.build(t.Context(), root, program, "."); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}
