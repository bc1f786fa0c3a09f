package field

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Duration is a text with a unit, such as "30s" or "1m30s". It is never negative.
type Duration time.Duration

const durationAllowed = `a length of time with a unit, zero or more, such as "500ms", "30s" or "10m"`

// UnmarshalJSON returns an *Error for other forms, also for null.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var s *string
	if err := json.Unmarshal(data, &s); err != nil || s == nil {
		return &Error{Value: Text(data), Allowed: durationAllowed}
	}
	v, err := time.ParseDuration(*s)
	if err != nil || v < 0 {
		return &Error{Value: *s, Allowed: durationAllowed}
	}
	*d = Duration(v)
	return nil
}

// MarshalJSON writes the text form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// Or returns the default if d is nil.
func (d *Duration) Or(def time.Duration) time.Duration {
	if d == nil {
		return def
	}
	return time.Duration(*d)
}

// MaxWait is the longest wait that a document may ask for.
const MaxWait = 10 * 365 * 24 * time.Hour

// CheckWait allows 0 to MaxWait, and nil.
func CheckWait(es *Errors, path string, d *Duration) {
	if d != nil && (*d < 0 || time.Duration(*d) > MaxWait) {
		es.Add(path, Text(time.Duration(*d).String()),
			fmt.Sprintf("a length of time from 0s to %dh, such as \"30s\" or \"2m\"", int(MaxWait.Hours())))
	}
}

// MaxName is the length of a DNS label, because names become Consul service names and host names.
const MaxName = 63

// NamePattern is a regular expression of Go and of ECMAScript.
const NamePattern = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`

// NameAllowed describes what CheckName accepts.
var NameAllowed = nameAllowed(MaxName)

func nameAllowed(most int) string {
	return fmt.Sprintf("1 to %d lower-case letters, digits and '-', starting and ending with a letter or digit", most)
}

// CheckName adds a mistake unless the value is a DNS label.
func (es *Errors) CheckName(path, value string) {
	switch {
	case value == "":
		es.Missing(path, NameAllowed)
	case !IsName(value):
		es.Add(path, value, NameAllowed)
	}
}

// CheckShortName is CheckName for at most `most` bytes, because longer names are made from the name.
func (es *Errors) CheckShortName(path, value string, most int) {
	switch {
	case value == "":
		es.Missing(path, nameAllowed(most))
	case !IsName(value) || len(value) > most:
		es.Add(path, value, nameAllowed(most))
	}
}

// CheckOneOf adds a mistake unless the value is one of the allowed values.
func CheckOneOf[S ~string](es *Errors, path string, value S, allowed ...S) {
	if !slices.Contains(allowed, value) {
		es.Add(path, string(value), Or(allowed...))
	}
}

// Cut shortens a text to at most that many bytes of JSON, without the quotes. It leaves out bytes that are not UTF-8.
func Cut(text string, most int) string {
	const dots = "..."
	if len(text)*maxEscape <= most {
		return strings.ToValidUTF8(text, "")
	}
	size, fits := 0, 0 // bytes of JSON, and how much of the text fits together with the dots
	for i, r := range text {
		if size <= most-len(dots) {
			fits = i
		}
		if size += jsonBytes(r); size > most {
			return strings.ToValidUTF8(text[:fits], "") + dots
		}
	}
	return strings.ToValidUTF8(text, "")
}

// JSON may need six bytes for one, such as \u0000.
const maxEscape = 6

func jsonBytes(r rune) int {
	switch {
	case r == '"' || r == '\\':
		return 2
	case r < ' ' || r == 0x7f || r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029':
		return maxEscape
	default: // also for bytes that are not UTF-8, which are left out
		return utf8.RuneLen(r)
	}
}

// Few returns texts such as "n1, n2; and 4998 more".
func Few(items []string, most int, separator string) string {
	text := strings.Join(items[:min(len(items), most)], separator)
	if more := len(items) - most; more > 0 {
		text += fmt.Sprintf("%sand %d more", separator, more)
	}
	return text
}

// Count returns texts such as "1 pod" and "2 pods".
func Count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Each returns f of each item.
func Each[T, U any](items []T, f func(T) U) []U {
	made := make([]U, len(items))
	for i, item := range items {
		made[i] = f(item)
	}
	return made
}

// Set returns a map with the items as keys.
func Set[T comparable](items []T) map[T]bool {
	is := make(map[T]bool, len(items))
	for _, item := range items {
		is[item] = true
	}
	return is
}

// Without returns the items that are not in some, perhaps items itself.
func Without[T comparable](items, some []T) []T {
	if len(some) == 0 {
		return items
	}
	is := Set(some)
	return slices.DeleteFunc(slices.Clone(items), func(item T) bool { return is[item] })
}

// Find returns the first item for which is returns true, or nil.
func Find[T any](items []T, is func(*T) bool) *T {
	for i := range items {
		if is(&items[i]) {
			return &items[i]
		}
	}
	return nil
}

// Merge returns a new map. Later layers override earlier ones.
func Merge[V any](layers ...map[string]V) map[string]V {
	all := map[string]V{}
	for _, layer := range layers {
		maps.Copy(all, layer)
	}
	return all
}

// Or returns texts such as "a, b or c".
func Or[S ~string](of ...S) string {
	texts := Each(of, func(one S) string { return string(one) })
	if len(texts) < 2 {
		return strings.Join(texts, "")
	}
	return strings.Join(texts[:len(texts)-1], ", ") + " or " + texts[len(texts)-1]
}

// ReadWord returns the only word of a file. Errors never contain the file's content.
func ReadWord(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	words := strings.Fields(string(data))
	if len(words) != 1 ||
		strings.ContainsFunc(words[0], func(r rune) bool { return r > unicode.MaxASCII || unicode.IsControl(r) }) {
		return "", fmt.Errorf("%s holds %d words; allowed: one, the token", file, len(words))
	}
	return words[0], nil
}
