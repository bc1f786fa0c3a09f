package field_test

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// IsName and IsULID accept the same texts as the patterns that are shown to users.
func TestNamesMatchTheirPattern(t *testing.T) {
	t.Parallel()
	name, id := regexp.MustCompile(field.NamePattern), regexp.MustCompile(`^[0-7][0-9a-hjkmnp-tv-z]{25}$`)
	letters := rapid.OneOf(rapid.SampledFrom([]rune("abiloz0789-_.A \u00e4\x00")), rapid.Rune())
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.StringOfN(letters, 0, 70, -1),
			rapid.StringMatching(`[0-9a-z]{25,27}`)).Draw(t, "text")
		if got, want := field.IsName(text), len(text) <= field.MaxName && name.MatchString(text); got != want {
			t.Fatalf("%q is a name: %t, want %t", text, got, want)
		}
		if got, want := field.IsULID(text), id.MatchString(text); got != want {
			t.Fatalf("%q is a ULID: %t, want %t", text, got, want)
		}
	})
}

// A value that is equal to a bound is allowed. A mistake names field, value and what is allowed.
func TestBounds(t *testing.T) {
	t.Parallel()
	var errs field.Errors
	field.CheckRange(&errs, "n", 1, 1, 3)
	field.CheckRange(&errs, "n", 3, 1, 3)
	errs.CheckBytes("text", "abc", 3)
	errs.CheckTime("at", time.Time{})
	errs.CheckTime("at", time.Date(9998, 12, 31, 23, 59, 59, 0, time.UTC))
	if err := errs.Err(); err != nil {
		t.Error(err)
	}
	field.CheckRange(&errs, "n", 0, 1, 3)
	field.CheckRange(&errs, "n", 4, 1, 3)
	errs.CheckBytes("text", "abcd", 3)
	errs.CheckTime("at", time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -12*3600)))
	errs.CheckTime("at", time.Time{}.Add(-time.Second))
	for _, want := range []string{"n: 0 is not", "n: 4 is not", "1 to 3", "text: 4 bytes", "at: the year"} {
		if len(errs) != 5 || !strings.Contains(errs.Error(), want) {
			t.Errorf("%q is missing in %v", want, errs)
		}
	}
	if got := field.Sum(math.MaxInt64-1, 2); got != math.MaxInt64 || field.Sum(2, 3) != 5 ||
		field.Sum(math.MaxInt64, math.MaxInt64) != math.MaxInt64 {
		t.Errorf("the sum is %d", got)
	}
}
