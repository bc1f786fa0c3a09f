package field

import "time"

// ClockError is how far the clocks of machines may be apart whose administrators keep them right.
const ClockError = 10 * time.Second

// NotAhead replaces a time of a record that lies ahead of now, by more than clocks may differ, and reports whether it
// did. A clock that was wrong has written such a time. What counts from it would wait until the clock gets there: so it
// counts from now, and the record says so.
func NotAhead(at *time.Time, now time.Time) bool {
	if !at.After(now.Add(ClockError)) {
		return false
	}
	*at = now
	return true
}

// NoneAhead is NotAhead for a time that may be missing. It changes the pointer, and not the time that others may have a
// pointer to.
func NoneAhead(at **time.Time, now time.Time) bool {
	if *at == nil {
		return false
	}
	t := **at
	if !NotAhead(&t, now) {
		return false
	}
	*at = &t
	return true
}
