// Package field decodes JSON of users strictly, and returns all mistakes with field, value and what is allowed.
package field

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Error is one mistake in one field.
type Error struct {
	Field   string // path from the top of the document, such as pod.ports[0].port
	Value   any    // the wrong value; nil if the field is missing
	Allowed string // what is allowed, as a phrase
}

// Text describes a value, such as "a list", and is shown without quotes.
type Text string

// unknownField is the value of a field that the document should not have.
type unknownField struct{}

// Error names field, value and what is allowed, on one line.
func (e *Error) Error() string {
	path := OneLine(cmp.Or(e.Field, "document"))
	if _, ok := e.Value.(unknownField); ok {
		return fmt.Sprintf("%s: unknown field; allowed: %s", path, e.Allowed)
	}
	if e.Value == nil {
		return fmt.Sprintf("%s: missing; allowed: %s", path, e.Allowed)
	}
	return fmt.Sprintf("%s: %s is not valid; allowed: %s", path, show(e.Value), e.Allowed)
}

// How many bytes of a wrong value, and of a path with a user's keys, an error shows.
const (
	maxShown     = 80
	maxShownPath = 200
)

// A user's text is in quotes and escaped, because it must not control a terminal.
func show(v any) string {
	if str, ok := v.(string); ok {
		return strconv.Quote(shorten(str, maxShown))
	}
	return shorten(fmt.Sprint(v), maxShown)
}

// OneLine puts a path or a name in quotes only if it has characters that cannot be printed.
func OneLine(path string) string {
	path = shorten(path, maxShownPath)
	if strings.ContainsFunc(path, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(path)
	}
	return path
}

func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// Errors collects mistakes, so that one run reports all of them.
type Errors []*Error

// Add adds a mistake: the value is not allowed.
func (es *Errors) Add(field string, value any, allowed string) {
	*es = append(*es, &Error{Field: field, Value: value, Allowed: allowed})
}

// Missing adds a mistake: a required field is absent or empty.
func (es *Errors) Missing(field, allowed string) {
	*es = append(*es, &Error{Field: field, Allowed: allowed})
}

// Nest adds the mistakes of a part of the document, which has this path.
func (es *Errors) Nest(path string, inner Errors) {
	for _, e := range inner {
		*es = append(*es, &Error{Field: Join(path, e.Field), Value: e.Value, Allowed: e.Allowed})
	}
}

// Err returns nil if the collection is empty.
func (es Errors) Err() error {
	if len(es) == 0 {
		return nil
	}
	return es
}

// maxMistakes bounds how many mistakes are shown.
const maxMistakes = 100

// Error returns one mistake on each line.
func (es Errors) Error() string {
	lines := make([]string, min(len(es), maxMistakes))
	for i := range lines {
		lines[i] = es[i].Error()
	}
	if more := len(es) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more mistakes", more))
	}
	return strings.Join(lines, "\n")
}

// Join puts a field name below a path.
func Join(path, name string) string {
	switch {
	case path == "":
		return name
	case name == "" || strings.HasPrefix(name, "["):
		return path + name
	default:
		return path + "." + name
	}
}
