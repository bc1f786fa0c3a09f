package rcctl

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// The document in the help of apply is valid.
func TestDocumentOfTheHelpIsValid(t *testing.T) {
	_, text, _ := strings.Cut(applyCommand().Description, "\n\nA document, ")
	_, text, _ = strings.Cut(text, ":\n")
	data, err := document.ToJSON([]byte(strings.Replace(text, "64 hex digits", strings.Repeat("a", 64), 1)),
		"a controller")
	if err != nil {
		t.Fatal(err)
	}
	if spec, err := rc.DecodeSpec(data); err != nil || spec.MinAvailable == nil {
		t.Errorf("%v in\n%s", err, text)
	}
}

// The help of each command has its synopsis and examples, and a script runs each command.
func TestEveryCommand(t *testing.T) {
	scripts := scriptsWithoutHelp(t)
	eachCommand("rcctl", App().Commands, func(name string, c *cli.Command) {
		if !strings.HasPrefix(c.UsageText+" ", name+" ") {
			t.Errorf("%s: its usage text begins otherwise: %q", name, c.UsageText)
		}
		_, examples, found := strings.Cut("\n"+c.Description, "\nExamples:\n  ")
		if !found || !strings.Contains(examples, name) {
			t.Errorf("%s: its description does not end with examples of it after a line \"Examples:\"", name)
		}
		if !regexp.MustCompile(`(?m)\b` + name + `( |$)`).MatchString(scripts) {
			t.Errorf("%s: no script of testdata/script runs it", name)
		}
	})
}

// allowedIn returns the part of an error that lists the commands of a group.
func allowedIn(group string) string {
	var names []string
	for _, c := range App().Command(group).Subcommands {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return "allowed: " + field.Or(names...)
}

// eachCommand calls f for each command that has no subcommands, with the full name of the command.
func eachCommand(parent string, commands []*cli.Command, f func(name string, c *cli.Command)) {
	for _, c := range commands {
		name := parent + " " + c.Name
		if len(c.Subcommands) == 0 {
			f(name, c)
		}
		eachCommand(name, c.Subcommands, f)
	}
}

// scriptsWithoutHelp returns the lines of all scripts that run rcctl. It leaves out lines that ask for help.
func scriptsWithoutHelp(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines,
			regexp.MustCompile(`(?m)^(?:! )?(?:exec|exits \d+) (?:.* )?rcctl .*$`).FindAllString(string(data), -1)...)
	}
	lines = slices.DeleteFunc(lines, regexp.MustCompile(` (-h|--help)\b`).MatchString)
	return strings.Join(lines, "\n")
}

// Errors of each command that writes records report what was written. Each other command is listed here.
func TestEachCommandWritesOrReads(t *testing.T) {
	t.Parallel()
	reads := []string{
		"plan", "rollout list", "rollout status", "history", "diff", "service list", "service schema", "rc get",
		"rc list", "rc status", "rc explain", "rc schema", "sign", "manifest check", "manifest canonical",
		"manifest schema", "pods", "pod describe", "logs", "exec", "place", "nodes", "farms", "farm gate",
		"domain show", "election list", "election show", "audit", "acl policy", "dev",
	}
	eachCommand("rcctl", App().Commands, func(name string, _ *cli.Command) {
		if only := strings.TrimPrefix(name, "rcctl "); only != "help" && writes(name) == slices.Contains(reads, only) {
			t.Errorf("%s: writes is %t; should the list of this test have the command?", name, writes(name))
		}
	})
}
