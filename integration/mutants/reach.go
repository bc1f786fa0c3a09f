package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/cover"
)

func widenFile(profile, tree string) error {
	name, err := moduleName(tree)
	if err != nil {
		return err
	}
	profiles, err := cover.ParseProfiles(profile)
	if err != nil {
		return err
	}
	var out strings.Builder
	out.WriteString("mode: set\n")
	for _, p := range profiles {
		blocks := p.Blocks
		if rest, ours := strings.CutPrefix(p.FileName, name+"/"); ours {
			src, err := os.ReadFile(filepath.Join(tree, rest))
			if err != nil {
				return err
			}
			if blocks, err = widen(src, blocks); err != nil {
				return err
			}
		}
		for _, b := range blocks {
			fmt.Fprintf(&out, "%s:%d.%d,%d.%d %d %d\n", p.FileName, b.StartLine, b.StartCol,
				b.EndLine, b.EndCol, b.NumStmt, b.Count)
		}
	}
	return os.WriteFile(profile, []byte(out.String()), 0o600)
}

// widen adds blocks for code that Go's coverage leaves out because Go counts statements. The conditions of a switch are
// evaluated when the switch is reached, unless an earlier condition holds. So is the condition of an if that contains a
// function. Declarations outside of functions are always evaluated.
func widen(src []byte, blocks []cover.ProfileBlock) ([]cover.ProfileBlock, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", src, 0)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(blocks)
	add := func(n ast.Node) {
		from, to := fset.Position(n.Pos()), fset.Position(n.End())
		out = append(out, cover.ProfileBlock{
			StartLine: from.Line, StartCol: from.Column, EndLine: to.Line, EndCol: to.Column, NumStmt: 1, Count: 1,
		})
	}
	for _, decl := range file.Decls {
		if _, is := decl.(*ast.GenDecl); is {
			add(decl)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			if covers(blocks, fset.Position(n.If)) {
				add(n.Cond)
			}
		case *ast.SwitchStmt:
			if !covers(blocks, fset.Position(n.Switch)) {
				return true
			}
			for _, clause := range n.Body.List {
				for _, condition := range clause.(*ast.CaseClause).List {
					add(condition)
				}
			}
		}
		return true
	})
	return out, nil
}

func covers(blocks []cover.ProfileBlock, at token.Position) bool {
	return slices.ContainsFunc(blocks, func(b cover.ProfileBlock) bool {
		after := at.Line > b.StartLine || at.Line == b.StartLine && at.Column >= b.StartCol
		before := at.Line < b.EndLine || at.Line == b.EndLine && at.Column <= b.EndCol
		return b.Count > 0 && after && before
	})
}
