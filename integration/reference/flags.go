package reference

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/rcctl"
)

func bothFlags() []cli.Flag {
	var both []cli.Flag
	others := namesOf(app.PreparerCommand(nil, nil).Flags)
	for _, f := range app.FarmCommand(nil).Flags {
		if slices.Contains(others, f.Names()[0]) {
			both = append(both, f)
		}
	}
	return both
}

func farmFlags() []cli.Flag     { return without(app.FarmCommand(nil).Flags, bothFlags()) }
func preparerFlags() []cli.Flag { return without(app.PreparerCommand(nil, nil).Flags, bothFlags()) }

func without(flags, others []cli.Flag) []cli.Flag {
	names := namesOf(others)
	return slices.DeleteFunc(flags, func(f cli.Flag) bool { return slices.Contains(names, f.Names()[0]) })
}

func namesOf(flags []cli.Flag) []string {
	names := make([]string, len(flags))
	for i, f := range flags {
		names[i] = f.Names()[0]
	}
	return names
}

// said finds a default in a flag's help text, which has it if the flag has no fixed default.
var said = regexp.MustCompile(`^(.*?) \(default: (.*)\)$`)

type flag struct{ names, meaning, value, variables string }

func rowOf(f cli.Flag) (flag, error) {
	shown, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return flag{}, fmt.Errorf("flag %s does not describe itself", f.Names()[0])
	}
	row := flag{meaning: shown.GetUsage()}
	var names []string
	for _, name := range f.Names() {
		names = append(names, "`-"+map[bool]string{true: "-"}[len(name) > 1]+name+"`")
	}
	row.names = strings.Join(names, ", ")
	switch m := said.FindStringSubmatch(row.meaning); {
	case m != nil:
		row.meaning, row.value = m[1], m[2]
	default:
		row.value = defaultOf(f, shown)
	}
	for _, variable := range shown.GetEnvVars() {
		row.variables += "`" + variable + "` "
	}
	return row, nil
}

func defaultOf(f cli.Flag, shown cli.DocGenerationFlag) string {
	text, value := shown.GetDefaultText(), shown.GetValue()
	switch size, ok := f.(*cli.Int64Flag); {
	case shown.TakesValue() && text != "" && text != value && text != strconv.Quote(value):
		return text // the text that replaces the value
	case value == "":
		return ""
	case value == "false":
		return "off"
	case ok && size.Value >= 1<<20:
		return fmt.Sprintf("`%s` (%d MiB)", value, size.Value>>20)
	default:
		return "`" + value + "`"
	}
}

// table leaves hidden flags out. If a flag in others has the same name and another default, the row has both.
func table(flags []cli.Flag, others ...cli.Flag) (string, error) {
	rows := [][]string{{"flag", "meaning", "default", "or the variable"}}
	for _, f := range flags {
		name := f.Names()[0]
		if shown, ok := f.(cli.VisibleFlag); ok && !shown.IsVisible() || name == "help" || name == "version" {
			continue
		}
		row, err := rowOf(f)
		if err != nil {
			return "", err
		}
		if i := slices.Index(namesOf(others), name); i >= 0 {
			other, err := rowOf(others[i])
			if err != nil {
				return "", err
			}
			if other.value != row.value {
				row.value += " (farm), " + other.value + " (preparer)"
			}
		}
		rows = append(rows, []string{row.names, row.meaning, row.value, strings.TrimSpace(row.variables)})
	}
	return markdown(rows), nil
}

// escape keeps text from ending its cell or becoming HTML.
var escape = strings.NewReplacer("|", `\|`, " <", ` \<`, ".<", `.\<`)

// The first row is the header.An empty last column is left out.
func markdown(rows [][]string) string {
	width := len(rows[0])
	if !slices.ContainsFunc(rows[1:], func(row []string) bool { return row[width-1] != "" }) {
		width--
	}
	var b strings.Builder
	for i, row := range rows {
		b.WriteString("|")
		for _, cell := range row[:width] {
			b.WriteString(strings.TrimRight(" "+escape.Replace(cell), " ") + " |")
		}
		b.WriteString("\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat(" --- |", width) + "\n")
		}
	}
	return b.String()
}

func commands() (string, error) {
	program := rcctl.App()
	var b strings.Builder
	fmt.Fprintf(&b, "### `rcctl`\n\n%s", block(program.Description))
	text, err := table(program.Flags)
	b.WriteString("\n" + text)
	err = errors.Join(err, describe(&b, "rcctl", program.Commands))
	return b.String(), err
}

func describe(b *strings.Builder, above string, all []*cli.Command) error {
	for _, c := range all {
		name := above + " " + c.Name
		switch {
		case c.Hidden:
			continue
		case len(c.Subcommands) > 0:
			if err := describe(b, name, c.Subcommands); err != nil {
				return err
			}
			continue
		}
		usage := c.UsageText
		if usage == "" {
			usage = name
		}
		fmt.Fprintf(b, "\n### `%s`\n\n%s\n", name, sentence(c.Usage))
		if len(c.Aliases) > 0 {
			fmt.Fprintf(b, "Also: `%s`.\n", strings.Join(c.Aliases, "`, `"))
		}
		fmt.Fprintf(b, "\n%s", block(usage+"\n\n"+c.Description))
		text, err := table(c.Flags)
		if err != nil {
			return err
		}
		if strings.Count(text, "\n") > 2 { // more than a header
			b.WriteString("\n" + text)
		}
	}
	return nil
}

func block(text string) string { return "```\n" + strings.TrimSpace(text) + "\n```\n" }

func sentence(text string) string {
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

func exitCodes(meanings []string) (string, error) {
	rows := [][]string{{"code", "meaning"}}
	for code, meaning := range meanings {
		rows = append(rows, []string{strconv.Itoa(code), meaning})
	}
	return markdown(rows), nil
}
