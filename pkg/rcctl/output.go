package rcctl

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

var formats = [...]string{"table", "json", "yaml"}

// wideFormat is a table with all columns, of the commands that have one.
const wideFormat = "wide"

func outputFlag() cli.Flag { return formatFlag(formats[:]...) }

func wideOutputFlag() cli.Flag { return formatFlag(formats[0], wideFormat, formats[1], formats[2]) }

// formatFlag is -o. A format that a command does not have is refused before anything else is looked at.
func formatFlag(allowed ...string) cli.Flag {
	return &cli.StringFlag{
		Name: "output", Aliases: []string{"o"}, Value: allowed[0], Usage: "`FORMAT`: " + field.Or(allowed...),
		Action: func(c *cli.Context, format string) error {
			if !slices.Contains(allowed, format) {
				return badFlag(c, "--output", format, field.Or(allowed...))
			}
			return nil
		},
	}
}

// print writes a view in the format that the command line asks for, and says what could not be read. table is called for the formats
// "table" and "wide" only.
func (s *conn) print(view any, corrupt []error, table func(io.Writer) error) error {
	if err := s.write(s.String("output"), view, table); err != nil {
		return err
	}
	return s.warn(corrupt)
}

func (std *stdio) write(format string, view any, table func(io.Writer) error) error {
	if format == formats[0] || format == wideFormat {
		return table(std.out)
	}
	out, err := inspect.Indented(view)
	if err == nil && format == "yaml" {
		out, err = yaml.JSONToYAML(out)
	}
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err = std.out.Write(out)
	return err
}

// colour is an ANSI foreground colour. All are equally long, so that a column in which every cell has one stays aligned.
type colour string

const (
	plainColour colour = "\x1b[39m"
	green       colour = "\x1b[32m"
	yellow      colour = "\x1b[33m"
	red         colour = "\x1b[31m"
)

// table is rows of cells below a header. The cells of one column may have colours.
type table struct {
	header []string
	rows   [][]string
	// paint is the column whose cells colourOf colours; negative: none.
	paint    int
	colourOf func(cell string) colour
}

// write prints the table. Empty cells become "-".
func (tb *table) write(w io.Writer, colours bool) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for i, row := range append([][]string{tb.header}, tb.rows...) {
		cells := make([]string, len(row))
		for j, cell := range row {
			cells[j] = clean(cell)
			if colours && j == tb.paint {
				shade := plainColour
				if i > 0 {
					shade = tb.colourOf(cell)
				}
				cells[j] = string(shade) + cells[j] + string(plainColour)
			}
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// clean makes text from elsewhere harmless for a terminal and a table.
func clean(text string) string {
	if text == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// rcColour is the colour of a controller's state.
func rcColour(state string) colour {
	switch state {
	case inspect.Deleting, inspect.Disabled, inspect.Pending, inspect.Progressing:
		return yellow
	}
	switch rc.SeverityOf(rc.ConditionType(state)) {
	case rc.Good:
		return green
	case rc.Passing:
		return yellow
	default:
		return red
	}
}

// cureOf says, by the first part of its key below the prefix, what becomes of a record that cannot be read.
var cureOf = map[string]string{
	"reality":   "the preparer of the node writes an unreadable report (reality/) again within 90 s; its pods run on meanwhile",
	"nodes":     "remove the unreadable record of a node (consul kv delete KEY); its preparer writes it again; its pods run on meanwhile",
	"status":    "the owner writes an unreadable status again with its next look at the controller",
	"manifests": "apply the document of a controller whose manifest is unreadable again (rcctl apply -f FILE); its pods run on meanwhile",
}

// warnOf says what is valid in a manifest and will not work on most nodes.
func (std *stdio) warnOf(m *manifest.Manifest) {
	for _, warning := range m.Warnings() {
		std.caution(warning)
	}
}

// caution prints a warning, which changes no exit code.
func (std *stdio) caution(text string) { fmt.Fprintf(std.err, "rcctl: warning: %s\n", clean(text)) }

// warn prints what could not be read, next to an answer that goes without it, with what becomes of it, each once, and returns the error
// that makes the exit code say so.
func (std *stdio) warn(corrupt []error) error {
	var next []string
	for _, err := range corrupt {
		fmt.Fprintln(std.err, "rcctl: "+err.Error())
		var record *store.CorruptError
		if errors.As(err, &record) {
			parts := strings.Split(record.Key, "/")
			if i := slices.IndexFunc(parts, func(part string) bool { return cureOf[part] != "" }); i >= 0 && !slices.Contains(next, cureOf[parts[i]]) {
				next = append(next, cureOf[parts[i]])
			}
		}
	}
	for _, cure := range next {
		fmt.Fprintln(std.err, "next: "+cure)
	}
	if len(corrupt) > 0 {
		return fmt.Errorf("the answer is incomplete: %d unreadable records", len(corrupt))
	}
	return nil
}

// printList is printTable for what there is of a cluster.
func printList[V any](s *conn, views []V, corrupt []error, none string, tb table, row func(*V) []string) error {
	if len(views) == 0 {
		if err := s.empty(); err != nil {
			return err
		}
	}
	return printTable(s, views, corrupt, none, tb, row)
}

// printTable prints what a command lists in the format that the command line asks for, and says what could not be read. none is the line of
// an empty table, and row makes the cells of any other below the header of tb.
func printTable[V any](s *conn, views []V, corrupt []error, none string, tb table, row func(*V) []string) error {
	return s.print(views, corrupt, func(w io.Writer) error {
		if len(views) == 0 {
			_, err := fmt.Fprintln(w, none)
			return err
		}
		for i := range views {
			tb.rows = append(tb.rows, row(&views[i]))
		}
		return tb.write(w, coloured(w))
	})
}

const selectorAllowed = "a selector of labels in Kubernetes' syntax, such as app=web,tier in (a,b),!old"

// selectorFlag chooses by labels what is listed. What is no selector is refused before anything else is looked at.
func selectorFlag(what string) cli.Flag {
	return &cli.StringFlag{
		Name: "selector", Aliases: []string{"l"}, Usage: "only " + what + " whose labels this `SELECTOR` selects, in Kubernetes' syntax: app=web,tier in (a,b)",
		Action: func(c *cli.Context, text string) error {
			if _, err := rc.ParseSelector(text); err != nil {
				return badFlag(c, "--selector", text, selectorAllowed)
			}
			return nil
		},
	}
}

// selectorOf is the selector of a command line; without one it selects everything.
func selectorOf(c *cli.Context) labels.Selector {
	sel, err := rc.ParseSelector(c.String("selector"))
	if err != nil {
		return labels.Nothing() // the flag has refused it
	}
	return sel
}

// none says that nothing is listed, and what to do about it; where a selector chose, it may be that.
func none(what string, selected bool, next string) string {
	if selected {
		return "no " + what + " with such labels"
	}
	return "no " + what + "; " + next
}
