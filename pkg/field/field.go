// Package field reads what people write: it decodes JSON strictly and reports every mistake with the path of the
// field, the value found there and what is allowed instead.
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
	Value   any    // what was found; nil when the field is missing
	Allowed string // what would have been accepted, as a phrase
}

// Text is the value of an Error that describes what was found instead of repeating it, such as "a list". It is shown
// without quotes.
type Text string

// unknownField is the value of an Error about a field that the document should not have.
type unknownField struct{}

// Error renders the mistake on one line: field, value, what is allowed.
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

// How many bytes of a bad value, and of a path that holds keys of the user's making, an error repeats.
const (
	maxShown     = 80
	maxShownPath = 200
)

// show renders a value on one line: what a user wrote in quotes, so that nothing in it can act on a terminal.
func show(v any) string {
	if str, ok := v.(string); ok {
		return strconv.Quote(shorten(str, maxShown))
	}
	return shorten(fmt.Sprint(v), maxShown)
}

// OneLine renders a path or a name on one line. Only one with odd characters is quoted.
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

// Add records that the field holds a value that is not allowed.
func (es *Errors) Add(field string, value any, allowed string) {
	*es = append(*es, &Error{Field: field, Value: value, Allowed: allowed})
}

// Missing records that a required field is absent or empty.
func (es *Errors) Missing(field, allowed string) {
	*es = append(*es, &Error{Field: field, Allowed: allowed})
}

// Nest records the mistakes of a part of the document below the given path.
func (es *Errors) Nest(path string, inner Errors) {
	for _, e := range inner {
		*es = append(*es, &Error{Field: Join(path, e.Field), Value: e.Value, Allowed: e.Allowed})
	}
}

// Err returns the collection as an error, nil when it is empty.
func (es Errors) Err() error {
	if len(es) == 0 {
		return nil
	}
	return es
}

// maxMistakes is how many mistakes are rendered. A document may have as many as it has bytes.
const maxMistakes = 100

// Error renders one mistake per line, and how many more there are.
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
