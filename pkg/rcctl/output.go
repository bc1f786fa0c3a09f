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

const wideFormat = "wide"

func outputFlag() []cli.Flag { return formatFlag(formats[:]...) }

func wideOutputFlag() []cli.Flag { return formatFlag(formats[0], wideFormat, formats[1], formats[2]) }

// formatFlag refuses an unknown format before the command reads anything.
func formatFlag(allowed ...string) []cli.Flag {
	return []cli.Flag{&cli.StringFlag{
		Name: "output", Aliases: []string{"o"}, Value: allowed[0], Usage: "`FORMAT`: " + field.Or(allowed...),
		Action: func(c *cli.Context, format string) error {
			if !slices.Contains(allowed, format) {
				return badFlag(c, "--output", format, field.Or(allowed...))
			}
			return nil
		},
	}}
}

// print prints a view, and then the unreadable records. table is for the formats "table" and "wide".
func (s *conn) print(view any, corrupt []error, table func(io.Writer) error) error {
	if err := s.write(s.String("output"), view, table); err != nil {
		return err
	}
	return s.warn(corrupt)
}

func (s *stdio) write(format string, view any, table func(io.Writer) error) error {
	if format == formats[0] || format == wideFormat {
		return table(s.out)
	}
	out, err := inspect.Indented(view)
	if err == nil && format == "yaml" {
		out, err = yaml.JSONToYAML(out)
	}
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err = s.out.Write(out)
	return err
}

// colour is an ANSI foreground colour. All are equally long, so a column stays aligned if each of its cells has one.
type colour string

const (
	plainColour colour = "\x1b[39m"
	green       colour = "\x1b[32m"
	yellow      colour = "\x1b[33m"
	red         colour = "\x1b[31m"
)

type table struct {
	header   []string
	rows     [][]string
	paint    int                      // the index of the column with colours
	colourOf func(cell string) colour // nil: no cell has a colour
}

func columns(header ...string) *table { return &table{header: header} }

func (t *table) painted(column int, colourOf func(cell string) colour) *table {
	t.paint, t.colourOf = column, colourOf
	return t
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write prints "-" for an empty cell.
func (t *table) write(w io.Writer, colours bool) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for i, row := range append([][]string{t.header}, t.rows...) {
		cells := make([]string, len(row))
		for j, cell := range row {
			cells[j] = clean(cell)
			if colours && t.colourOf != nil && j == t.paint {
				shade := plainColour
				if i > 0 {
					shade = t.colourOf(cell)
				}
				cells[j] = string(shade) + cells[j] + string(plainColour)
			}
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

func clean(text string) string {
	if text == "" {
		return "-"
	}
	return printable(text)
}

// printable keeps the text of pods and records from acting on a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

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

// cureOf has, by the first part of an unreadable record's key, what to do about it.
var cureOf = map[string]string{
	"reality": "the preparer of the node writes an unreadable report (reality/) again within 90 s; its pods run on " +
		"meanwhile",
	"nodes": "remove the unreadable record of a node (consul kv delete KEY); its preparer writes it again; its " +
		"pods run on meanwhile",
	"status": "the owner writes an unreadable status again in its next look at the controller",
	"manifests": "apply the document of a controller whose manifest is unreadable again (rcctl apply -f FILE); its " +
		"pods run on meanwhile",
}

func (s *stdio) warnOf(m *manifest.Manifest) {
	for _, warning := range m.Warnings() {
		s.caution(warning)
	}
}

func (s *stdio) warnAbout(c *change) {
	if c.warning != "" {
		s.caution(c.warning)
	}
}

func (s *stdio) caution(text string) { s.note("warning: %s", clean(text)) }

// warn prints the records that are missing in the answer, and what to do. It returns an error, because the exit code
// must show them.
func (s *stdio) warn(corrupt []error) error {
	var next []string
	for _, err := range corrupt {
		s.note("%s", err.Error())
		var record *store.CorruptError
		if errors.As(err, &record) {
			parts := strings.Split(record.Key, "/")
			if i := slices.IndexFunc(parts, func(part string) bool { return cureOf[part] != "" }); i >= 0 &&
				!slices.Contains(next, cureOf[parts[i]]) {
				next = append(next, cureOf[parts[i]])
			}
		}
	}
	for _, cure := range next {
		fmt.Fprintln(s.err, "next: "+cure)
	}
	if len(corrupt) > 0 {
		return fmt.Errorf("the answer is incomplete: %d unreadable records", len(corrupt))
	}
	return nil
}

// printList is for a list that may be empty because the cluster has no records.
func printList[V any](s *conn, views []V, corrupt []error, none string, tb *table, row func(*V) []string) error {
	if len(views) == 0 {
		if err := s.empty(); err != nil {
			return err
		}
	}
	return printTable(s, views, corrupt, none, tb, row)
}

// printTable prints the text in none if the list is empty.
func printTable[V any](s *conn, views []V, corrupt []error, none string, tb *table, row func(*V) []string) error {
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

// selectorFlag refuses an invalid selector before the command reads anything.
func selectorFlag(what string) []cli.Flag {
	return []cli.Flag{&cli.StringFlag{
		Name: "selector", Aliases: []string{"l"}, Usage: "only " + what +
			" whose labels this `SELECTOR` selects, in Kubernetes' syntax: app=web,tier in (a,b)",
		Action: func(c *cli.Context, text string) error {
			if _, err := rc.ParseSelector(text); err != nil {
				return badFlag(c, "--selector", text, selectorAllowed)
			}
			return nil
		},
	}}
}

func selectorOf(c *cli.Context) labels.Selector {
	sel, err := rc.ParseSelector(c.String("selector"))
	if err != nil {
		return labels.Nothing() // unreachable: the flag refuses an invalid selector
	}
	return sel
}

const maxLabelKeys = 20

// selected keeps the views that -l selects. If there are none because no view has such a key, it prints the keys that
// there are.
func selected[V any](s *conn, what string, views []V, labelsOf func(*V) map[string]string) []V {
	sel := selectorOf(s.flags)
	if sel.Empty() {
		return views
	}
	sets := make([]map[string]string, len(views))
	for i := range views {
		sets[i] = labelsOf(&views[i])
	}
	views = inspect.Selected(views, sel, labelsOf)
	lacking, keys := inspect.LabelsLacking(sel, sets)
	switch {
	case len(views) > 0 || len(sets) == 0 || len(lacking) == 0:
	case len(keys) == 0:
		s.note("none of these %s has a label", field.Count(len(sets), what))
	default:
		s.note("none of these %s has the label %s; their labels are %s",
			field.Count(len(sets), what), field.Or(lacking...), field.Few(keys, maxLabelKeys, ", "))
	}
	return views
}

// none is the line for an empty list. A selector may be the reason why it is empty.
func none(what string, selected bool, next string) string {
	if selected {
		return "no " + what + " with such labels"
	}
	return "no " + what + "; " + next
}
