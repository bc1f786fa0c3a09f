package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// screen imitates a terminal, with the rows that scrolled off its top. A line that is too long continues in the next
// row, and every character takes one column. It knows the escapes that rcctl may write.
type screen struct {
	columns, height int
	rows            []row // all, the oldest first; the screen is the last of them
	top             int   // row of the screen's first line
	line, column    int   // of the cursor, in all rows
	rest            string
	unknown         []string // escapes that rcctl has no reason to write
}

type row struct {
	text      string
	continues bool // the row continues the line of the row above
}

func newScreen(columns, height int) *screen {
	return &screen{columns: columns, height: height, rows: []row{{}}}
}

var (
	escape = regexp.MustCompile(`^\x1b\[([0-9]*)([AJm])`)
	begun  = regexp.MustCompile(`^\x1b(\[[0-9]*)?$`)
)

func (s *screen) write(text string) {
	text = s.rest + text
	s.rest = ""
	for text != "" {
		switch m := escape.FindStringSubmatch(text); {
		case m != nil:
			s.act(m[1], m[2])
			text = text[len(m[0]):]
		case begun.MatchString(text):
			s.rest, text = text, ""
		default:
			s.put(rune(text[0]))
			text = text[1:]
		}
	}
}

func (s *screen) act(number, verb string) {
	n, _ := strconv.Atoi(number) // without a number it is 0
	switch {
	case verb == "A":
		s.line = max(s.top, s.line-max(1, n))
		s.column = min(s.column, s.columns-1)
	case verb == "J" && n == 0:
		s.rows = s.rows[:s.line+1]
		s.rows[s.line].text = s.rows[s.line].text[:min(s.column, len(s.rows[s.line].text))]
	case verb == "m":
	default:
		s.unknown = append(s.unknown, fmt.Sprintf("%q", "\x1b["+number+verb))
	}
}

func (s *screen) put(r rune) {
	switch {
	case r == '\r':
		s.column = 0
	case r == '\n':
		s.feed(false)
	case r < ' ':
		s.unknown = append(s.unknown, fmt.Sprintf("%q", r))
	default:
		if s.column == s.columns {
			s.column = 0
			s.feed(true)
		}
		at := &s.rows[s.line].text
		*at += strings.Repeat(" ", max(0, s.column+1-len(*at)))
		*at = (*at)[:s.column] + string(r) + (*at)[s.column+1:]
		s.column++
	}
}

func (s *screen) feed(continues bool) {
	s.line++
	if s.line == len(s.rows) {
		s.rows = append(s.rows, row{})
	}
	s.rows[s.line].continues = continues
	s.top = max(s.top, s.line+1-s.height)
}

// text is all that a person can read, also by scrolling back.
func (s *screen) text() string {
	var out strings.Builder
	for _, r := range s.rows {
		out.WriteString(strings.TrimRight(r.text, " ") + "\n")
	}
	return out.String()
}

// lines is text with the rows of a line joined.
func (s *screen) lines() string {
	var out strings.Builder
	for i, r := range s.rows {
		if i > 0 && !r.continues {
			out.WriteByte('\n')
		}
		out.WriteString(r.text)
	}
	return out.String()
}

func TestScreen(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		pieces []string
		want   string
		wraps  int
	}{
		"lines":           {[]string{"one\r\ntwo\r\n"}, "one\ntwo\n\n", 0},
		"in place":        {[]string{"one\r\ntwo\r\n\x1b[2A\x1b[J", "six\r\n"}, "six\n\n", 0},
		"cut escape":      {[]string{"one\r\n\x1b", "[", "1", "A\x1b[Jsix"}, "six\n", 0},
		"colours":         {[]string{"\x1b[32mone\x1b[39m"}, "one\n", 0},
		"as wide as it":   {[]string{"12345678\r\nx"}, "12345678\nx\n", 0},
		"wider":           {[]string{"123456789\r\nx"}, "12345678\n9\nx\n", 1},
		"over the top":    {[]string{"1\r\n2\r\n3\r\n4\r\n\x1b[4A\x1b[Jx"}, "1\n2\nx\n", 0},
		"wrapped garbage": {[]string{"123456789\r\n\x1b[1A\x1b[Jx"}, "12345678\nx\n", 1},
	} {
		s := newScreen(8, 3)
		for _, piece := range tt.pieces {
			s.write(piece)
		}
		wraps := 0
		for _, r := range s.rows {
			if r.continues {
				wraps++
			}
		}
		if s.text() != tt.want || wraps != tt.wraps || s.unknown != nil {
			t.Errorf("%s: %q, %d wraps, %q", name, s.text(), wraps, s.unknown)
		}
	}
	s := newScreen(8, 3)
	s.write("a\x1b[2Kb\x07")
	if len(s.unknown) == 0 {
		t.Error("an escape that nobody knows is none")
	}
}
