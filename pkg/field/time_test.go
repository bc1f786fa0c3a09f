package field_test

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

func TestTimesAheadAreReplaced(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	for name, c := range map[string]struct {
		at, want time.Time
	}{
		"long ago":                 {now.Add(-time.Hour), now.Add(-time.Hour)},
		"now":                      {now, now},
		"as far as clocks differ":  {now.Add(field.ClockError), now.Add(field.ClockError)},
		"further":                  {now.Add(field.ClockError + 1), now},
		"in a hundred years":       {now.AddDate(100, 0, 0), now},
		"never, which is long ago": {time.Time{}, time.Time{}},
	} {
		at, other := c.at, c.at
		p := &other
		if changed := field.NotAhead(&at, now); !at.Equal(c.want) || changed != !c.at.Equal(c.want) {
			t.Errorf("%s: %s, changed %t", name, at, changed)
		}
		if changed := field.NoneAhead(&p, now); !p.Equal(c.want) || changed != !c.at.Equal(c.want) ||
			!other.Equal(c.at) {
			t.Errorf("%s: %s, changed %t; the time that was pointed to is %s", name, p, changed, other)
		}
	}
	var none *time.Time
	if field.NoneAhead(&none, now) || none != nil {
		t.Error("a time was made up")
	}
}
