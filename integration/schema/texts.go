package schema

import (
	"maps"
	"regexp"
	"strings"
)

// texts has the descriptions of fields, by their path, such as launchables[].restart.policy. A * stands for any one
// name.
type texts map[string]string

func (t texts) of(at string) string {
	if text := t[at]; text != "" {
		return text
	}
	parts := strings.Split(at, ".")
	for i, part := range parts {
		_, list := strings.CutSuffix(part, "[]")
		if parts[i] = "*"; list {
			parts[i] = "*[]"
		}
		if text := t[strings.Join(parts, ".")]; text != "" {
			return text
		}
		parts[i] = part
	}
	return ""
}

var (
	codes = regexp.MustCompile("`([^`]+)`")
	marks = strings.NewReplacer("`", "", "*", "")
	links = regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`)
)

// read reads the tables of a page whose first column is "field". An empty cell has the text of the cell above it.
func (t texts) read(before, markdown string) {
	var header []string
	above := ""
	for line := range strings.Lines(markdown) {
		cells := cellsOf(line)
		switch {
		case cells == nil:
			header = nil
		case cells[0] == "field":
			header, above = cells, ""
		case header != nil && len(cells) == len(header) && !strings.HasPrefix(cells[0], "---"):
			if text := describe(header, cells); text != "" {
				above = text
			}
			for _, m := range codes.FindAllStringSubmatch(cells[0], -1) {
				t[before+m[1]] = above
			}
		}
	}
}

// ofGroups copies the descriptions that groups share with manifests and controllers.
func (t texts) ofGroups() {
	t.copy("pod.launchables[].resources", "replica_groups[].resources")
	t.copy("spread", "replica_groups[].spread")
	t.copy("affinity[]", "replica_groups[].affinity[]")
}

func (t texts) copy(from, to string) {
	for at, text := range maps.Clone(t) {
		if rest, below := strings.CutPrefix(at, from+"."); below {
			t[to+"."+rest] = text
		}
	}
}

// cellsOf returns nil if a line is no row of a table.
func cellsOf(line string) []string {
	line = strings.TrimSpace(line)
	if len(line) < 2 || line[0] != '|' || line[len(line)-1] != '|' {
		return nil
	}
	cells := strings.Split(line[1:len(line)-1], "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

func describe(header, cells []string) string {
	var meaning, otherwise string
	for i, cell := range cells {
		cell = links.ReplaceAllString(marks.Replace(cell), "$1")
		switch header[i] {
		case "what it is", "what it does", "meaning":
			meaning = cell
		case "default":
			otherwise = cell
		}
	}
	switch {
	case meaning == "" || otherwise == "":
		return meaning
	case strings.HasPrefix(otherwise, "for "): // the field has no meaning for others
		return meaning + ", " + otherwise
	default:
		return meaning + ". Default: " + otherwise
	}
}

// section returns the text below a heading, up to the next heading.
func section(markdown, heading string) string {
	_, text, _ := strings.Cut(markdown, "\n"+heading+"\n")
	text, _, _ = strings.Cut(text, "\n#")
	return text
}
