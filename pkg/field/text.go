package field

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Cut shortens a text to one that takes no more than so many bytes of JSON, its quotes not counted. A text that is shortened ends
// with three dots; what is not UTF-8 is left out.
func Cut(text string, most int) string {
	const dots = "..."
	if len(text)*maxEscape <= most {
		return strings.ToValidUTF8(text, "")
	}
	size, fits := 0, 0 // bytes of JSON, and how much of the text leaves room for the dots
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

// maxEscape is the most bytes of JSON that one byte of text takes: as \u0000.
const maxEscape = 6

func jsonBytes(r rune) int {
	switch {
	case r == '"' || r == '\\':
		return 2
	case r < ' ' || r == 0x7f || r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029':
		return maxEscape
	default: // also for what is not UTF-8, which is left out
		return utf8.RuneLen(r)
	}
}

// Few joins the first few items and says how many there are besides: "n1, n2; and 4998 more".
func Few(items []string, most int, separator string) string {
	text := strings.Join(items[:min(len(items), most)], separator)
	if more := len(items) - most; more > 0 {
		text += fmt.Sprintf("%sand %d more", separator, more)
	}
	return text
}

// Count says how many there are of something: "1 pod", "2 pods".
func Count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Each returns what f makes of each item.
func Each[T, U any](items []T, f func(T) U) []U {
	made := make([]U, len(items))
	for i, item := range items {
		made[i] = f(item)
	}
	return made
}
