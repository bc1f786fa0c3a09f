package rcctl

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// flagsOf returns the flags of a program and of all its commands that are not hidden, by the full name of the command. A
// command without flags has none.
func flagsOf(name string, flags []cli.Flag, commands []*cli.Command) map[string][]cli.Flag {
	all := map[string][]cli.Flag{}
	if len(flags) > 0 {
		all[name] = flags
	}
	for _, c := range commands {
		if c.Hidden {
			continue
		}
		maps.Copy(all, flagsOf(name+" "+c.Name, c.Flags, c.Subcommands))
	}
	return all
}

// documentedFlags returns the rows of docs/operating.md about the flags of rcctl, by the full name of the command, then by
// all names of the flag as they stand there.
func documentedFlags(t *testing.T) map[string]map[string]string {
	t.Helper()
	data, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(data), "\n## Flags of rcctl\n")
	if !found {
		t.Fatal("docs/operating.md has no section on the flags of rcctl")
	}
	text, _, _ = strings.Cut(text, "\n## ")
	all := map[string]map[string]string{}
	for i, part := range strings.Split(text, "\n### ") {
		heading, table, _ := strings.Cut(part, "\n")
		commands := []string{"rcctl"}
		if i > 0 {
			commands = strings.Split(strings.ReplaceAll(heading, "`", ""), ", ")
		}
		rows := map[string]string{}
		for _, row := range regexp.MustCompile("(?m)^\\| (`-[^|]*) \\|.*$").FindAllStringSubmatch(table, -1) {
			rows[row[1]] = row[0]
		}
		for _, command := range commands {
			if all[command] != nil {
				t.Errorf("docs/operating.md has the flags of %s twice", command)
			}
			all[command] = rows
		}
	}
	return all
}

// The document in the help of apply is valid.
func TestDocumentOfTheHelpIsValid(t *testing.T) {
	_, text, _ := strings.Cut(applyCommand().Description, "\n\nA document, ")
	_, text, _ = strings.Cut(text, ":\n")
	data, err := document.ToJSON([]byte(strings.Replace(text, "64 hex digits", strings.Repeat("a", 64), 1)), "a controller")
	if err != nil {
		t.Fatal(err)
	}
	if spec, err := rc.DecodeSpec(data); err != nil || spec.MinAvailable == nil {
		t.Errorf("%v in\n%s", err, text)
	}
}

// Every flag of every command is in docs/operating.md with its default and its variables, and every one that it lists exists.
func TestFlagsAreDocumented(t *testing.T) {
	app := newApp(&stdio{})
	documented := documentedFlags(t)
	var real, listed []string
	for command, flags := range flagsOf(app.Name, app.Flags, app.Commands) {
		for _, f := range flags {
			names := make([]string, len(f.Names()))
			for i, name := range f.Names() {
				names[i] = "`-" + map[bool]string{true: "-"}[len(name) > 1] + name + "`"
			}
			name := strings.Join(names, ", ")
			real = append(real, command+" "+name)
			row, found := documented[command][name]
			if !found {
				continue // said below
			}
			shown, ok := f.(cli.DocGenerationFlag)
			if !ok {
				t.Fatalf("%s %s does not tell its default", command, name)
			}
			if value := shown.GetValue(); value != "" && !strings.HasSuffix(row, "| `"+value+"` |") {
				t.Errorf("%s: the default is %s, docs/operating.md says %s", command, value, row)
			}
			for _, variable := range shown.GetEnvVars() {
				if !strings.Contains(row, "`"+variable+"`") {
					t.Errorf("%s: no %s in %s", command, variable, row)
				}
			}
		}
	}
	for command, rows := range documented {
		for name := range rows {
			listed = append(listed, command+" "+name)
		}
	}
	slices.Sort(real)
	slices.Sort(listed)
	if diff := cmp.Diff(real, listed); diff != "" {
		t.Errorf("rcctl has -, docs/operating.md lists +:\n%s", diff)
	}
}
