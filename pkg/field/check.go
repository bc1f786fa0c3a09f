package field

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// What follows judges fields of stored records. Farms read tens of thousands of those at once, so that nothing here
// compiles, matches or allocates before there is a mistake.

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

// ulidLength is how many letters of Crockford's base 32, which has neither i, l, o nor u, make a ULID.
const ulidLength = 26

// IsULID reports whether a text is a ULID in lower case, as store.NewID makes them.
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

// Times that a record may have. What lies beyond cannot be written again in every zone.
var (
	earliest = time.Time{}.Unix()
	latest   = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
)

// CheckTime records a mistake unless a time can be computed with and written.
func (es *Errors) CheckTime(path string, t time.Time) {
	if at := t.Unix(); at < earliest || at >= latest {
		es.Add(path, Text(fmt.Sprintf("the year %d", t.Year())), "a time of the years 1 to 9998")
	}
}

// CheckRange records a mistake unless a number is within its bounds, both included.
func CheckRange[N int | int64](errs *Errors, path string, n, least, most N) {
	if n < least || n > most {
		errs.Add(path, n, fmt.Sprintf("a whole number from %d to %d", least, most))
	}
}

// CheckBytes records a mistake if a text is longer than most bytes.
func (es *Errors) CheckBytes(path, text string, most int) {
	if len(text) > most {
		es.Add(path, Text(fmt.Sprintf("%d bytes", len(text))), fmt.Sprintf("at most %d bytes", most))
	}
}

// Sum adds two amounts that are zero or more. What is too much for the type stays the most that there is: it does not
// become less than nothing.
func Sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// CutBytes shortens a text to so many bytes of valid UTF-8, three dots at its end included.
func CutBytes(text string, most int) string {
	const dots = "..."
	if text = strings.ToValidUTF8(text, "\uFFFD"); len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(dots)], "") + dots
}
