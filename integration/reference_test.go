package integration

import (
	"flag"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/integration/golden"
	"github.com/rcfarm/rcfarm/integration/reference"
	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rcctl"
)

var update = flag.Bool("update", false, "write docs/reference anew")

// docs/reference describes the present programs. `make reference` writes docs/reference.
func TestReference(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := reference.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, pages, *update, "reference")
}

// The runbook describes every condition and every alert.
func TestRunbookHasEveryCondition(t *testing.T) {
	t.Parallel()
	_, text, _ := strings.Cut(read(t, "docs", "runbook.md"), "\n## Conditions and alerts\n")
	text, _, _ = strings.Cut(text, "\n## ")
	want := texts(field.Each(rc.Kinds, func(k rc.Kind) rc.ConditionType { return k.Type }))
	var found []string
	for _, part := range strings.Split(text, "\n### ")[1:] {
		heading, body, _ := strings.Cut(part, "\n")
		name := strings.Trim(heading, "`")
		found = append(found, name)
		meaning, _, _ := strings.Cut(body, "\n- **Look**: ")
		if len(strings.TrimSpace(meaning)) < 20 || strings.Count(body, "\n- **Do**: ") != 1 ||
			strings.Count(body, "\n- **Do not** ") != 1 || meaning == body {
			t.Errorf("the runbook does not say of %s what it means, where to look, what to do and what not to do", name)
		}
	}
	slices.Sort(found)
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("conditions and alerts are -, docs/runbook.md has +:\n%s", diff)
	}
}

// Every row of the runbook that must have a cure has one.
func TestCuresAreDocumented(t *testing.T) {
	t.Parallel()
	var tables, rows int
	what := -1 // column of the table that is being read; negative: none
	for line := range strings.SplitSeq(read(t, "docs", "runbook.md"), "\n") {
		cells := strings.Split(line, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case !strings.HasPrefix(line, "|"):
			what = -1
		case slices.Contains(cells, "what to do"):
			what = slices.Index(cells, "what to do")
			tables++
		case what >= 0:
			rows++
			if len(cells) <= what || len(cells[what]) < 3 {
				t.Errorf("docs/runbook.md does not say what to do: %s", line)
			}
		}
	}
	if tables < 3 || rows < 40 {
		t.Errorf("%d rows in %d tables were looked at", rows, tables)
	}
}

// The runbook has a cure for every metric, and the metrics in documents exist.
func TestMetricsOfTheDocsExist(t *testing.T) {
	t.Parallel()
	real := matches("(?m)^\\| `(rcfarm_[a-z_]+)` \\|", read(t, "docs", "reference", "metrics.md"))
	cures := matches("(?m)^\\| `(rcfarm_[a-z_]+)` \\| .{3,} \\|$", read(t, "docs", "runbook.md"))
	if diff := cmp.Diff(real, cures); diff != "" {
		t.Errorf("the metrics are -, docs/runbook.md says what to do about +:\n%s", diff)
	}
	pages(t, func(path, text string) {
		for _, name := range matches(`\b(rcfarm_(?:farm|rollout|preparer)_[a-z_]*[a-z])\b`, text) {
			if !slices.Contains(real, name) && path != filepath.Join("docs", "changelog.md") {
				t.Errorf("%s: there is no metric %s", path, name)
			}
		}
	})
}

func pages(t *testing.T, visit func(path, text string)) {
	t.Helper()
	sources(t, func(path, text string) {
		if path == "README.md" ||
			strings.HasPrefix(path, "docs"+string(filepath.Separator)) && filepath.Ext(path) == ".md" {
			visit(path, text)
		}
	})
}

// The commands and flags in documents exist.
func TestCommandsOfTheDocsExist(t *testing.T) {
	t.Parallel()
	var flags []string
	known := map[string]bool{}
	var collect func(name string, commands []*cli.Command)
	collect = func(name string, commands []*cli.Command) {
		for _, c := range commands {
			for _, f := range c.Flags {
				flags = append(flags, f.Names()...)
			}
			known[name+" "+c.Name] = len(c.Subcommands) > 0
			collect(name+" "+c.Name, c.Subcommands)
		}
	}
	for _, program := range []*cli.App{rcctl.App(), app.FarmCommand(nil), app.PreparerCommand(nil, nil)} {
		for _, f := range program.Flags {
			flags = append(flags, f.Names()...)
		}
		collect(program.Name, program.Commands)
	}
	// flags of git and curl, and removed flags
	others := regexp.MustCompile("^(help|version|tags|always|dirty|runtime|cacert|artifact-check-every)$")
	command := regexp.MustCompile(`\brcctl ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?`)
	pages(t, func(path, text string) {
		if dir := filepath.Base(filepath.Dir(path)); dir == "adr" || dir == "reference" {
			return // history, and the programs' own texts
		}
		for _, code := range regexp.MustCompile("`[^`\n]+`|(?m)^ *(?:bin/)?rcctl .*$|(?m)^\\$ .*$").FindAllString(text,
			-1) {
			for _, m := range command.FindAllStringSubmatch(code, -1) {
				group, found := known["rcctl "+m[1]]
				_, leaf := known["rcctl "+m[1]+" "+m[2]]
				if !found || group && m[2] != "" && !leaf {
					t.Errorf("%s: there is no command %q in %s", path, m[0], code)
				}
			}
			for _, name := range matches(`(?:^|[ \x60])--([a-z][a-z-]+)`, code) {
				if !slices.Contains(flags, name) && !others.MatchString(name) {
					t.Errorf("%s: no program has the flag --%s: %s", path, name, code)
				}
			}
		}
	})
}

// Every variable that the programs read is in docs/reference/environment.md.
func TestVariablesOfTheProgramsAreDocumented(t *testing.T) {
	t.Parallel()
	text := read(t, "docs", "reference", "environment.md")
	sources(t, func(path, source string) {
		if strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(path, "pkg") && !strings.HasPrefix(path, "cmd") {
			return
		}
		for _, name := range append(matches(`os\.(?:Getenv|LookupEnv)\("([A-Z_]+)"\)`, source),
			matches(`EnvVars: \[\]string\{"([A-Z_]+)"\}`, source)...) {
			if !strings.Contains(text, "`"+name+"`") {
				t.Errorf("%s reads %s, which docs/reference/environment.md does not have", path, name)
			}
		}
	})
}
