package rcctl

import (
	"fmt"
	"strings"
)

// A terminal that says it is smaller than this is drawn on as if it were not.
const (
	leastColumns = 20
	leastHeight  = 4
)

// maxRows bounds how many rows one line takes.
const maxRows = 3

// framed lays lines out in rows of a number of columns, and in so many rows.
func framed(lines []string, columns, height int) []string {
	var rows []string
	for _, line := range lines {
		rows = append(rows, wrapped(clean(line), columns)...)
	}
	if len(rows) > height {
		left := len(rows) - height + 1
		rows = append(rows[:height-1], fitted(fmt.Sprintf("  and %d more lines", left), columns))
	}
	return rows
}

// wrapped breaks a line between words, and cuts it after maxRows.
func wrapped(line string, columns int) []string {
	var rows []string
	own := len(line) - len(strings.TrimLeft(line, " "))
	indent := strings.Repeat(" ", min(own+4, columns/2))
	for len(rows) < maxRows-1 && len(fitted(line, columns)) < len(line) {
		row := fitted(line, columns)
		if space := strings.LastIndexByte(line[:len(row)+1], ' '); strings.TrimSpace(line[:max(space, 0)]) != "" {
			row = line[:space]
		}
		rows = append(rows, row)
		line = indent + strings.TrimLeft(line[len(row):], " ")
	}
	return append(rows, fitted(line, columns))
}

// wide is the first character that may take two columns. Which ones do depends on the terminal; where all of them count as two, no line is
// wider than it is meant to be.
const wide = 0x1100

// fitted cuts a line to a number of columns.
func fitted(line string, columns int) string {
	for i, r := range line {
		if columns--; r >= wide {
			columns--
		}
		if columns < 0 {
			return line[:i]
		}
	}
	return line
}
