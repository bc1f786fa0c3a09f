package field

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// The following functions use no regular expressions, and allocate only if there is a mistake, because farms read tens
// of thousands of records at once.

// IsName reports whether a text is a DNS label; see NamePattern.
func IsName(s string) bool {
	if s == "" || len(s) > MaxName || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != '-' && !isLowerOrDigit(c) {
			return false
		}
	}
	return true
}

func isLowerOrDigit(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' }

// Crockford's base 32 lacks i, l, o and u.
const ulidLength = 26

// IsULID reports whether a text is a ULID in lower case.
func IsULID(s string) bool {
	if len(s) != ulidLength || s[0] > '7' { // 128 bits
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isLowerOrDigit(c) || c == 'i' || c == 'l' || c == 'o' || c == 'u' {
			return false
		}
	}
	return true
}

var (
	earliest = time.Time{}.Unix()
	latest   = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
)

// CheckTime allows the years 1 to 9998, because JSON cannot have other times in every time zone.
func (es *Errors) CheckTime(path string, t time.Time) {
	if at := t.Unix(); at < earliest || at >= latest {
		es.Add(path, Text(fmt.Sprintf("the year %d", t.Year())), "a time of the years 1 to 9998")
	}
}

// CheckRange includes both bounds.
func CheckRange[N int | int64](errs *Errors, path string, n, least, most N) {
	if n < least || n > most {
		errs.Add(path, n, fmt.Sprintf("a whole number from %d to %d", least, most))
	}
}

// CheckBytes adds a mistake if a text is longer than most bytes.
func (es *Errors) CheckBytes(path, text string, most int) {
	if len(text) > most {
		es.Add(path, Text(fmt.Sprintf("%d bytes", len(text))), fmt.Sprintf("at most %d bytes", most))
	}
}

// Sum adds two amounts that are zero or more, without an overflow.
func Sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// CutBytes shortens a text to at most `most` bytes of valid UTF-8, including three dots at its end.
func CutBytes(text string, most int) string {
	const dots = "..."
	if text = strings.ToValidUTF8(text, "\uFFFD"); len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(dots)], "") + dots
}
