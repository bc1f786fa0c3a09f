package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// replacement changes one file so that the program breaks a promise. docs/testing.md says what it is for.
type replacement struct {
	file    string // from the module's root
	code    string // must be in the file exactly once
	becomes string
}

var named = map[string]replacement{
	"fence": {
		"pkg/consul/fence.go",
		"return []Op{CheckSession(f.Key, f.Session), CheckIndex(f.Key, f.Index)}",
		`nothing := op("get-or-empty", f.Key, nil, 0, ""); return []Op{nothing, nothing}`,
	},
	// Each revision of a service keeps its own minimum and its own bound.
	"companions": {"pkg/farm/read.go", "if head.RC.Value.Service != nil {", "if false {"},
}

func buildNamed(ctx context.Context, root, name, output, pkg string) error {
	m, known := named[name]
	if !known {
		return fmt.Errorf("no mutant is named %s; there are %s", name,
			strings.Join(slices.Sorted(maps.Keys(named)), ", "))
	}
	if err := m.build(ctx, root, output, pkg); err != nil {
		return fmt.Errorf("mutant %s: %w", name, err)
	}
	return nil
}

// build builds a package with the replacement made in a copy of the file. Without an output, it only compiles.
func (r replacement) build(ctx context.Context, root, output, pkg string) error {
	file, err := filepath.Abs(filepath.Join(root, r.file))
	if err != nil {
		return err
	}
	source, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if n := bytes.Count(source, []byte(r.code)); n != 1 {
		return fmt.Errorf("%s: the code to replace stands there %d times, not once: %s", r.file, n, r.code)
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	changed, overlay := filepath.Join(dir, filepath.Base(r.file)), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(changed, bytes.Replace(source, []byte(r.code), []byte(r.becomes), 1), 0o600); err != nil {
		return err
	}
	says, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(overlay, says, 0o600); err != nil {
		return err
	}
	args := []string{"build", "-overlay", overlay}
	if output != "" {
		if output, err = filepath.Abs(output); err != nil {
			return err
		}
		args = append(args, "-trimpath", "-o", output)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}
